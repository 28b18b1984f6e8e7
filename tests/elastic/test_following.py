"""Which server follows which, and what a worker knows of it: loads are level, changes few, no server follows itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.replication import LEVEL, check_standby, followers
from labkit.elastic.worker.push_pull import ReplicaMap, StepReplicas

NAMES = [f"ps-{i}" for i in range(6)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], list[str], dict[int, str]]:
    """Sizes of blocks, servers, and which server has which block."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=6, max_size=24))
    servers = NAMES[: draw(st.integers(2, 6))]
    return sizes, servers, reassign({}, sizes, servers)


def held(owner: dict[int, str], found: dict[int, str], sizes: list[int]) -> dict[str, int]:
    total = dict.fromkeys({*owner.values(), *found.values()}, 0)
    for of in (owner, found):
        for block, name in of.items():
            total[name] += sizes[block]
    return total


@given(clusters())
def test_every_block_is_followed_by_another_server_and_what_they_hold_is_level(
    cluster: tuple[list[int], list[str], dict[int, str]],
) -> None:
    """No server holds more than 5% above the mean by more than a block: the rule of a largest-first placement."""
    sizes, servers, owner = cluster
    found = followers(owner, sizes, servers, before={})
    assert found.keys() == owner.keys()
    assert all(found[block] != owner[block] and found[block] in servers for block in owner)
    total = held(owner, found, sizes)
    assert max(total.values()) <= LEVEL * sum(total.values()) / len(servers) + max(sizes)


@given(clusters(), st.data())
def test_after_a_death_only_those_followers_change_that_must_or_that_level_the_load(
    cluster: tuple[list[int], list[str], dict[int, str]], data: st.DataObject
) -> None:
    sizes, servers, owner = cluster
    before = followers(owner, sizes, servers, before={})
    assert followers(owner, sizes, servers, before=before) == before
    if len(servers) < 3:
        return
    dead = data.draw(st.sampled_from(servers))
    promoted = {block: before[block] if name == dead else name for block, name in owner.items()}
    left = [name for name in servers if name != dead]
    after = followers(promoted, sizes, left, before=before)
    assert all(after[block] != promoted[block] and after[block] in left for block in promoted)
    free = {block for block in promoted if before[block] == dead or before[block] == promoted[block]}
    kept = dict(before)
    for block in free:  # the cheapest that could be: the others stay, if that is level enough
        kept[block] = after[block]
    if max(held(promoted, kept, sizes).values()) * len(left) <= LEVEL * 2 * sum(sizes):
        assert after == kept


def test_no_follower_changes_for_less_than_five_percent() -> None:
    """The servers hold 202, 200 and 202: a move would send a block through the network for half a percent."""
    owner = {0: "a", 1: "b", 2: "c", 3: "c", 4: "c"}
    before = {0: "b", 1: "c", 2: "a", 3: "a", 4: "a"}
    assert followers(owner, [100, 100, 100, 1, 1], ["a", "b", "c"], before=before) == before


def test_with_one_server_left_no_server_follows() -> None:
    assert followers({0: "a", 1: "a"}, [1, 1], ["a"], before={0: "b", 1: "b"}) == {}


@pytest.mark.parametrize(("asked", "what"), [({"servers": 1}, "at least 2"), ({"servers": 3, "sync": False}, "asynch")])
def test_a_standby_that_cannot_be_is_refused_with_the_reason(asked: dict[str, int], what: str) -> None:
    with pytest.raises(InputError, match=what):
        check_standby(**asked)


ROW = st.tuples(st.sampled_from(NAMES[:3]), st.integers(1, 6))


@given(st.lists(ROW, max_size=8), st.integers(0, 6), st.sets(ROW, max_size=3), st.data())
def test_what_the_controller_withdrew_stays_withdrawn_in_whatever_order_it_is_heard(
    announced: list[tuple[str, int]], upto: int, kept: set[tuple[str, int]], data: st.DataObject
) -> None:
    """Announcements come from servers, withdrawals from the controller: over different connections."""
    cut = data.draw(st.integers(0, len(announced)))
    known = ReplicaMap()
    for name, turn in announced[:cut]:
        known.add(name, [(0, 5, turn)])
    known.settle([[0, upto, [list(one) for one in kept]]])
    for name, turn in announced[cut:]:
        known.add(name, [(0, 5, turn)])
    expected = {one for one in announced if one[1] > upto or one in kept}
    assert known.at(5).get(0, set()) == expected
    assert known.at(4) == {}


def test_a_worker_waits_for_the_server_that_took_the_owners_place_until_the_step_ends() -> None:
    """It may be the only one that has what this worker computed; a dead one has nothing."""
    beside = StepReplicas()
    beside.known.add("ps-1", [(0, 0, 1), (1, 0, 1)])
    beside.known.add("ps-2", [(2, 0, 1)])
    assert beside.begin(7, {0: "ps-0", 1: "ps-0", 2: "ps-0"}) == {"ps-1": [0, 1], "ps-2": [2]}
    gone = [[0, 1, []], [1, 1, []], [2, 1, []]]
    beside.settle(gone, owner={0: "ps-1", 1: "ps-0", 2: "ps-2"}, here=["ps-1"])
    assert beside.behind == {"ps-1": {0}}
    assert beside.once_more() == {"ps-1": [0]}
    assert beside.begin(8, {0: "ps-1", 1: "ps-0", 2: "ps-0"}) == {}

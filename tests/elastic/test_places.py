"""Which member is where: places as pure functions, and as the controller carries them out, while hosts are lost."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import End, Over, SavedMachine, Start
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.codec import from_json, to_json
from labkit.elastic.protocol.messages.orders import FinishStep, Halt, PauseAtVersion, Replicate, SetOwners
from labkit.elastic.protocol.messages.reports import HasReplica, OwnsBlock, StateReported, TrainingBegun
from labkit.elastic.protocol.sites import ROLES, MemberPlacement, by_numbers, of_role, to_place
from tests.elastic.chaos.story import many
from tests.elastic.stage import Stage, control
from tests.elastic.test_controller import Play

SITES = {"a/0": "a", "a/1": "a", "b/0": "b", "c/0": "c"}

seats = st.dictionaries(st.sampled_from(list(SITES)), st.tuples(st.integers(0, 3), st.integers(0, 3)))


def sitters(place: dict[str, tuple[int, int]]) -> list[MemberPlacement]:
    found = []
    for role in ROLES:
        where = [site for site, n in of_role(place, role).items() for _ in range(n)]
        found += [MemberPlacement(f"{role}-{i}", role, site) for i, site in enumerate(where)]
    return found


@given(seats, seats)
def test_after_the_changes_exactly_so_many_are_where_and_no_member_moves_without_need(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> None:
    sitting = sitters(before)
    starts, going = to_place(after, sitting)
    stay = Counter((s.role, s.site) for s in sitting if s.name not in going)
    assert stay + Counter(starts) == Counter({(r, s): n for r in ROLES for s, n in of_role(after, r).items() if n})
    for role in ROLES:
        had, wanted = of_role(before, role), of_role(after, role)
        kept = sum(min(had.get(site, 0), wanted.get(site, 0)) for site in SITES)
        assert kept == sum(n for (r, _), n in stay.items() if r == role)


@given(seats, st.integers(-2, 4), st.integers(-2, 4))
def test_a_member_that_comes_without_a_place_goes_where_the_fewest_are(
    before: dict[str, tuple[int, int]], servers: int, workers: int
) -> None:
    sitting = sitters(before)
    more: Any = {"server": servers, "worker": workers}
    starts, going = by_numbers(more, sitting, replace=(), sites=list(SITES))
    for role in ROLES:
        had = Counter(one.site for one in sitting if one.role == role)
        new = Counter(site for started, site in starts if started == role)
        assert sum(new.values()) == max(more[role], 0)
        level = max((had[site] + n for site, n in new.items()), default=0)
        assert all(had[site] + new[site] >= level - 1 for site in SITES)
    assert len(going) == sum(min(max(-more[r], 0), sum(s.role == r for s in sitting)) for r in ROLES)


class Spread(Play):
    """A job over three hosts."""

    def __init__(self, place: dict[str, tuple[int, int]], **terms: Any) -> None:
        self.machine = Controller(terms=_terms(**{"sites": SITES, **terms}), reassign=reassign)
        self.heard, self.leaves = [], {}
        self.done(self.machine.start(place=place))

    def sitting(self) -> dict[str, tuple[int, int]]:
        members = [*self.machine.job.of("server"), *self.machine.job.of("worker")]
        n = Counter((m.site, m.role) for m in members)
        return {site: (n[site, "worker"], n[site, "server"]) for site in SITES if n[site, "worker"] + n[site, "server"]}

    def place(self, place: dict[str, tuple[int, int]], strategy: str = "handover") -> None:
        """Ask for it, and let all happen that follows."""
        self.done(self.machine.scale(place=place, strategy=strategy))
        self.follow_up()

    def follow_up(self) -> None:
        self.join()
        for member in self.machine.job.of("worker"):
            if not member.ready:
                self.done(self.machine.reported(member.name, TrainingBegun(version=5)))
        self.move()
        self.bury()

    def bury(self) -> None:
        """Let members end that were told to."""
        for name in [*(end.name for end in self.all(End)), *(tell.to for tell in self.told(FinishStep))]:
            self.done(self.machine.left(name))

    def dropped(self) -> list[str]:
        return [str(note.columns["why"]) for note in self.all_notes("dropped")]

    def all_notes(self, event: str) -> list[Any]:
        from labkit.elastic.controller.controller_state import Note

        return [note for note in self.all(Note) if note.event == event]


def _terms(**terms: Any) -> Any:
    from labkit.elastic.controller.controller_state import JobTerms

    return JobTerms(**{"sizes": [5] * 8, "n_shards": 8, "n_steps": 100, **terms})


PLACE = {"a/0": (1, 1), "b/0": (2, 1), "c/0": (0, 1)}


def test_a_job_begins_where_it_is_placed() -> None:
    play = Spread(PLACE)
    assert play.sitting() == PLACE
    assert {(s.role, s.site) for s in play.all(Start)} == {
        ("server", "a/0"), ("server", "b/0"), ("server", "c/0"), ("worker", "a/0"), ("worker", "b/0"),
    }  # fmt: skip


@pytest.mark.parametrize("sync", [True, False])
def test_one_request_adds_removes_and_moves_while_no_member_stands_still(sync: bool) -> None:
    play = Spread(PLACE, sync=sync, n_samples=64)
    play.train()
    play.place({"a/1": (2, 2), "b/0": (1, 0), "c/0": (1, 1)})
    assert play.sitting() == {"a/1": (2, 2), "b/0": (1, 0), "c/0": (1, 1)}
    assert play.notes().count("registration") == play.notes().count("scaled") == 1
    (registered,) = play.all_notes("registration")
    assert (registered.columns["servers"], registered.columns["workers"]) == (0, 1)
    assert set(play.machine.job.owner.values()) == {m.name for m in play.machine.job.of("server")}
    assert not play.told(PauseAtVersion)
    assert not play.told(Halt)


def test_a_place_that_is_what_there_is_starts_and_ends_no_member() -> None:
    play = Spread(PLACE)
    play.train()
    n = len(play.all(Start))
    play.place(PLACE)
    assert play.notes()[-1] == "scaled"
    assert len(play.all(Start)) == n
    assert not play.all(End)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ({"a/0": (1, 0)}, "left with 0 servers"),
        ({"a/0": (0, 1)}, "left with 0 workers"),
        ({"a/0": (1, 9)}, "9 servers for 8 blocks"),
        ({"b/1": (1, 1)}, "unknown site 'b/1'. Did you mean"),
        ({"a/0": (1, -1)}, r"expected how many workers and how many servers"),
        ({"a/0": (1, True)}, r"expected how many workers and how many servers"),
        ({"a/0": 3}, r"expected how many workers and how many servers"),
    ],
)
def test_places_that_cannot_be_are_refused_and_change_nothing(place: Any, what: str) -> None:
    play = Spread(PLACE)
    play.train()
    heard = len(play.heard)
    with pytest.raises(InputError, match=what):
        play.machine.scale(place=place, strategy="handover")
    assert len(play.heard) == heard
    assert play.machine.requests.current is None


def test_what_is_asked_for_after_a_place_counts_from_there() -> None:
    """The place takes one server away of three; two more cannot go."""
    play = Spread(PLACE)
    play.train()
    play.done(play.machine.scale(place={"a/0": (1, 1), "b/0": (1, 1)}, strategy="handover"))
    with pytest.raises(InputError, match="left with 0 servers"):
        play.machine.scale(servers=-2, strategy="handover")
    play.done(play.machine.scale(workers=1, strategy="handover"))
    play.follow_up()
    play.follow_up()
    assert sum(workers for workers, _ in play.sitting().values()) == 3


def test_two_requests_to_remove_the_last_but_one_cannot_leave_no_member() -> None:
    play = Play(workers=2)
    play.train()
    play.done(play.machine.scale(servers=1, workers=-1, strategy="handover"))
    with pytest.raises(InputError, match="left with 0 workers"):
        play.machine.scale(workers=-1, strategy="handover")


@pytest.mark.parametrize("victim", ["worker-1", "ps-1"])
def test_a_member_that_dies_is_replaced_on_the_same_site(victim: str) -> None:
    play = Spread(PLACE)
    play.train()
    assert play.machine.job.members[victim].site == "b/0"
    play.done(play.machine.left(victim, reason="killed"))
    assert play.all(Start)[-1].site == "b/0"
    play.join()
    assert play.sitting() == PLACE


def test_a_replacement_takes_the_site_of_the_member_that_it_replaces() -> None:
    play = Spread(PLACE)
    play.train()
    play.done(play.machine.scale(replace=["worker-2", "ps-2"], strategy="handover"))
    play.follow_up()
    assert play.sitting() == PLACE
    assert not {"worker-2", "ps-2"} & set(play.machine.job.members)


def test_a_lost_host_with_workers_only_costs_no_step_and_they_are_not_replaced() -> None:
    play = Spread({"a/0": (1, 2), "b/0": (2, 0)})
    play.train()
    n = len(play.all(Start))
    play.done(play.machine.host_lost("b", why="its launcher has not reconnected"))
    (lost,) = play.all_notes("lost_host")
    assert (lost.columns["host"], lost.columns["members"]) == ("b", ["worker-1", "worker-2"])
    assert play.sitting() == {"a/0": (1, 2)}
    assert play.covered() == list(range(8))
    assert len(play.all(Start)) == n
    assert not play.told(Halt)


def test_blocks_of_a_lost_host_come_back_from_the_checkpoint_on_the_servers_that_are_left() -> None:
    play = Spread(PLACE, save_every=10)
    play.train()
    play.step(20)
    play.done(play.machine.host_lost("b"))
    assert play.notes()[-1] == "goes_back"
    assert set(play.machine.job.owner.values()) == {"ps-0", "ps-2"}
    play.train(version=10)
    assert play.sitting() == {"a/0": (1, 1), "c/0": (0, 1)}
    assert play.machine.job.phase == "training"


def test_workers_learn_the_block_owners_from_the_controller_if_a_host_with_a_server_is_lost() -> None:
    """The server had given its blocks away: its words of that may not have reached the workers."""
    play = Spread({"a/0": (2, 2), "b/0": (0, 1)})
    play.train()
    play.done(play.machine.scale(place={"a/0": (2, 2)}, strategy="handover"))
    play.move()
    assert set(play.machine.job.owner.values()) == {"ps-0", "ps-1"}
    before = len(play.told(SetOwners))
    play.done(play.machine.host_lost("b"))
    told = play.told(SetOwners)[before:]
    assert {tell.to for tell in told} == {"worker-0", "worker-1"}
    assert "ps-2" not in json.dumps(told[0].order.owners)
    assert not play.told(Halt)


@pytest.mark.parametrize(
    ("place", "then"),
    [
        ({"a/0": (1, 0), "b/0": (1, 2)}, {"a/0": (1, 1)}),
        ({"a/0": (0, 2), "b/0": (3, 1)}, {"a/0": (1, 2)}),
    ],
)
def test_if_no_server_or_no_worker_is_left_one_comes_where_others_of_the_job_are(place: Any, then: Any) -> None:
    play = Spread(place)
    play.train()
    play.done(play.machine.host_lost("b"))
    play.train()
    assert play.sitting() == then
    assert play.machine.job.phase == "training"
    assert play.covered() == list(range(8))


@pytest.mark.parametrize("trains", [True, False])
def test_if_no_member_is_left_the_job_ends_by_name(trains: bool) -> None:
    play = Spread({"b/0": (2, 2)})
    if trains:
        play.train()
    play.done(play.machine.host_lost("b"))
    assert [over.failure for over in play.all(Over)] == ["host b is lost, and the job has no member on another host."]


def test_all_members_that_die_with_a_host_are_one_death() -> None:
    play = Spread({"a/0": (1, 1), "b/0": (9, 0)}, restarts=1)
    play.train()
    play.done(play.machine.host_lost("b"))
    assert not play.all(Over)


def test_a_job_whose_host_does_not_come_begins_without_it() -> None:
    play = Spread(PLACE)
    for name in ("ps-0", "worker-0", "ps-2"):
        play.done(play.machine.joined(name, address=f"tls://{name}:1"))
    play.done(play.machine.host_lost("b", why="its launcher has not connected"))
    assert play.machine.job.phase == "loading"
    play.train()
    assert play.machine.job.phase == "training"
    assert play.sitting() == {"a/0": (1, 1), "c/0": (0, 1)}


def test_standby_outlives_a_host_whose_blocks_others_follow() -> None:
    play = Spread({"a/0": (1, 2), "b/0": (1, 1)}, standby=True)
    play.train()
    followed(play)
    play.done(play.machine.host_lost("b"))
    assert not play.told(Halt)
    assert set(play.machine.job.owner.values()) == {"ps-0", "ps-1"}


def test_standby_goes_back_if_owner_and_follower_were_on_one_host_and_has_two_servers_afterwards() -> None:
    play = Spread({"a/0": (1, 0), "b/0": (1, 2)}, standby=True)
    play.train()
    followed(play)
    play.done(play.machine.host_lost("b"))
    assert play.told(Halt)
    play.train()
    assert play.sitting() == {"a/0": (1, 2)}


def test_standby_with_one_server_left_gets_a_second_one() -> None:
    play = Spread({"a/0": (1, 1), "b/0": (1, 1)}, standby=True)
    play.train()
    followed(play)
    play.done(play.machine.host_lost("b"))
    assert not play.told(Halt)
    play.join()
    assert play.sitting() == {"a/0": (1, 2)}


def followed(play: Play) -> None:
    """Let each server keep the replicas that it was told to."""
    for tell in play.told(Replicate):
        for block, name, turn in tell.order.blocks:
            play.done(play.machine.reported(name, HasReplica(block=block, turn=turn, version=3)))


def test_a_place_on_a_lost_host_is_refused_until_it_is_back() -> None:
    play = Spread(PLACE)
    play.train()
    play.done(play.machine.host_lost("b"))
    play.train()
    with pytest.raises(InputError, match="site 'b/0' is on host b, which is lost"):
        play.machine.scale(place=PLACE, strategy="handover")
    play.done(play.machine.scale(workers=1, strategy="handover"))
    play.follow_up()
    assert "b/0" not in play.sitting()
    play.done(play.machine.host_back("b"))
    assert play.notes()[-1] == "host_back"
    play.place(PLACE)
    assert play.sitting() == PLACE


def test_requests_that_need_a_host_are_dropped_with_it_and_no_member_goes_that_would_be_missed() -> None:
    """All were to move to b; the request after it, too. Then b is lost while newcomers come."""
    play = Spread({"a/0": (2, 2)})
    play.train()
    play.done(play.machine.scale(place={"b/0": (2, 2)}, strategy="handover"))
    play.done(play.machine.scale(place={"b/0": (1, 1)}, strategy="handover"))
    play.done(play.machine.host_lost("b"))
    assert play.dropped() == ["host b is lost"] * 2
    assert play.sitting() == {"a/0": (2, 2)}
    assert not play.told(Halt)
    play.place({"c/0": (1, 1)})
    assert play.sitting() == {"c/0": (1, 1)}


def test_a_member_that_was_to_go_stays_if_the_new_ones_are_lost_while_blocks_move() -> None:
    play = Spread({"a/0": (2, 2)})
    play.train()
    play.done(play.machine.scale(place={"b/0": (2, 2)}, strategy="handover"))
    play.join()
    for name in ("worker-2", "worker-3"):
        play.done(play.machine.reported(name, TrainingBegun(version=5)))
    assert play.notes()[-1] == "migration"
    play.done(play.machine.host_lost("b"))
    assert play.machine.requests.current is None or not play.machine.requests.current.going
    assert play.sitting() == {"a/0": (2, 2)}
    assert not [end for end in play.all(End) if end.name in ("ps-0", "ps-1", "worker-0", "worker-1")]
    assert play.covered() == list(range(8))


def test_a_place_under_way_is_begun_anew_after_a_server_has_died() -> None:
    play = Spread(PLACE)
    play.train()
    play.done(play.machine.scale(place={"c/0": (2, 2)}, strategy="handover"))
    play.done(play.machine.left("ps-0", reason="killed"))
    assert play.notes()[-2:] == ["goes_back", "again"]
    play.train()
    play.follow_up()
    play.follow_up()
    assert play.sitting() == {"c/0": (2, 2)}


def test_a_controller_after_this_one_knows_which_member_is_where_what_is_lost_and_what_was_asked_for() -> None:
    play = Spread(PLACE)
    play.train()
    play.done(play.machine.host_lost("c"))
    play.train()
    play.done(play.machine.scale(place={"a/1": (1, 1), "b/0": (1, 1)}, strategy="handover"))
    play.done(play.machine.scale(workers=1, strategy="handover"))
    state = from_json(SavedMachine, to_json(play.machine.state()))
    before = play.machine
    play.machine = Controller(before.job.terms, reassign=reassign)
    play.done(play.machine.take_over(state))
    assert play.machine.job.lost == {"c"}
    assert {m.name: m.site for m in play.machine.job.members.values()} == {
        m.name: m.site for m in before.job.members.values()
    }
    assert play.dropped()[-1] == "the controller died"  # the one that does not say where
    for member in list(play.machine.job.members.values()):
        play.done(play.machine.joined(member.name, address=member.address))
        if member.role == "server":
            for block, owner in before.job.owner.items():
                if owner == member.name:
                    play.done(play.machine.reported(member.name, OwnsBlock(block=block, version=3, moves=0)))
        play.done(play.machine.reported(member.name, StateReported(version=3, has=play.machine.job.era)))
    assert play.machine.job.phase == "training"
    play.follow_up()
    assert play.sitting() == {"a/1": (1, 1), "b/0": (1, 1)}


def same(stage: Stage, at: dict[int, Any]) -> bool:
    """Run a stage to its end; tell whether its parameters are those of training to which nothing happens."""
    return np.array_equal(stage.run(at), control(stage.extents, n_steps=stage.n_steps, n_shards=stage.n_shards))


THREE = {"a": (1, 1), "b": (1, 1), "c": (1, 1)}


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("seed", many(10))
def test_a_host_that_is_lost_at_any_moment_changes_no_bit(seed: int, alive: bool) -> None:
    """Also if members that are believed dead live on for a while, and others hear what they say.

    Those have no memory in common with others: they are on another host.
    """
    rng = np.random.default_rng(seed)
    stage = Stage(seed, sites={s: s for s in THREE}, place=THREE, standby=bool(seed % 2), n_steps=20, copies=alive)
    when = int(rng.integers(1, 900))
    at: dict[int, Any] = {when: lambda s: s.lose("b", alive=alive), when + int(rng.integers(1, 400)): Stage.perish}
    if seed % 3 == 0:
        at[int(rng.integers(1, 900))] = Stage.restart_controller
    assert same(stage, at)
    assert "lost_host" in stage.events()


@pytest.mark.parametrize("seed", many(10))
def test_places_one_after_the_other_change_no_bit_whichever_member_dies_meanwhile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stage = Stage(seed, sites={s: s for s in THREE}, place=THREE, standby=bool(seed % 2), n_steps=20)

    def put(place: dict[str, tuple[int, int]]) -> Any:
        def at_that_moment(s: Stage) -> None:
            with contextlib.suppress(InputError):  # the host may be lost
                s.carry_out(s.machine.scale(place=place, strategy="handover"))

        return at_that_moment

    def kill_one(s: Stage) -> None:
        here = [a.name for a in s.actors.values() if a.alive]
        s.kill(str(rng.choice(here)))

    whats = [put({"a": (1, 2), "b": (2, 1)}), put({"b": (2, 2)}), put({"a": (1, 3)}), kill_one]
    whats += [lambda s: s.lose("c")] if seed % 4 == 0 else []
    times = np.sort(rng.choice(900, len(whats), replace=False)) + 150
    order = rng.permutation(len(whats))
    assert same(stage, {int(t): whats[i] for t, i in zip(times, order, strict=True)})

"""X1, X2, M2: links that break, freeze or crawl, and processes that stand still: no hang, no bit, no effect twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.protocol.messages.codec import FrameKind
from labkit.elastic.transport import Address
from tests.elastic.chaos.story import Story, many
from tests.elastic.transport.proxy import Proxy
from tests.hang import HANG_S

LEASE_S = 1.5
BLOCK = slice(12, 16)
"""Where a frame says its block."""


@contextlib.contextmanager
def between(story: Story, *, framed: bool = False, **links: tuple[str, str]) -> Iterator[dict[str, Proxy]]:
    """Put a proxy before each (which process connects, and to which); enter it before the story."""
    proxies, routes = {}, {}
    for seed, (name, (of, to)) in enumerate(links.items()):
        there, here = Address.parse(f"unix:{story.folder}/{to}.sock"), Address.parse(f"unix:{story.folder}/via-{name}")
        proxies[name], here = Proxy(there, address=here, framed=framed, seed=seed), here.path
        routes[f"{of}>{to}"] = f"unix:{here}"
    (story.folder / fault.ROUTES).write_text(json.dumps(routes))
    try:
        yield proxies
    finally:
        for proxy in proxies.values():
            proxy.close()


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def no_member_was_ended(story: Story) -> None:
    """No member was believed dead, and training did not go back."""
    assert not [e for e in story.events if e["event"] in ("goes_back", "missed")]
    assert not [e for e in story.events if e["event"] == "left" and not e["expected"]]


EVERY = {f"w{w}s{s}": (f"worker-{w}", f"ps-{s}") for w in range(2) for s in range(2)}
"""All links between two workers and two servers."""


@pytest.mark.parametrize("seed", many(1))
def test_a_link_between_worker_and_server_may_break_crawl_and_freeze(seed: int) -> None:
    """It is made again, and what was on its way is asked for and pushed again."""
    rng = np.random.default_rng(seed)
    story = Story("X1 worker-server: cut, frozen", scheme="unix", lease_s=LEASE_S, steps=160)
    with between(story, link=("worker-0", "ps-0")) as proxies, story:
        link = proxies["link"]
        for _ in range(3):
            story.stepped(int(rng.integers(1, 4)))
            wait(float(rng.uniform(0, 0.1)))
            story.gone(link.cut)
        story.stepped(3)
        link.delay_s = 0.01
        story.stepped(6)
        link.delay_s = 0.0
        for leases in (0.4, 1.5):
            story.gone(link.freeze)
            wait(leases * LEASE_S)
            link.thaw()
            story.stepped(3)
        story.finish()
        no_member_was_ended(story)


@pytest.mark.parametrize("seed", many(1))
def test_a_link_may_be_dead_in_one_direction_or_pass_a_byte_a_second(seed: int) -> None:
    """One end still hears the other, or both hear next to nothing: both must come to see that it is broken.

    A single byte at a time, but fast, is a good link.
    """
    story = Story("X1 worker-server: half dead, a byte a second", scheme="unix", lease_s=LEASE_S)
    with between(story, link=("worker-1", f"ps-{seed % 2}")) as proxies, story:
        link = proxies["link"]
        story.at(3 + seed)
        for from_worker in (True, False):
            story.gone(lambda to=from_worker: link.freeze(from_near=to))
            wait(1.3 * LEASE_S)
            link.thaw()
            story.stepped(4)
        assert sum(e["event"] == "cut" for e in story.events) >= 2
        link.chunk_bytes = 1
        story.stepped(2).gone(lambda: setattr(link, "delay_s", 1.0))
        wait(1.4 * LEASE_S)
        link.chunk_bytes, link.delay_s = 1 << 16, 0.0
        story.stepped(4).finish()
        no_member_was_ended(story)


@pytest.mark.parametrize("seed", many(1))
def test_connections_that_overtake_each_other_change_nothing(seed: int) -> None:
    """Every frame of every link is late by a time of its own; blocks move meanwhile."""
    rng = np.random.default_rng(seed)
    story = Story("X1 reorder, across connections", scheme="unix", lease_s=LEASE_S)
    with between(story, **EVERY, move=("ps-*", "ps-2")) as proxies, story:
        for proxy in proxies.values():
            proxy.jitter_s = float(rng.choice([0.002, 0.02, 0.1]))
        story.at(3).scale(servers=1).happens("scaled")
        for _ in range(3):  # all but one pass
            held = proxies[str(rng.choice(list(EVERY)))]
            story.gone(held.freeze)
            wait(0.3 * LEASE_S)
            held.thaw()
            story.stepped(2)
        for proxy in proxies.values():
            proxy.jitter_s = 0.0
        story.finish()
        no_member_was_ended(story)


def twice(frame: bytes, _from_near: bool, _held: list[bytes]) -> list[bytes]:
    """Pass every frame on twice."""
    return [frame, frame]


@pytest.mark.parametrize("sync", [True, False])
def test_frames_that_come_twice_have_their_effect_once(sync: bool) -> None:
    """Each has a number; the second one is counted and passed over, and the connection goes on."""
    row = "X1 duplicate" if sync else "X1 duplicate, async"
    story = Story(row, scheme="unix", lease_s=LEASE_S, sync=sync)
    with between(story, framed=True, **EVERY, c=("*", "controller"), move=("ps-*", "ps-2")) as proxies, story:
        for proxy in proxies.values():
            story.gone(lambda proxy=proxy: setattr(proxy, "meddle", twice))
        story.at(5).scale(servers=1).happens("scaled")
        story.stepped(3).finish()
        no_member_was_ended(story)
        assert not [e for e in story.events if e["event"] == "cut"]


class Swapping:
    """Swaps two pushes of different blocks on one connection, once; then passes on all as it comes."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def __call__(self, frame: bytes, from_near: bool, held: list[bytes]) -> list[bytes]:
        if self.done.is_set() or not from_near:
            return [frame]
        if frame[3] != FrameKind.PUSH:
            return [*self._all(held), frame]
        if held and frame[BLOCK] != held[0][BLOCK]:
            self.done.set()
            return [frame, *self._all(held)]
        return [*self._all(held), *self._held(frame, held)]

    def _all(self, held: list[bytes]) -> list[bytes]:
        out = held[:]
        held.clear()
        return out

    def _held(self, frame: bytes, held: list[bytes]) -> list[bytes]:
        held.append(frame)
        return []


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", many(1))
def test_frames_that_are_swapped_on_one_connection_end_it_and_it_is_made_again(sync: bool, seed: int) -> None:
    """No stream does that by itself: frames have numbers, and after a gap nothing is believed."""
    row = "X1 reorder, within a connection" if sync else "X1 reorder, within a connection, async"
    story = Story(row, scheme="unix", lease_s=LEASE_S, sync=sync)
    with between(story, framed=True, link=("worker-0", "ps-0")) as proxies, story:
        story.at(3 + seed)
        for _ in range(3):
            swapping = Swapping()
            story.gone(lambda swapping=swapping: setattr(proxies["link"], "meddle", swapping))
            cut = story.until(lambda e: e["event"] == "cut" and e["reason"] == "replayed")
            assert swapping.done.is_set()
            assert (cut["name"], cut["peer"]) == ("ps-0", "worker-0")
            assert "what lies between is missing" in cut["why"]
            story.stepped(3)
        story.finish()
        no_member_was_ended(story)


@pytest.mark.parametrize("seed", many(1))
def test_a_link_that_never_heals_costs_the_newer_of_both_and_no_bit(seed: int) -> None:
    """Dead in one direction only; both still talk with the controller, and one of them must go."""
    story = Story("X1 worker-server: for good", scheme="unix", lease_s=LEASE_S)
    with between(story, link=("worker-1", "ps-0")) as proxies, story:
        story.at(3)
        story.gone(lambda: proxies["link"].freeze(from_near=seed % 2 == 0))
        left = story.until(lambda e: e["event"] == "left" and not e["expected"])
        assert left["name"] == "worker-1"
        story.until(lambda e: e["event"] == "ready" and e["name"] == "worker-2")
        story.stepped(3)
        proxies["link"].thaw()
        story.finish()
        assert not [e for e in story.events if e["event"] == "goes_back"]


@pytest.mark.parametrize("seed", many(1))
def test_a_link_between_servers_may_break_or_freeze_while_blocks_move(seed: int) -> None:
    story = Story("X1 server-server: cut, frozen", scheme="unix", lease_s=LEASE_S, steps=200, save_every=5)
    with between(story, link=("ps-0", "ps-2"), other=("ps-1", "ps-3")) as proxies, story:
        proxies["link"].delay_s = 0.1 + 0.1 * (seed % 4)  # so that it freezes amid the stream
        story.at(3).scale(servers=1).happens("migration")
        story.gone(proxies["link"].freeze)
        story.happens("scaled", "dropped", "goes_back")
        proxies["link"].thaw()
        story.stepped(3)
        story.scale(servers=1).happens("migration")
        story.gone(proxies["other"].cut)
        story.happens("scaled", "dropped", "goes_back")
        story.stepped(3).finish()


@pytest.mark.parametrize("seed", many(1))
def test_servers_that_cannot_reach_each_other_for_good_do_not_share_blocks(seed: int) -> None:
    """The destination is ended, the source takes back what it had not got; another one comes and gets its share."""
    story = Story("X1 server-server: for good", scheme="unix", lease_s=LEASE_S, steps=200, save_every=5)
    with between(story, link=("ps-0", "ps-2")) as proxies, story:
        proxies["link"].delay_s = 0.2 * (seed % 3)
        story.at(3).scale(servers=1).happens("migration")
        story.gone(lambda: proxies["link"].freeze(from_near=[True, False, None][seed % 3]))
        story.until(lambda e: e["event"] == "left" and e["name"] == "ps-2")
        story.until(lambda e: e["event"] == "owns" and e["name"] == "ps-3")
        story.stepped(3)
        proxies["link"].thaw()
        story.finish()


@pytest.mark.parametrize("seed", many(1))
def test_a_link_to_the_controller_may_break_and_freeze_and_no_member_is_ended(seed: int) -> None:
    """Training does not notice; a member that was cut off comes back and is told what it has missed."""
    rng = np.random.default_rng(seed)
    story = Story("X1 controller: cut, frozen", scheme="unix", lease_s=LEASE_S, steps=160)
    with between(story, ps=("ps-0", "controller"), worker=("worker-1", "controller")) as proxies, story:
        story.at(3)
        for name in ("ps", "worker"):
            story.gone(proxies[name].cut).happens("rejoined")
            story.stepped(3)
        story.scale(servers=1, workers=1).happens("registration")
        wait(float(rng.uniform(0, 0.3)))
        story.gone(proxies["ps"].cut).gone(proxies["worker"].cut)
        due = {("rejoined", "ps-0"), ("rejoined", "worker-1"), ("scaled", None)}  # in whatever order
        story.until(lambda e: due.discard((e["event"], e.get("name"))) or not due)
        for name, direction in (("worker", None), ("ps", True), ("ps", False)):
            story.gone(lambda name=name, direction=direction: proxies[name].freeze(from_near=direction))
            wait(1.3 * LEASE_S)
            proxies[name].thaw()
            story.happens("rejoined")
            story.stepped(3)
        story.finish()
        no_member_was_ended(story)


@pytest.mark.parametrize("seed", many(1))
def test_a_member_that_stands_still_below_the_lease_is_not_dead_and_beyond_it_is_replaced(seed: int) -> None:
    """Any member, worker or server."""
    rng = np.random.default_rng(seed)
    with Story("X2 stopped below the lease", lease_s=LEASE_S, save_every=5, steps=240) as story:
        story.at(3)
        for name in ("worker-0", "ps-0"):
            with story.stopped(story.pids[name]):
                wait(float(rng.uniform(0.1, 0.5)) * LEASE_S)
            story.stepped(3)
        assert not any(e["event"] in ("goes_back", "missed", "rejoined") for e in story.events)
        story.row = "X2 stopped beyond the lease"
        for name in ("worker-0", "ps-0"):
            with story.gone().stopped(story.pids[name]):
                story.until(lambda e, name=name: e["event"] == "left" and e["name"] == name)
            story.until(
                lambda e, name=name: e["event"] == "joined" and e["role"] == ("worker", "server")[name == "ps-0"]
            )
        story.stepped(3)
        story.stepped(5).scale(servers=1).happens("scaled")
        story.stepped(3).finish()
        left = [e["name"] for e in story.events if e["event"] == "left" and not e["expected"]]
        assert left == ["worker-0", "ps-0"]


@pytest.mark.parametrize("seed", many(1))
def test_of_two_controllers_the_second_names_the_first_and_ends(seed: int) -> None:
    """M2: the first one stands still, and goes on when the second has given up; it finds all as it left it."""
    with Story("M2 second controller", lease_s=LEASE_S, steps=160) as story:
        story.at(3 + seed)
        with story.gone().stopped(story.job.pid):
            second = subprocess.run(
                [sys.executable, "-m", "labkit.elastic.controller.process", str(story.folder)],
                capture_output=True, text=True, timeout=HANG_S, check=False,
            )  # fmt: skip
            wait(1.2 * LEASE_S)
        assert second.returncode == 1
        assert f"process {story.job.pid} is the controller of the job in {story.folder}: end it first." in second.stderr
        story.stepped(5).scale(servers=1).happens("scaled")
        story.stepped(3).finish()
        no_member_was_ended(story)

"""W1, P1, P2, M1: kill -9 of any process at any point; the same bits, every effect once, no process left."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.fault_injection import InjectedFault
from tests.elastic.chaos.story import Story, many

SOURCE = ["announced", "stream", "streaming", "acknowledged"]
DESTINATION = ["arrived", "placed", "replied"]
STATE = ["started", "write", "wrote", "written"]
PHASES = ["registration", "assignment", "tell.hand_over", "migration", "update", "scaled"]


def at(what: str, names: list[str]) -> list[str]:
    return [f"{what}.{name}" for name in names]


MOVING = [("ps-*", at("ps.handover", SOURCE)), ("ps-*", at("ps.install", DESTINATION)),
          ("controller", at("controller", [*PHASES, *STATE]))]  # fmt: skip
POINTS = {
    "handover": MOVING,
    "suspend": [*MOVING, ("worker-*", ["worker.push.half"])],
    "checkpoint": [
        ("controller", at("controller", ["tell.PauseAtVersion", "tell.CopyBlocks", "saved", "tell.BeginEra", *STATE])),
        ("controller", at("controller", ["update", "tell.BeginTraining", "began"])),
        ("ps-*", at("ps.load", DESTINATION)),
    ],
}


@pytest.mark.parametrize("seed", many(1))
def test_a_worker_that_dies_before_amid_or_after_its_push_costs_no_bit(seed: int) -> None:
    """One after the other: also the one that was started for the one before."""
    rng = np.random.default_rng(seed)
    points = rng.permutation(["worker.push", "worker.push.half", "worker.pushed", "worker.stepped"])[:2]
    victims = ["worker-0", "worker-3"]
    faults = [InjectedFault(v, str(point), int(rng.integers(2, 9))) for v, point in zip(victims, points, strict=True)]
    with Story("W1 worker", faults=faults, workers=3, steps=240) as story:
        for number in range(len(faults)):
            story.struck(number)
        story.until(lambda e: e["event"] == "ready" and e["name"] == "worker-4")
        story.stepped().finish()
        assert not any(e["event"] == "goes_back" for e in story.events)


@pytest.mark.parametrize("seed", many(1))
def test_an_only_worker_may_die_too(seed: int) -> None:
    """The parameters of its step die with it: training goes back to a checkpoint."""
    faults = [InjectedFault("worker-0", "worker.push.half", 8 + seed), InjectedFault("worker-1", "worker.push", 1)]
    with Story("W1 only worker", faults=faults, workers=1, save_every=5) as story:
        story.struck(0).struck(1)
        story.happens("began")
        story.stepped().finish()


@pytest.mark.parametrize("seed", many(1))
def test_a_server_that_dies_idle_amid_a_sum_or_a_reply_costs_steps_but_no_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = ["ps.updated", "ps.aggregating", "ps.replying", "ps.load.arrived"]
    faults = [
        InjectedFault("ps-0", points[0], int(rng.integers(20, 99))),
        InjectedFault("ps-1", points[1], int(rng.integers(99, 300))),
        InjectedFault("ps-2", points[2], int(rng.integers(20, 99))),
        InjectedFault("ps-4", points[3], 2),
    ]
    with Story("P1 server, checkpoint", faults=faults, save_every=5) as story:
        for number in range(3):
            story.struck(number)
        story.struck(3)
        story.happens("began")
        story.stepped().kill(next(iter(story.owners().values())))
        story.happens("goes_back")
        story.happens("began")
        story.stepped().finish()


@pytest.mark.parametrize("point", at("controller", ["started", "write", "wrote"]))
def test_a_controller_that_dies_before_its_first_state_leaves_no_member_in_the_way_of_the_next_ones(point: str) -> None:
    """Members of both have the same names, and listen under them."""
    with Story("M1 controller, before its first state", faults=[InjectedFault("controller", point)]) as story:
        story.struck(0)
        story.happens("began")
        story.stepped().finish()


@pytest.mark.parametrize("strategy", list(POINTS))
@pytest.mark.parametrize("seed", many(1))
def test_whichever_process_dies_while_it_scales_it_costs_no_bit(strategy: str, seed: int) -> None:
    """The old owner, the new one, the controller, one after the other at points that the seed draws.

    Either the move is undone, or done, or training goes back: never has a block two owners, never does it hang.
    """
    rng = np.random.default_rng(seed)
    faults = [
        InjectedFault(process, str(rng.choice(points)), int(rng.integers(1, 3))) for process, points in POINTS[strategy]
    ]
    with Story(f"P2 {strategy}", faults=faults, save_every=5, steps=200) as story:
        for number in rng.permutation(len(faults)):
            scale_until_struck(story, int(number), strategy)
        story.finish()


def scale_until_struck(story: Story, number: int, strategy: str) -> None:
    """Add a server and take one away, in turns, until a fault has happened and training goes on."""
    for servers in (1, -1, 1, -1, 1):
        if number in fault.fired(story.folder):
            story.stepped(2)
            return
        story.stepped(2).scale(servers=servers, strategy=strategy)
        story.happens("scaled", "dropped", "taken_over")
    story.struck(number)

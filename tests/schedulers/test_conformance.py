"""Every scheduler passes the public suite, and the suite catches what it is there to catch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings

from labkit.core import Gangs, Placement, Snapshot
from labkit.placers import Even, FirstFit, LeastAllocated, MachineFirst, Pack, Spread, WholeGang
from labkit.schedulers import available, make
from labkit.schedulers.base import requested_gangs
from labkit.testing import ConformanceError, DecisionScene, check_answer, check_placer, check_scheduler
from labkit.testing.scenes import random_scenes
from labkit.testing.strategies import scenes


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize(("n_scenes", "seed"), [(4, 1), (10, 2), (10, 3)])
def test_every_scheduler_passes_the_suite(name: str, n_scenes: int, seed: int) -> None:
    check_scheduler(make(name), n_scenes=n_scenes, seed=seed)


@pytest.mark.parametrize("name", available())
@given(scene=scenes())
@settings(max_examples=settings().max_examples // 3)
def test_every_answer_can_be_carried_out_and_is_the_same_twice(name: str, scene: DecisionScene) -> None:
    check_answer(make(name), scene=scene)


@pytest.mark.parametrize("name", ["constant", "drf", "fifo", "las", "lookahead", "optimus", "sjf", "srtf", "tetris"])
@pytest.mark.parametrize("placer", [FirstFit(), Spread(), Pack(), Even(), Even(keep_order=True)], ids=repr)
def test_every_scheduler_composes_with_every_placer(name: str, placer: object) -> None:
    """On the three largest scenes: each of the two passes the whole suite by itself."""
    check_scheduler(make(name, placer=placer), scenes=list(random_scenes(seed=3))[-3:])


@pytest.mark.parametrize(
    "placer",
    [FirstFit(), Spread(), Pack(), Even(), Even(keep_order=True), WholeGang(), LeastAllocated(), MachineFirst()],
    ids=repr,
)
@pytest.mark.parametrize("seed", range(4))
def test_every_placer_passes_the_suite(placer: object, seed: int) -> None:
    check_placer(placer, seed=seed)


class Honest:
    def schedule(self, snapshot: Snapshot) -> Placement:
        return FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting))


class Lazy:
    def schedule(self, snapshot: Snapshot) -> Placement:
        return Placement.nothing()


class Peeking:
    def schedule(self, snapshot: Snapshot) -> Placement:
        shortest_first = np.argsort(snapshot.table.true_steps[snapshot.waiting], kind="stable")
        return FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting[shortest_first][:1]))


class Clairvoyant(Honest):
    """Starts nothing while a longer job is to come."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        waiting, steps = snapshot.waiting, snapshot.table.total_steps
        longest = steps[waiting].max(initial=0.0) >= steps.max()
        return FirstFit().place(snapshot, requested_gangs(snapshot, waiting[:1] if longest else waiting))


class Cutting:
    """Gives every job one worker, also those that cannot train with fewer than they asked for."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        table, jobs = snapshot.table, snapshot.waiting
        return FirstFit().place(snapshot, Gangs.of(jobs, n_workers=1, n_ps=np.minimum(table.n_ps[jobs], 1)))


class Silent:
    def schedule(self, snapshot: Snapshot) -> None:
        return None


class Meddling(Honest):
    def schedule(self, snapshot: Snapshot) -> Placement:
        snapshot.table.weight[0] += 1
        return super().schedule(snapshot)


class Greedy:
    """Gives all jobs everything, all on device group 0."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        jobs = snapshot.jobs.number
        return Placement.of(jobs, job=jobs, group=0, count=snapshot.table.max_workers[jobs])


class Ghosts(Honest):
    def schedule(self, snapshot: Snapshot) -> Placement:
        placement = super().schedule(snapshot)
        return replace(placement, set_jobs=np.append(placement.set_jobs, len(snapshot.table)))


@dataclass
class Moody(Honest):
    calls: int = 0

    def schedule(self, snapshot: Snapshot) -> Placement:
        self.calls += 1
        return super().schedule(snapshot) if self.calls % 2 else Placement.nothing()


@pytest.mark.parametrize(
    ("scheduler", "complaint"),
    [
        (Lazy(), "stalls although job"),
        (Peeking(), "looks at what only the simulator may know: a scheduler cannot read true_steps.*read total_steps"),
        (Clairvoyant(), "looks at jobs that have not arrived yet"),
        (Cutting(), "it is rigid and trains with the"),
        (Silent(), r"schedule\(\) returns None; expected a Placement"),
        (Meddling(), "table.weight is no longer the same"),
        (Greedy(), "overfills device group 0"),
        (Ghosts(), "not among snapshot.jobs.number"),
        (Moody(), "differently the second time"),
    ],
)
def test_the_suite_catches(scheduler: object, complaint: str) -> None:
    check_scheduler(Honest())
    with pytest.raises(ConformanceError, match=complaint) as caught:
        check_scheduler(scheduler)
    assert str(caught.value).startswith(type(scheduler).__name__)
    assert str(caught.value).endswith(".")


def test_a_scheduler_that_spoils_its_scenes_spoils_those_of_no_other() -> None:
    before = [scene.jobs.weight.tolist() for scene in random_scenes(seed=5, pairs=True)]
    with pytest.raises(ConformanceError, match=r"table\.weight is no longer the same"):
        check_scheduler(Meddling(), seed=5)
    assert [scene.jobs.weight.tolist() for scene in random_scenes(seed=5, pairs=True)] == before


def test_a_class_in_place_of_a_scheduler_is_told_so() -> None:
    with pytest.raises(ConformanceError, match=r"^Honest is a class; make one: Honest\(\)\.$"):
        check_scheduler(Honest)  # type: ignore[arg-type]


def test_a_scheduler_without_the_method_is_told_what_it_lacks() -> None:
    class Nothing:
        pass

    with pytest.raises(ConformanceError, match="Nothing has no method schedule; expected"):
        check_scheduler(Nothing())  # type: ignore[arg-type]

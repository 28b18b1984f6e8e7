"""Two jobs on the same GPUs: what they hold, how fast they are, and what becomes of the one that stays behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Jobs, Kind, Placement, PlacementError
from labkit.core.resources import GPUS, Bools, Floats, amounts
from labkit.core.running import Running
from labkit.experiment import Session, every_slot
from labkit.live.board import Board
from labkit.results import gantt, heat_map, job_table, utilisation
from labkit.simulator import Faults, Losses, Overheads, Paced, Replay, Simulator, Variation
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene, check_backend, random_scene, same_events
from labkit.testing.strategies import scenes
from labkit.topology import no_network

CLUSTER = no_network(2)  # 2 machines of 2 sockets with 2 GPUs each


class Halves:
    """One step a second alone; beside another job 3/5 of it for the even jobs, 2/5 for the odd ones."""

    pairs, local = True, True

    def __init__(self, jobs: Jobs, *, crowd: bool = False) -> None:
        self.n, self.local = len(jobs), not crowd

    def speeds(self, running: Running) -> Floats:
        alone = 1.0 if self.local else 1 / len(running.job)
        return alone * np.where(running.partner < 0, 1.0, np.where(running.job % 2, 0.4, 0.6))

    def runs_on(self) -> Bools:
        return np.ones((self.n, 1), np.bool_)

    def durations_s(self) -> Floats:
        return np.full(self.n, np.nan)


def of(total_steps: Any, *, arrival_s: Any = 0.0, **columns: Any) -> Jobs:
    steps = np.asarray(total_steps, np.float64)
    return Jobs.of(arrival_s=np.broadcast_to(arrival_s, steps.shape), total_steps=steps, **columns)


def begin(jobs: Jobs, *, crowd: bool = False, **options: Any) -> Session:
    return Session(Simulator(jobs, CLUSTER, speed=Halves(jobs, crowd=crowd), **options))


def pair(a: int, b: int, *, group: int = 0, count: int = 1) -> Placement:
    return Placement.of([a, b], job=[a, b], group=group, count=count, partner=[b, a])


def alone(job: int, *, group: int = 0) -> Placement:
    return Placement.of([job], job=[job], group=group)


def story(rows: Any, *, since_s: float = 0.0) -> list[tuple[float, str, int, float]]:
    wanted = ~np.isin(rows["kind"], [Kind.PLACED, Kind.DECIDED, Kind.ARRIVED]) & (rows["time_s"] >= since_s)
    return [(float(r["time_s"]), Kind(r["kind"]).name, int(r["job"]), float(r["speed"])) for r in rows[wanted]]


def test_two_jobs_on_one_gpu_and_then_one_alone() -> None:
    """6 steps at 0.6 are done at 10 s; by then the other has 4 of 10 and needs 6 s more for the rest."""
    jobs = of([6, 10])
    run = begin(jobs)
    before = run.ledger.book.free.copy()
    run.step(pair(0, 1))
    snapshot = run.snapshot()
    assert run.now_s == 10
    assert snapshot.jobs.partner.tolist() == [-1]
    taken = before - snapshot.free
    assert taken[0].tolist() == [1, 1, 0]  # the GPU is its own now
    assert snapshot.jobs.speed.tolist() == [1]
    run.step(Placement.nothing())
    assert story(run.log.rows) == [
        (0, "STARTED", 0, 0.6), (0, "STARTED", 1, 0.4), (10, "COMPLETED", 0, 0), (10, "PROGRESSED", 1, 1),
        (16, "COMPLETED", 1, 0),
    ]  # fmt: skip
    table = job_table(run.log.rows, jobs)
    assert table["gpu_s"].tolist() == [5, 5 + 6]
    np.testing.assert_array_equal(run.ledger.attained_gpu_s(np.arange(2, dtype=np.int32), 16.0), [5, 11])
    assert gantt(run.log.rows, jobs, CLUSTER)[["job", "gpus", "start_s", "end_s"]].to_numpy().tolist() == [
        [0, 0.5, 0, 10], [1, 0.5, 0, 10], [1, 1, 10, 16],
    ]  # fmt: skip
    steps = utilisation(run.log.rows, jobs, CLUSTER)
    assert (steps["time_s"].tolist(), steps["gpus"].tolist()) == ([0, 10, 16], [1, 1, 0])


def test_a_pair_takes_its_gpus_once_and_its_cores_twice() -> None:
    jobs = of([60, 100], n_workers=2, worker_demand=amounts(gpus=1, cpus=2, memory_gb=3))
    run = begin(jobs)
    before = run.ledger.book.free.copy()
    run.backend.apply(pair(0, 1, group=2, count=2))
    assert (before - simulated(run)._truth.book.free).tolist() == [[0, 0, 0], [0, 0, 0], [2, 8, 12], [0, 0, 0]]


def simulated(run: Session) -> Any:
    return run.backend


def test_a_running_job_gets_a_partner_without_a_restart_and_loses_it_without_one() -> None:
    jobs = of([100, 100], arrival_s=[0, 30])
    run = begin(jobs, overheads=Overheads(5, 7, 3))
    run.step(alone(0))
    run.step(pair(0, 1))
    run.backend.advance(40, stop_at_event=False)
    run.backend.apply(Placement.of([1]))
    assert story(run.log.rows)[:3] == [(5, "STARTED", 0, 1), (30, "PROGRESSED", 0, 0.6), (35, "STARTED", 1, 0.4)]
    rows = run.log.rows
    placed = rows[(rows["kind"] == Kind.PLACED) & (rows["time_s"] == 30)]
    assert placed["job"].tolist() == [0, 1]
    assert placed["partner"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("decision", "left"),
    [
        (Placement.of([1]), [(20, "PREEMPTED", 1, 0), (20, "PROGRESSED", 0, 1)]),
        (alone(1, group=3), [(20, "RESCALED", 1, 1), (20, "PROGRESSED", 0, 1)]),
        (Placement.of([0, 1], job=[0], group=0), [(20, "PREEMPTED", 1, 0), (20, "PROGRESSED", 0, 1)]),
        (Placement.of([1, 0], job=[0], group=0), [(20, "PREEMPTED", 1, 0), (20, "PROGRESSED", 0, 1)]),
        (Placement.of([0, 1], job=[0, 1], group=0), [(20, "PROGRESSED", 0, 1), (20, "PROGRESSED", 1, 1)]),
        (Placement.of([0, 1], job=[0, 1], group=[1, 0]), [(20, "RESCALED", 0, 1), (20, "PROGRESSED", 1, 1)]),
        (pair(0, 1), []),
        (pair(1, 0), []),
        (pair(0, 1, group=1), [(20, "RESCALED", 0, 0.6), (20, "RESCALED", 1, 0.4)]),
    ],
)
def test_what_becomes_of_a_pair(decision: Placement, left: list[Any]) -> None:
    """A job that stays where it was goes on without an overhead; a pair that is named as it is, too."""
    run = begin(of([100, 100]))
    run.backend.apply(pair(0, 1))
    run.backend.advance(20, stop_at_event=False)
    rows = run.backend.apply(decision)
    assert story(rows) == left
    assert (rows["value"][0] > 0) == bool(left)


def test_partners_can_be_exchanged() -> None:
    """(0, 1) and (2, 3) become (0, 3) and (1 alone elsewhere); 2 keeps the GPU of the second pair."""
    run = begin(of([100, 100, 100, 100]))
    run._note(run.backend.apply(both := Placement.of(
        [0, 1, 2, 3], job=[0, 1, 2, 3], group=[0, 0, 1, 1], partner=[1, 0, 3, 2]
    )))  # fmt: skip
    assert len(both) == 4
    run._note(run.backend.advance(10, stop_at_event=False))
    change = Placement.of([0, 1, 3], job=[0, 1, 3], group=[0, 2, 0], partner=[3, -1, 0])
    rows = run.backend.apply(change)
    run._note(rows)
    assert story(rows) == [(10, "RESCALED", 1, 1), (10, "RESCALED", 3, 0.4), (10, "PROGRESSED", 2, 1)]
    assert run.snapshot().jobs.partner.tolist() == [3, -1, -1, 0]
    assert run.snapshot().free[:, GPUS].tolist() == [1, 1, 1, 2]
    np.testing.assert_array_equal(simulated(run)._truth.book.free, run.ledger.book.free)


def test_of_a_pair_that_completes_at_one_moment_neither_keeps_tasks() -> None:
    rows = begin(of([6, 4])).run(Asks(pair(0, 1)))
    assert story(rows)[2:] == [(10, "COMPLETED", 0, 0), (10, "COMPLETED", 1, 0)]


class Asks:
    """Gives one answer, and then nothing."""

    def __init__(self, placement: Placement) -> None:
        self.placements = [placement]

    def schedule(self, snapshot: Any) -> Placement:
        return self.placements.pop() if self.placements else Placement.nothing()


def test_speeds_that_depend_on_others_are_those_of_pairs_too() -> None:
    """Three jobs: a third of 0.6 and of 0.4 in the pair; the third job completes first."""
    run = begin(of([90, 90, 10]), crowd=True)
    both = Placement.of([0, 1, 2], job=[0, 1, 2], group=[0, 0, 1], partner=[1, 0, -1])
    rows = run.run(Asks(both))
    np.testing.assert_allclose([speed for *_, speed in story(rows)[:3]], [0.2, 0.4 / 3, 1 / 3])
    np.testing.assert_allclose([speed for *_, speed in story(rows, since_s=29)[1:3]], [0.3, 0.2])


def test_with_leases_a_pair_makes_the_steps_of_its_own_speed() -> None:
    """5 s: 3 steps and 2 steps; the first completes in the second lease, and its partner then needs less time."""
    rows = begin(of([4, 9]), lease_s=5).run(Asks(pair(0, 1)))
    assert story(rows)[:8] == [
        (0, "STARTED", 0, 0.6), (0, "STARTED", 1, 0.4), (5, "PAUSED", 0, 0), (5, "PAUSED", 1, 0),
        (5, "PROGRESSED", 0, 0.6), (5, "PROGRESSED", 1, 0.4), (5 + 1 / 0.6, "COMPLETED", 0, 0),
        (5 + 1 / 0.6, "PROGRESSED", 1, 1),
    ]  # fmt: skip
    end_s = 5 + 1 / 0.6 + (2 - 0.4 / 0.6)
    assert story(rows)[8][:3] == (pytest.approx(end_s), "PAUSED", 1)


class Times:
    """Stands in for a generator whose exponential times are given."""

    def __init__(self, first: Any, then: list[float]) -> None:
        self.first, self.then = np.array(first), then

    def spawn(self, n: int) -> list[Any]:
        return [self] * n

    def exponential(self, _scale: float, size: int | None = None) -> Any:
        return self.first.copy() if size else self.then.pop(0)


def test_when_a_machine_fails_both_jobs_of_a_pair_fail_or_the_one_with_a_task_there() -> None:
    """Job 1 has its PS on the other machine: it fails alone, and job 0 goes on alone."""
    jobs = of([100, 100], n_ps=[0, 1], worker_demand=amounts(gpus=1, cpus=1))
    placement = Placement.of(
        [0, 1], job=[0, 1, 1], role=[0, 0, 1], group=[0, 0, 2], partner=[1, 0]
    )  # fmt: skip
    for machine, told in ((1, [("FAILED", 1), ("LEFT", -1), ("PROGRESSED", 0)]), (0, [("FAILED", 0), ("FAILED", 1)])):
        first = [1e12, 1e12]
        first[machine] = 10
        run = begin(jobs, faults=Faults(1, 1), rng=Times(first, [1e12] * 9))
        run.step(placement)
        assert [row[1:3] for row in story(run.log.rows, since_s=10)][: len(told)] == told
        np.testing.assert_array_equal(simulated(run)._truth.book.free, run.ledger.book.free)
        assert run.ledger.book.free[:2, GPUS].tolist() == ([1, 2] if machine else [0, 0])


@pytest.mark.parametrize(
    ("placement", "complaint"),
    [
        (Placement.of([0], job=[0], group=0, partner=[1]), "share with job 1; name both in set_jobs"),
        (Placement.of([0, 1], job=[0, 1], group=0, partner=[1, -1]), "job 0 share with job 1; name both"),
        (
            Placement.of([0, 1, 2], job=[0, 1, 2], group=0, partner=[1, 2, 0]),
            "name both in set_jobs, each as the other",
        ),
        (Placement.of([0], job=[0], group=0, partner=[0]), "job 0 share with job 0; name both"),
        (Placement.of([0], job=[0], group=0, partner=[99]), "job 0 share with job 99; name both"),
        (Placement.of([0], job=[0], group=0, partner=[-7]), "job 0 share with job -7; name both"),
        (Placement.of([0, 1], partner=[1, 0]), "job 0 share with job 1, but their workers sit in different places"),
        (Placement.of([0, 1], job=[0, 1], group=[0, 1], partner=[1, 0]), "their workers sit in different places"),
        (Placement.of([0, 1], job=[0, 1], group=0, count=[1, 2], partner=[1, 0]), "workers sit in different places"),
        (Placement.of([0, 3], job=[0, 3], group=0, partner=[3, 0]), "job 3; their workers have 1 and 2 GPUs"),
        (Placement.of([4, 5], job=[4, 5], group=0, partner=[5, 4]), "their workers have 0 and 0 GPUs"),
        (pair(0, 1, count=3), "job 1 does not fit device group 0 .3 tasks."),
        (
            Placement(np.array([0, 1], np.int32), *[np.empty(0, np.int32)] * 4, np.array([1], np.int32)),
            "has 1 partners",
        ),
    ],
)
def test_a_pair_that_cannot_be_is_refused_and_changes_nothing(placement: Placement, complaint: str) -> None:
    gpus = np.array([1, 1, 1, 2, 0, 0])
    run = begin(of([100] * 6, worker_demand=amounts(gpus=gpus, cpus=1)))
    with pytest.raises(PlacementError, match=complaint):
        run.backend.apply(placement)
    assert simulated(run)._truth.book.free.tolist() == CLUSTER.capacity.tolist()
    assert story(run.backend.apply(pair(0, 1))) == [(0, "STARTED", 0, 0.6), (0, "STARTED", 1, 0.4)]


def test_a_speed_model_that_knows_no_pairs_gets_none() -> None:
    jobs = of([100, 100], duration_s=100)
    backend = Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER))
    backend.advance(0.0, stop_at_event=False)
    with pytest.raises(PlacementError, match="job 0 is to share its GPUs, but Recorded does not know how fast"):
        backend.apply(pair(0, 1))
    assert story(backend.apply(Placement.of([0, 1], job=[0, 1], group=0, partner=[-1, -1])))


def disturbed(scene: DecisionScene, kind: str) -> Simulator:
    options: dict[str, Any] = {"rng": np.random.default_rng(7), "lease_s": 40 if "leases" in kind else None}
    if "all" in kind:
        options |= {
            "overheads": Overheads(5, 20, 3),
            "variation": Variation(120, error=0.4, straggler_probability=0.2),
            "faults": Faults(2000, 150, 60),
            "losses": Losses(np.tile([0.2, 1.0, 0.1], (len(scene.jobs), 1)), report_s=70, noise=0.05),
        }
    return scene.simulator(**options)


KINDS = ("none", "all", "leases", "all, leases")


@given(scene=scenes(max_jobs=8), seed=st.integers(0, 99), kind=st.sampled_from(KINDS), slots=st.booleans())
@settings(max_examples=20)
def test_simulated_equals_paced_equals_replayed_with_pairs(
    scene: DecisionScene, seed: int, kind: str, slots: bool
) -> None:
    cadence = every_slot(100) if slots else None
    run = Session(disturbed(scene, kind), cadence=cadence, runs_on=scene.runs_on)
    paced = Session(Paced(disturbed(scene, kind), speedup=1e9), cadence=cadence, runs_on=scene.runs_on)
    board = Board(scene.jobs, scene.cluster)
    run.observers.append(board.fold)
    board.fold(run.log.rows)
    one, two = (Chaos(np.random.default_rng(seed), pairs=True) for _ in range(2))
    seen = []
    while not run.done and len(seen) < 25:
        snapshot = run.snapshot()
        seen.append(snapshot.freeze())
        np.testing.assert_array_equal(simulated(run)._truth.book.free, run.ledger.book.free)
        np.testing.assert_array_equal(
            simulated(run)._truth.book.allocations["partner"], run.ledger.book.allocations["partner"]
        )
        there = snapshot.up[scene.cluster.group_machine]
        held = np.where(there, scene.cluster.capacity[:, GPUS] - snapshot.free[:, GPUS], 0)
        np.testing.assert_allclose(
            [sum(board.tasks.get(g, {}).values()) for g in range(len(held))], held, atol=1e-9
        )  # fmt: skip
        run.step(one.schedule(snapshot))
        paced.step(two.schedule(paced.snapshot()))
    assert same_events(run.log.rows, paced.log.rows)
    again = Session(Replay(scene.jobs, scene.cluster, recorded=run.log.rows), runs_on=scene.runs_on)
    for then in seen:
        np.testing.assert_equal(again.snapshot().freeze(), then)
        again.step(Placement.nothing())
    rows, jobs = run.log.rows, np.arange(len(scene.jobs), dtype=np.int32)
    end_s = float(rows["time_s"].max())
    attained = run.ledger.attained_gpu_s(jobs, end_s)
    table = job_table(rows, scene.jobs)
    np.testing.assert_allclose(table["gpu_s"], attained[table["job"]], atol=1e-6)
    cells = heat_map(rows, scene.jobs, scene.cluster, n_bins=5)
    np.testing.assert_allclose((cells["gpus"] * (cells["end_s"] - cells["start_s"])).sum(), attained.sum(), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_simulator_that_knows_pairs_passes_the_suite_with_pairs(seed: int, kind: str) -> None:
    scene = random_scene(np.random.default_rng(seed), n_types=1, n_jobs=3 + 3 * seed)
    rows = check_backend(lambda: disturbed(scene, kind), seed=seed, pairs=True)
    if seed > 1:
        assert (rows["partner"] >= 0).any()

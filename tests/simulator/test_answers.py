"""What schedulers, placers and speed models may not answer: refused in one line, at the first decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.core import Gangs, InputError, Jobs, Placement, PlacementError, Running, Snapshot
from labkit.experiment import Experiment, Session, simulate
from labkit.schedulers import make
from labkit.speed.recorded import Recorded
from labkit.topology import no_network

JOBS = Jobs.of(arrival_s=[0, 0, 9], total_steps=[60, 60, 90], duration_s=60, id=["a", "b", "c"])
CLUSTER = no_network(1)


class Mine(Recorded):
    """A speed model of one's own."""

    def __init__(self, answer: Callable[[np.ndarray], object]) -> None:
        super().__init__(JOBS, CLUSTER)
        self.answer = answer

    def speeds(self, running: Running) -> Any:
        return self.answer(super().speeds(running))


def at(position: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def answer(speeds: np.ndarray) -> np.ndarray:
        speeds[position % len(speeds)] = value
        return speeds

    return answer


WRONG_SPEEDS: list[tuple[Callable[[np.ndarray], object], str]] = [
    (
        lambda s: s[:1],
        r"gives an array of float64 with the shape \(1,\); expected float64 and \(2,\): .* 2 jobs, .*a\.",
    ),
    (lambda s: s[:, None], r"with the shape \(2, 1\)"),
    (lambda s: 1.0, r"gives 1\.0; expected an array of 2 float64"),
    (lambda s: list(s), r"gives \[.*\]; expected an array of 2 float64"),
    (lambda s: None, "gives None; expected an array of 2 float64"),
    (lambda s: s.astype(np.float32), r"an array of float32 with the shape \(2,\); expected float64"),
    (lambda s: s.astype(object), "an array of object"),
    (lambda s: s.astype(np.int64), "an array of int64"),
    (at(1, np.inf), r"gives job b inf steps per second; expected a finite number >= 0"),
    (at(1, np.nan), "gives job b nan steps per second"),
    (at(0, -np.inf), "gives job a -inf steps per second"),
    (at(0, -0.5), r"gives job a -0\.5 steps per second"),
]


@pytest.mark.parametrize(("answer", "told"), WRONG_SPEEDS)
def test_a_speed_model_that_answers_nonsense_is_refused_at_the_first_decision(answer: Any, told: str) -> None:
    """One value for three jobs gave a mean JCT of 100, inf one of 0."""
    session = Session(Experiment.of(JOBS, cluster=CLUSTER, speed=Mine(answer)).simulator())
    with pytest.raises(InputError, match=rf"^speed model Mine: speeds\(\) .*{told}") as caught:
        session.run(make("fifo"))
    assert "\n" not in str(caught.value)
    assert session.n_decisions == 0


@pytest.mark.parametrize("scheduler", ["optimus", "gavel_las"])
def test_nonsense_is_refused_where_speeds_are_measured_before_the_run(scheduler: str) -> None:
    grows = JOBS.with_columns(max_workers=np.array([2, 2, 2], np.int32))
    with pytest.raises(InputError, match=r"^speed model Mine: speeds\(\) gives job a inf steps per second"):
        simulate(grows, cluster=CLUSTER, speed=Mine(at(0, np.inf)), scheduler=scheduler)


def test_what_rounding_leaves_below_zero_is_zero() -> None:
    """Interpolations between measurements are about -4e-13 where one failed."""
    session = Session(Experiment.of(JOBS, cluster=CLUSTER, speed=Mine(at(0, -4e-13))).simulator())
    session.step(make("fifo").schedule(session.snapshot()))
    assert session.n_decisions == 1


class Everywhere(Recorded):
    def __init__(self, table: object) -> None:
        super().__init__(JOBS, CLUSTER)
        self.table = table

    def runs_on(self) -> Any:
        return self.table


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (np.ones((2, 1), np.bool_), r"returns \(2, 1\) of bool; expected an array of bool with the shape \(3, 1\)"),
        (np.ones((3, 1)), r"returns \(3, 1\) of float64"),
        ([True] * 3, r"returns \[True, True, True\]"),
        (np.array([[True], [False], [True]]), "job b runs on no device type of the cluster"),
    ],
)
def test_a_table_of_device_types_of_the_wrong_kind_is_refused(table: object, told: str) -> None:
    with pytest.raises(InputError, match=rf"^speed model Everywhere: .*{told}"):
        simulate(JOBS, cluster=CLUSTER, speed=Everywhere(table), scheduler="fifo")


class Answering:
    """A scheduler, or a placer, that answers always the same."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def schedule(self, snapshot: Snapshot) -> Any:
        return self.answer

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Any:
        return self.answer


INTS, ROLES = np.zeros(1, np.int32), np.zeros(1, np.int8)
WRONG_PLACEMENTS: list[tuple[object, str]] = [
    (None, "returns None; expected a Placement, and Placement.nothing() where nothing changes."),
    ([0], "returns [0]; expected a Placement"),
    (Gangs.of([0], n_workers=1), "returns Gangs("),
    (Placement([0], INTS, ROLES, INTS, INTS), "whose set_jobs is [0]; expected a one-dimensional array"),  # type: ignore[arg-type]
    (Placement(INTS, INTS, ROLES, INTS, INTS + 0.5), "whose count is array([0.5]); expected"),  # type: ignore[arg-type]
    (Placement(INTS, INTS, ROLES, INTS, INTS[:0]), "different lengths: job 1, role 1, group 1, count 0."),
    (Placement(INTS, INTS, ROLES, INTS, INTS, np.zeros(2, np.int32)), "sets 1 jobs and has 2 partners"),
]


@pytest.mark.parametrize(("answer", "told"), WRONG_PLACEMENTS)
def test_an_answer_that_is_no_placement_is_told_in_one_line(answer: object, told: str) -> None:
    """It was "'NoneType' object has no attribute 'set_jobs'"."""
    with pytest.raises(PlacementError) as caught:
        simulate(JOBS, cluster=CLUSTER, scheduler=Answering(answer))
    assert str(caught.value).startswith("Answering.schedule() returns ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheduler", ["fifo", "fifo(backfill=True)", "srtf", "las", "drf", "tetris", "optimus"])
def test_the_answer_of_a_placer_is_told_as_the_placers(scheduler: str) -> None:
    with pytest.raises(PlacementError, match=r"^Answering\.place\(\) returns None; expected a Placement"):
        simulate(JOBS, cluster=CLUSTER, scheduler=make(scheduler, placer=Answering(None)))

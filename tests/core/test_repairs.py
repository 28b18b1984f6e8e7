"""Repairs and reasons: what a placement may ask for beside tasks, what comes of it, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs, Kind, Ledger, Placement, PlacementError, Quantity, Reason, Repair, Snapshot, repairs_of
from labkit.core.events import Events, events, joined
from labkit.core.trial import Trial
from labkit.experiment import Session
from labkit.experiment.cadence import every_slot
from labkit.simulator import Overheads, Paced, Replay, Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network

CLUSTER = no_network(2)
JOBS = Jobs.of(arrival_s=[0, 0], total_steps=100, duration_s=100, n_workers=2, n_ps=2, max_workers=4, max_ps=4)
START = Placement.of([0], job=[0, 0], role=[0, 1], group=0, count=2, reasons=[Reason(0, "first come")])


def session(**options: object) -> Session:
    return Session(Simulator(JOBS, CLUSTER, speed=Recorded(JOBS, CLUSTER), **options), cadence=every_slot(10))


def repaired(*rows: tuple[int, int, int, int]) -> Placement:
    return Placement.of([], repairs=repairs_of(rows))


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (repaired((7, 1, 0, Repair.REPLACE)), "the placement repairs job 7, which is not there"),
        (repaired((1, 1, 0, Repair.REPLACE)), "the placement repairs job 1, which holds no tasks"),
        (repaired((0, 1, 2, Repair.REPLACE)), "REPLACE of role 1, task 2 of job 0; it has 2 tasks of that role"),
        (repaired((0, 0, -1, Repair.REPLACE)), "REPLACE of role 0, task -1 of job 0; it has 2 tasks of that role"),
        (repaired((0, 0, -1, Repair.BALANCE)), "BALANCE of role 0, task -1 of job 0; expected role 1 and task -1"),
        (repaired((0, 1, 0, 5)), "repair 5 of role 1, task 0 of job 0; expected kind 0"),
        (repaired((0, 3, 0, Repair.REPLACE)), "expected role 0 or 1"),
        (repaired(*[(0, 1, 0, Repair.REPLACE)] * 2), "REPLACE of role 1, task 0 of job 0 twice"),
        (Placement.of([0], repairs=repairs_of([(0, 1, 0, Repair.REPLACE)])), "repairs job 0, which holds no tasks"),
        (Placement.of([], reasons=[Reason(9, "why not")]), "a reason for job 9 (why not); expected a job from 0 to 1"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line_and_changes_nothing(placement, told):
    running = session()
    running.step(START)
    before = len(running.log), running.now_s, list(running.reasons)
    with pytest.raises(PlacementError) as refused:
        running.step(placement)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (len(running.log), running.now_s, list(running.reasons)) == before


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"repairs": [1]}, "repairs are [1]; expected an array as repairs_of"),
        ({"reasons": ["x"]}, "reasons are ('x',)"),
    ],
)
def test_repairs_and_reasons_of_another_kind_are_told(odd, told):
    with pytest.raises(PlacementError, match="schedule") as refused:
        session().step(Placement.of([], **odd))
    assert told in str(refused.value)


def test_a_repair_takes_what_a_rescale_takes():
    running = session(overheads=Overheads(rescale_s=7))
    running.step(START)
    rows = running.backend.apply(repaired((0, 1, 1, Repair.REPLACE)))
    assert [Kind(kind).name for kind in rows["kind"]] == ["DECIDED", "REPAIRED", "PAUSED"]
    assert rows[1][["job", "role", "task", "value"]].tolist() == (0, 1, 1, Repair.REPLACE)
    assert rows["value"][0] == 0  # no job's gang was set
    after = running.backend.advance(np.inf, stop_at_event=True)
    assert [(Kind(row["kind"]).name, row["time_s"]) for row in after][-2:] == [("RESCALED", 17), ("COMPLETED", 107)]


def test_a_job_that_is_placed_and_repaired_is_placed_first():
    running = session(overheads=Overheads(start_s=5, rescale_s=7))
    both = Placement.of(
        [0], job=[0, 0], role=[0, 1], group=0, count=[2, 3], repairs=repairs_of([(0, 1, 2, Repair.REPLACE)])
    )
    rows = running.backend.apply(both)
    assert [Kind(kind).name for kind in rows["kind"]] == ["DECIDED", "PLACED", "PLACED", "REPAIRED"]
    assert running.backend.advance(6, stop_at_event=False)["time_s"].tolist() == [5], "its start takes 5 s, no more"


def test_reasons_are_numbered_and_stand_behind_their_decision():
    running = session()
    first = running.step(Placement.of([0], job=[0, 0], role=[0, 1], group=0, count=2, reasons=[Reason(0, "a")]))
    second = running.step(
        Placement.of([1], job=[1, 1], role=[0, 1], group=2, count=2, reasons=[Reason(1, "b"), Reason(1, "a")])
    )
    told = joined([first, second])
    told = told[told["kind"] == Kind.EXPLAINED]
    assert told[["job", "value"]].tolist() == [(0, 0.0), (1, 1.0), (1, 0.0)]
    assert running.reasons == ["a", "b"]


def test_reasons_alone_are_nothing_that_happens():
    """A scheduler that explains why it does nothing stalls all the same."""
    running = Session(Simulator(JOBS, CLUSTER, speed=Recorded(JOBS, CLUSTER)), on_stall="stop")
    running.step(Placement.of([], reasons=[Reason(0, "it can wait")]))
    assert running.stalled.startswith("2 jobs wait for ever")


def test_joined_placements_have_all_repairs_and_reasons():
    both = Placement.joined([START, repaired((1, 1, -1, Repair.BALANCE)), Placement.nothing()])
    assert both.repairs.tolist() == [(1, 1, -1, Repair.BALANCE)]
    assert both.reasons == START.reasons


def test_a_trial_hands_repairs_and_reasons_on():
    running = session()
    running.step(START)
    trial = Trial(running.snapshot())
    trial.replace(0, 1, 1)
    trial.balance(0)
    trial.explain(0, "ps-1 is slow")
    placement = trial.placement()
    assert placement.repairs.tolist() == [(0, 1, 1, Repair.REPLACE), (0, 1, -1, Repair.BALANCE)]
    assert [(reason.job, reason.text) for reason in placement.reasons] == [(0, "ps-1 is slow")]
    assert not len(placement.set_jobs)


def test_a_replay_tells_what_was_recorded_and_not_what_is_answered():
    running = session()
    while not running.done:
        waiting = running.snapshot().waiting[:1].tolist()
        job = [*waiting, *waiting]
        why = [Reason(one, f"job {one} is next") for one in waiting]
        role = [0, 1][: len(job)]
        running.step(Placement.of(waiting, job=job, role=role, group=[2 * one for one in job], count=2, reasons=why))
    rows = running.log.rows
    again = Session(Paced(Replay(JOBS, CLUSTER, recorded=rows), speedup=np.inf), reasons=list(running.reasons))
    while not again.done:
        again.step(Placement.of([], reasons=[Reason(0, "another opinion")]))
    assert again.log.rows.tobytes() == rows.tobytes()
    assert again.reasons == running.reasons


def measured(job: int, role: int, task: int, value: float, quantity: Quantity = Quantity.CORES) -> Events:
    row = events(1)
    row["time_s"], row["kind"], row["quantity"], row["value"] = 5.0, Kind.MEASURED, quantity, value
    row["job"], row["role"], row["task"] = job, role, task
    return row


def test_measured_tasks_are_in_order_and_forgotten_with_what_they_told_of():
    ledger = Ledger(JOBS, CLUSTER)
    running = session()
    running.step(START)
    ledger.fold(running.log.rows)
    told = [(0, 1, 1, 3.0), (0, 0, 1, 2.0), (0, 1, 0, 1.0)]
    ledger.fold(joined([measured(*row) for row in told] + [measured(0, 1, 0, 0.7, Quantity.LOAD)]))

    def tasks() -> list[tuple[int, int, int]]:
        known = Snapshot(ledger, now_s=9.0, number=1, runs_on=np.ones((2, 1), np.bool_)).measured_tasks()
        return list(zip(known.job.tolist(), known.role.tolist(), known.task.tolist(), strict=True))

    known = Snapshot(ledger, now_s=9.0, number=1, runs_on=np.ones((2, 1), np.bool_)).measured_tasks(np.array([0]))
    assert tasks() == [(0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert known.values[:, Quantity.CORES].tolist() == [2.0, 1.0, 3.0]
    assert known.values[1, Quantity.LOAD] == 0.7
    assert np.isnan(known.values[0, Quantity.LOAD])
    assert known.at_s.tolist() == [5.0, 5.0, 5.0]
    ledger.fold(running.backend.apply(repaired((0, 1, 1, Repair.REPLACE))))
    assert tasks() == [(0, 0, 1), (0, 1, 0)]
    ledger.fold(running.backend.apply(repaired((0, 1, -1, Repair.BALANCE))))
    assert tasks() == [(0, 0, 1)]
    ledger.fold(running.backend.apply(Placement.of([0], job=[0, 0], role=[0, 1], group=1, count=2)))
    assert tasks() == []

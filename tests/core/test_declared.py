"""What a scheduler sees of the jobs of a trace: declarations, and nothing of the truth, in every run."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.core import Jobs, LabkitError, Placement, Snapshot
from labkit.core.errors import TruthError
from labkit.core.jobs import TRUTH
from labkit.core.life import Context
from labkit.experiment import Experiment, Session, replay, simulate
from labkit.placers import FirstFit
from labkit.results import load
from labkit.schedulers.base import requested_gangs
from labkit.testing import random_scene

JOBS = Jobs.of(arrival_s=[0, 0, 9], total_steps=60, true_steps=[5, 500, 5], duration_s=60, weight=[1, 2, 3])
ONE_LINE = (
    r"^a scheduler cannot read true_steps: .*; read total_steps, or snapshot\.jobs\.remaining_steps\."
    r"(\ndecision 0, at 0 s)?$"
)


class Peeking:
    """Starts what really is the shortest job."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def schedule(self, snapshot: Snapshot) -> Placement:
        self.seen.append(snapshot.table.true_steps)
        return FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting))


def test_a_run_refuses_a_scheduler_that_reads_the_truth() -> None:
    """It got [5, 500, 5], and ran on."""
    with pytest.raises(TruthError, match=ONE_LINE):
        simulate(JOBS, cluster="no_network(1)", scheduler=Peeking())
    assert issubclass(TruthError, LabkitError)


def test_a_replay_refuses_it_too(tmp_path: Path) -> None:
    record = simulate(JOBS, cluster="no_network(1)", scheduler="fifo", runs=tmp_path)
    for recorded in (record, load(record.info.run, runs=tmp_path)):
        with pytest.raises(TruthError, match=ONE_LINE):
            replay(recorded).run(Peeking())


def test_a_scene_of_the_conformance_suite_refuses_it_too() -> None:
    with pytest.raises(TruthError, match=ONE_LINE):
        Peeking().schedule(random_scene(np.random.default_rng(0)).snapshot())


class Measuring:
    """Looks at the jobs that it is shown before the run."""

    def begin(self, context: Context) -> None:
        self.jobs = context.jobs

    def schedule(self, snapshot: Snapshot) -> Placement:
        return Placement.nothing()


def test_before_a_run_schedulers_are_shown_the_very_table_of_the_snapshots() -> None:
    experiment, scheduler = Experiment.of(JOBS, cluster="no_network(1)"), Measuring()
    session = experiment.session(scheduler)
    assert scheduler.jobs is session.snapshot().table
    with pytest.raises(TruthError, match=ONE_LINE):
        scheduler.jobs.true_steps  # noqa: B018


def reachable(thing: object, depth: int = 4) -> list[object]:
    """Return what can be reached from an object by its attributes."""
    found, layer = [thing], [thing]
    for _ in range(depth):
        layer = [value for one in layer for value in getattr(one, "__dict__", {}).values()]
        found += layer
    return found


def test_nothing_that_a_snapshot_holds_leads_to_the_truth() -> None:
    """Not the ledger behind it, not the columns of its jobs."""
    session = Experiment.of(JOBS, cluster="no_network(1)").session(Measuring())
    snapshot = session.snapshot()
    snapshot.freeze()
    found = [one for one in reachable(snapshot) if isinstance(one, np.ndarray)]
    arrays = [one[name] for one in found for name in one.dtype.names or (...,)]
    assert not any(np.array_equal(array, JOBS.true_steps) for array in arrays)
    assert not any(type(one) is Jobs for one in reachable(snapshot))
    assert any(type(one) is Jobs for one in reachable(session))  # so the search would find it


def test_the_declared_jobs_are_jobs_in_all_else() -> None:
    declared = JOBS.declared
    assert declared is JOBS.declared is declared.declared
    assert isinstance(declared, Jobs)
    assert len(declared) == 3
    assert declared[1] == JOBS[1]
    assert declared.total_steps is JOBS.total_steps
    assert declared.gang_demand.tolist() == JOBS.gang_demand.tolist()
    assert declared.take([2, 0]).weight.tolist() == [3, 1]
    assert declared.with_columns(weight=np.array([5.0, 6.0, 7.0])).weight.tolist() == [5, 6, 7]
    assert "true_steps" not in declared.to_frame()
    assert declared.to_frame().equals(JOBS.to_frame().drop(columns=list(TRUTH)))
    assert repr(declared) == "<what is declared of 3 jobs of jobs>"
    assert not hasattr(declared, "true_steps")


@pytest.mark.parametrize(
    "same",
    [copy.copy, copy.deepcopy, lambda jobs: pickle.loads(pickle.dumps(jobs)), lambda jobs: jobs.take([0, 1, 2])],
)
def test_a_copy_of_the_declared_jobs_knows_no_more(same: Any) -> None:
    again = same(JOBS.declared)
    assert again.total_steps.tolist() == JOBS.total_steps.tolist()
    with pytest.raises(TruthError, match=ONE_LINE):
        again.true_steps  # noqa: B018


def test_a_simulation_is_of_the_truth_all_the_same() -> None:
    session = Session(Experiment.of(JOBS, cluster="no_network(1)").simulator())
    rows = session.run(Quick())
    assert rows["value"][rows["kind"] == 8].tolist() == [5, 5, 500]


class Quick:
    def schedule(self, snapshot: Snapshot) -> Placement:
        return FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting))

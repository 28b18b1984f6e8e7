"""Declined jobs: given up for good, counted, seen among those that ended; what cannot be declined is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Jobs, Kind, Placement, PlacementError
from labkit.core.events import Cause
from labkit.experiment import Session
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network


class Strict:
    """Decline every job that takes more than so many seconds, and remember which jobs it saw end."""

    def __init__(self, most_s):
        self.most_s, self.ended = most_s, []

    def schedule(self, snapshot):
        jobs = snapshot.jobs
        declined = jobs.number[jobs.duration_s > self.most_s]
        answer = make("fifo").schedule(snapshot)
        kept = ~np.isin(answer.job, declined)
        self.ended = [snapshot.ended.number.tolist(), snapshot.ended.ended_s.tolist()]
        return replace(
            answer, set_jobs=answer.set_jobs[~np.isin(answer.set_jobs, declined)], job=answer.job[kept],
            role=answer.role[kept], group=answer.group[kept], count=answer.count[kept], missing=answer.missing[:0],
            declined=declined,
        )  # fmt: skip


def session(durations, **options):
    jobs = Jobs.of(arrival_s=np.arange(float(len(durations))), total_steps=durations, duration_s=durations)
    cluster = no_network(1)
    return Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), **options)


def test_a_declined_job_is_given_up_with_its_reason_and_the_run_goes_on():
    strict = Strict(50)
    run = simulate(
        Jobs.of(arrival_s=[0, 1, 2], total_steps=1, duration_s=[10, 100, 20]), cluster=no_network(1), scheduler=strict
    )
    rows = run.events[run.events["kind"] == Kind.DROPPED]
    assert (rows["job"].tolist(), rows["cause"].tolist(), rows["time_s"].tolist()) == ([1], [Cause.DECLINED], [1.0])
    assert np.isnan(run.table["jct_s"][1])
    assert run.table["jct_s"][[0, 2]].tolist() == [10.0, 20.0]
    assert run.summary["n_jobs"] == 3


def test_jobs_that_ended_are_there_in_order_of_their_ends():
    strict = Strict(50)
    run = session([10.0, 100.0, 2.0])
    run.run(strict)
    number, ended_s = strict.ended
    assert number == [1, 2]
    assert ended_s == [1.0, 4.0]
    snapshot = run.snapshot()
    assert snapshot.ended.number.tolist() == [1, 2, 0]
    assert snapshot.ended.ended_s.tolist() == [1.0, 4.0, 10.0]
    assert snapshot.ended.attained_gpu_s.tolist() == [0.0, 2.0, 10.0]


def test_a_job_that_runs_gives_its_tasks_back_when_it_is_declined():
    run = session([100.0, 100.0])
    run.step(make("fifo").schedule(run.snapshot()))
    free = run.snapshot().free.sum(axis=0)[0]
    run.step(Placement.of([], declined=[0]))
    assert run.snapshot().free.sum(axis=0)[0] == free + 1
    assert run.snapshot().ended.attained_gpu_s.tolist() == [1.0]
    assert not run.done
    run.step(Placement.of([], declined=[1]))
    assert run.done


@pytest.mark.parametrize(("wrong", "named"), [([7], 7), ([-1], -1), ([0, 0], 0), ([1], 1)])
def test_what_cannot_be_declined_is_refused_and_nothing_changes(wrong, named):
    run = session([100.0, 100.0])
    before = len(run.log)
    with pytest.raises(PlacementError, match=f"declines job number {named}; expected active jobs, each once"):
        run.step(Placement.of([], declined=wrong))
    assert len(run.log) == before
    with pytest.raises(PlacementError, match="that are not in set_jobs"):
        run.step(Placement.of([0], job=[0], group=[0], declined=[0]))


def test_an_answer_with_odd_declined_jobs_is_refused():
    run = session([100.0])
    with pytest.raises(PlacementError, match="whose declined is 'x'"):
        run.step(replace(Placement.nothing(), declined="x"))

"""Phases: jobs whose speed changes as they progress end when the pieces add up, rounded where a model says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs, Kind
from labkit.core.protocols import PhaseModel
from labkit.experiment import Experiment, Session
from labkit.experiment.cadence import Cadence, every_slot
from labkit.schedulers import make
from labkit.simulator import Overheads, Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network


class Pieces(Recorded):
    """Speeds by pieces of the work."""

    def __init__(self, jobs, cluster, *, ends, speed, round_s=0.0):
        super().__init__(jobs, cluster)
        self.after, self.speed, self.round_s = np.array(ends), np.array(speed), round_s

    def speeds(self, running):
        steps = running.steps if len(running.steps) else np.zeros(len(running.job))
        return self.speed[np.searchsorted(self.after, steps, "right")]

    def ends(self, jobs, steps):
        at = np.searchsorted(self.after, steps, "right")
        return np.append(self.after, np.inf)[at]


def session(jobs, *, ends, speed, round_s=0.0, cadence=None, **simulated):
    cluster = no_network(1)
    model = Pieces(jobs, cluster, ends=ends, speed=speed, round_s=round_s)
    assert isinstance(model, PhaseModel)
    return Session(Simulator(jobs, cluster, speed=model, **simulated), cadence=cadence)


@given(work=st.lists(st.floats(1, 100), min_size=1, max_size=6), data=st.data())
def test_a_job_takes_the_sum_of_its_phases(work, data):
    speed = data.draw(st.lists(st.floats(0.1, 10), min_size=len(work), max_size=len(work)))
    jobs = Jobs.of(arrival_s=[3.0], total_steps=sum(work), duration_s=1.0)
    events = session(jobs, ends=np.cumsum(work)[:-1], speed=speed).run(make("fifo"))
    end_s = events["time_s"][events["kind"] == Kind.COMPLETED]
    assert end_s == pytest.approx([3.0 + (np.array(work) / speed).sum()])


def test_steps_that_are_done_are_told_at_each_change():
    jobs = Jobs.of(arrival_s=[0.0], total_steps=30, duration_s=1.0)
    run = session(jobs, ends=[10, 20], speed=[1.0, 2.0, 4.0])
    events = run.run(make("fifo"))
    told = events[events["kind"] == Kind.PROGRESSED]
    assert told["value"].tolist() == [10.0, 20.0]
    assert told["speed"].tolist() == [2.0, 4.0]


def test_an_overhead_comes_before_the_phase_goes_on():
    jobs = Jobs.of(arrival_s=[0.0], total_steps=30, duration_s=1.0)
    events = session(jobs, ends=[10], speed=[1.0, 2.0], overheads=Overheads(start_s=5.0)).run(make("fifo"))
    assert events["time_s"][events["kind"] == Kind.COMPLETED].tolist() == [25.0]


def test_rounded_ends_fall_on_whole_seconds_and_what_is_rounded_down_follows_the_decision():
    """The first phase ends at 10.3 s, so at 10, yet a decision at 10 still sees the job in it."""
    jobs = Jobs.of(arrival_s=[0.0], total_steps=20.6, duration_s=1.0)
    run = session(jobs, ends=[10.3], speed=[1.0, 1.0], round_s=1.0, cadence=every_slot(10))
    seen = []

    class Spy:
        def schedule(self, snapshot):
            seen.append((snapshot.now_s, float(snapshot.jobs.steps[0])))
            return make("fifo").schedule(snapshot)

    events = run.run(Spy())
    assert dict(seen)[10.0] == 10.0
    assert events["time_s"][events["kind"] == Kind.COMPLETED] == pytest.approx([20.0], abs=1e-6)


def test_compiled_stretches_leave_phases_alone():
    jobs = Jobs.of(arrival_s=np.arange(5.0), total_steps=30, duration_s=1.0)
    made = [
        Session(
            Simulator(jobs, no_network(1), speed=Pieces(jobs, no_network(1), ends=[10], speed=[1.0, 2.0])),
            compiled=kind,
        ).run(make("fifo"))
        for kind in (True, False)
    ]
    assert made[0]["time_s"].tolist() == made[1]["time_s"].tolist()


def test_pollux_cadence_lets_a_round_pass_before_each_decision_the_first_too():
    jobs = Jobs.of(arrival_s=[0.0, 60.0, 61.0], total_steps=10, duration_s=10.0)
    run = Experiment.of(jobs, cluster=no_network(1), cadence=Cadence.published("pollux")).run("fifo")
    assert run.table["completion_s"].tolist() == [70.0, 70.0, 130.0]

"""interference_aware: who goes first, who waits and how long; and that it is below `even` in MARL's setting."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Kind
from labkit.core.resources import amounts
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.schedulers.interference_aware import InterferenceAware
from labkit.workloads.expressions import trace


def experiment_of(duration_s, *, n_workers=2, cluster="pods(2, 1)", interference="calibrated", models="resnet-50"):
    """Return gangs of `n_workers` and as many servers that arrive at once; a machine has 4 GPUs and 16 cores."""
    n = len(duration_s)
    duration_s = np.asarray(duration_s, np.float64)
    jobs = Jobs.of(
        arrival_s=np.zeros(n), total_steps=duration_s, duration_s=duration_s, model=[models] * n,
        n_workers=n_workers, n_ps=n_workers, worker_demand=amounts(gpus=1, cpus=2), ps_demand=amounts(cpus=2),
        home=np.zeros(n, np.int32),
    )  # fmt: skip
    return Experiment.of(jobs, cluster=cluster, speed="step-time", interference=interference)


def queue_of(scheduler, experiment):
    return scheduler._queue(experiment.session(scheduler).snapshot()).tolist()


def test_the_least_area_goes_first():
    experiment = experiment_of([300.0, 100.0, 250.0, 100.0], n_workers=np.array([1, 4, 1, 1]))
    assert queue_of(InterferenceAware(), experiment) == [3, 2, 0, 1]
    assert queue_of(InterferenceAware(order="duration"), experiment) == [1, 3, 2, 0]
    assert queue_of(InterferenceAware(order="arrival"), experiment) == [0, 1, 2, 3]


def started_s(experiment, scheduler):
    rows = experiment.run(scheduler).events
    began = rows[rows["kind"] == Kind.STARTED]
    return {int(job): float(time_s) for job, time_s in zip(began["job"], began["time_s"], strict=True)}


def test_nobody_waits_where_no_job_slows_another():
    experiment = experiment_of([3600.0] * 4, interference="none")
    assert set(started_s(experiment, InterferenceAware()).values()) == {0.0}


def test_a_job_that_would_be_slow_waits_but_never_longer_than_twice_its_duration():
    """Four gangs fill both machines. With little patience some wait for others to end, or for their limit."""
    experiment = experiment_of([36_000.0, 36_000.0, 900.0, 1200.0])
    at_once = started_s(experiment, InterferenceAware(patience=np.inf))
    assert set(at_once.values()) == {0.0}
    waited = started_s(experiment, InterferenceAware(patience=1.01))
    assert max(waited.values()) > 0
    assert all(start_s <= 2 * float(experiment.jobs.duration_s[job]) + 1e-6 for job, start_s in waited.items())


@pytest.mark.parametrize("seed", [301, 302])
def test_it_is_below_even_in_marls_setting(seed):
    """Two hours of arrivals in pods of 20 machines, calibrated interference."""
    jobs = trace("marl_jobs(load=5, n_slots=8)", seed=seed)
    experiment = Experiment.of(jobs, cluster="marl-4x20", speed="step-time", interference="calibrated")
    jct_s = {
        name: experiment.run(make(name), name=name).summary["mean_jct_s"] for name in ("interference_aware", "even")
    }
    assert jct_s["interference_aware"] < 0.95 * jct_s["even"]


def test_what_it_cannot_take_is_refused():
    with pytest.raises(
        InputError, match=r"^interference_aware: patience is 0\.5; expected times a job's duration >= 1"
    ):
        make("interference_aware(patience=0.5)")
    with pytest.raises(InputError, match=r"^unknown order of interference_aware 'size'"):
        make("interference_aware(order='size')")

"""With `published=True` a run is the published simulator's, by a second reading of it; without, it is better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.core.jobs import Jobs
from labkit.experiment import Experiment
from labkit.experiment.profile import measure_profile
from labkit.schedulers import make
from labkit.workloads import read
from labkit.workloads.gavel_traces import gavel_jobs
from tests.schedulers.gavel.twin import run

CLUSTER = {"v100": 8, "p100": 16, "k80": 24}
TRACES = ["max_min_fairness", "artifact_evaluation", "small_test"]
TOLERANCE = {"isolated": 0.001, "fifo_perf": 0.001, "max_min_fairness_perf": 0.01, "finish_time_fairness_perf": 0.01}
NAMES = {
    "isolated": "isolated", "fifo_perf": "fifo", "max_min_fairness_perf": "las", "finish_time_fairness_perf": "ftf",
}  # fmt: skip


def as_rows(jobs: Jobs) -> list[tuple[Any, ...]]:
    names = [jobs.models[m] for m in jobs.model]
    columns = jobs.true_steps.astype(int), jobs.n_workers, jobs.weight, jobs.arrival_s
    return [(name, int(n), int(sf), float(w), float(at)) for name, n, sf, w, at in zip(names, *columns, strict=True)]


def as_table(experiment: Experiment, jobs: Jobs) -> dict[str, dict[tuple[str, int], float]]:
    speed = experiment.session(make("gavel_las")).backend.speed  # type: ignore[attr-defined]
    cluster = experiment.cluster
    profile = measure_profile(jobs, cluster, speed=speed, pairs=False)
    alone, sizes = profile.alone[profile.kind], jobs.n_workers.tolist()
    return {
        kind: {(jobs.models[m], sf): alone[j, t] for j, (m, sf) in enumerate(zip(jobs.model, sizes, strict=True))}
        for t, kind in enumerate(cluster.device_types)
    }


@pytest.mark.parametrize("policy", TOLERANCE)
@pytest.mark.parametrize(("seed", "gap_s"), [(1, 1800.0), (2, 500.0)])
def test_generated_traces_take_as_long_as_published(policy: str, seed: int, gap_s: float) -> None:
    """Light and heavy load, gangs of 1 to 8, weights of 1 and 5."""
    jobs = gavel_jobs(25, seed=seed, mean_gap_s=gap_s)
    jobs = jobs.with_columns(
        true_steps=np.floor(jobs.true_steps),
        total_steps=np.floor(jobs.true_steps),
        weight=np.where(np.arange(25) % 5 == 0, 5.0, 1.0),
    )
    experiment = Experiment.of(jobs, cluster="gavel-8-16-24")
    twin = run(as_rows(jobs), as_table(experiment, jobs), CLUSTER, policy)
    ours = experiment.run(f"gavel_{NAMES[policy]}(published=True)").summary["mean_jct_s"]
    assert ours == pytest.approx(twin["mean_jct_s"], rel=TOLERANCE[policy])


def with_idle_gaps(seed: int) -> Jobs:
    """Five bursts of four short jobs, each long after the one before is done; the last one meets a busy cluster."""
    jobs = gavel_jobs(24, seed=seed, mean_gap_s=600.0, multi_gpu=True)
    steps = np.ceil(jobs.total_steps / np.maximum(jobs.duration_s / 5000.0, 1.0))
    burst, place = np.divmod(np.arange(24), 4)
    arrival_s = np.minimum(burst, 4) * 61_000.0 + place * 700.0 + (burst == 5) * 900.0
    return jobs.with_columns(arrival_s=arrival_s, total_steps=steps, true_steps=steps)


def in_every_job(jobs: Jobs, policy: str, *, rtol: float = 1e-9, **at: Any) -> None:
    """Compare the completion times of all jobs with those of the second reading."""
    experiment = Experiment.of(jobs, cluster="gavel-8-16-24", **at)
    twin = run(as_rows(jobs), as_table(experiment, jobs), CLUSTER, policy)
    ours = experiment.run(f"gavel_{NAMES[policy]}(published=True)")
    np.testing.assert_allclose(ours.table["jct_s"], [twin["jct"][j] for j in range(len(jobs))], rtol=rtol)


@pytest.mark.parametrize("policy", ["isolated", "fifo_perf"])
@pytest.mark.parametrize("seed", [2, 3])
def test_after_an_idle_gap_every_job_takes_as_long_as_published(policy: str, seed: int) -> None:
    """Gavel decides once more when the last job leaves: a due reset happens, and the order of types is drawn.

    Seeds 1 and 4 are left out: there the last bit of two equal shares, which depends on how they were added up, decides
    which goes first.
    """
    in_every_job(with_idle_gaps(seed), policy)


@pytest.mark.filterwarnings("ignore::labkit.workloads.gavel.EstimatedThroughput")
@pytest.mark.parametrize("policy", ["isolated", "fifo_perf"])
@pytest.mark.parametrize("trace", ["51b7ef", "2869ce"])
def test_after_idle_gaps_of_philly_every_job_takes_as_long_as_published(
    trace: str, policy: str, shared_data: Any
) -> None:
    jobs = read(shared_data(f"philly/{trace}.trace"))
    jobs = jobs.take(np.flatnonzero(jobs.gpus <= 8)[:60])
    throughputs = shared_data("gavel/simulation_throughputs.json")
    in_every_job(jobs, policy, rtol=1e-7, throughputs=throughputs)  # weeks of rounds add up their rounding


def test_published_fifo_passes_over_a_job_that_finds_room_only_where_it_cannot_run() -> None:
    """All at once, and a third of them cannot run on K80s: they take nothing there, and every job is as published."""
    jobs = gavel_jobs(45, seed=3, mean_gap_s=0.0, multi_gpu=True)
    gangs = np.where(np.arange(45) % 3 == 1, 4, jobs.n_workers)
    models = ["ResNet-50 (batch size 128)" if j % 3 == 1 else jobs.models[jobs.model[j]] for j in range(45)]
    steps = np.ceil(jobs.total_steps / np.maximum(jobs.duration_s / 5000.0, 1.0))
    in_every_job(Jobs.of(arrival_s=np.zeros(45), total_steps=steps, model=models, n_workers=gangs), "fifo_perf")


@pytest.mark.parametrize("policy", TOLERANCE)
@pytest.mark.parametrize("trace", TRACES)
def test_published_traces_take_as_long_as_published(trace: str, policy: str, shared_data: Any) -> None:
    path, throughputs = shared_data(f"gavel/traces/{trace}.trace"), shared_data("gavel/simulation_throughputs.json")
    experiment = Experiment.of(path, cluster="gavel-8-16-24", throughputs=throughputs)
    twin = run(path, throughputs, CLUSTER, policy)
    ours = experiment.run(f"gavel_{NAMES[policy]}(published=True)").summary["mean_jct_s"]
    assert ours == pytest.approx(twin["mean_jct_s"], rel=TOLERANCE[policy])


ALL = ["las", "ftf", "fifo", "isolated", "sjf", "throughput", "makespan", "hierarchical"]


@pytest.mark.parametrize(
    ("trace", "name"), [*((trace, name) for trace in TRACES for name in ALL), ("max_min_fairness", "las_agnostic")]
)
def test_the_default_is_never_worse_than_published_by_more_than_a_hundredth(
    trace: str, name: str, shared_data: Any
) -> None:
    """But for one, by 1.7%. On the short traces what is published for agnostic policies depends on the seed alone."""
    path, throughputs = shared_data(f"gavel/traces/{trace}.trace"), shared_data("gavel/simulation_throughputs.json")
    experiment = Experiment.of(path, cluster="gavel-8-16-24", throughputs=throughputs)
    published = experiment.run(f"gavel_{name}(published=True)").summary["mean_jct_s"]
    assert (
        experiment.run(f"gavel_{name}").summary["mean_jct_s"]
        <= (1.02 if (trace, name) == ("small_test", "ftf") else 1.01) * published
    )


@pytest.mark.parametrize("name", ["las", "ftf"])
@pytest.mark.parametrize(("seed", "gap_s"), [(3, 1800.0), (4, 900.0), (5, 500.0)])
def test_the_default_is_better_than_published_on_generated_traces(name: str, seed: int, gap_s: float) -> None:
    experiment = Experiment.of(gavel_jobs(60, seed=seed, mean_gap_s=gap_s), cluster="gavel-8-16-24")
    published = experiment.run(f"gavel_{name}(published=True)").summary["mean_jct_s"]
    assert experiment.run(f"gavel_{name}").summary["mean_jct_s"] < published

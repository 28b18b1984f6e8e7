"""A rigid job trains with the gang that it asked for, or waits: under every scheduler, at any load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.core import Events, Gangs, Jobs, Kind
from labkit.experiment import Experiment
from labkit.placers import Even, FirstFit, LeastInterference, Pack, Spread
from labkit.schedulers import available
from labkit.testing.scenes import empty_snapshot
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads import philly_like, scaled
from labkit.workloads.readers import read

CLASSIC = [name for name in available() if not name.startswith("gavel_") and name != "recorded"]  # that follows a file


def partial(rows: Events, jobs: Jobs) -> list[tuple[str, tuple[int, int]]]:
    """Return the rigid jobs that were ever placed with other tasks than they asked for, and with which."""
    placed = rows[rows["kind"] == Kind.PLACED]
    begins = np.append(True, (np.diff(placed["job"]) != 0) | (np.diff(placed["time_s"]) != 0))
    first = np.flatnonzero(begins)
    n_workers = np.add.reduceat(placed["value"] * (placed["role"] == 0), first).astype(int)
    n_ps = np.add.reduceat(placed["value"] * (placed["role"] == 1), first).astype(int)
    job = placed["job"][first]
    cut = ~jobs.malleable[job] & ((n_workers != jobs.n_workers[job]) | (n_ps != jobs.n_ps[job]))
    return [(str(jobs.id[job[i]]), (int(n_workers[i]), int(n_ps[i]))) for i in np.flatnonzero(cut)]


def crowded() -> tuple[Jobs, object]:
    """Return rigid gangs of at most 10 hours that overload machines of two types, so that room is left in pieces."""
    rng = np.random.default_rng(3)
    jobs = philly_like(np.sort(rng.uniform(0, 6 * 3600, 80)), rng=rng)
    most = {"n_workers": 8, "max_workers": 8, "duration_s": 36_000, "total_steps": 36_000, "true_steps": 36_000}
    jobs = jobs.with_columns(**{column: np.minimum(getattr(jobs, column), value) for column, value in most.items()})
    kinds = ("v100", "p100")
    mix = [(3, Server(kind, sockets=((4, 16, 256),), device_type=kind)) for kind in kinds]
    return jobs, no_network(6, servers=mix)


@pytest.mark.filterwarnings("ignore:dl2. its training has met no", "ignore:marl. its weights were trained on servers")
@pytest.mark.filterwarnings("ignore:elasticflow. no job of")
@pytest.mark.parametrize("name", CLASSIC)
def test_no_scheduler_runs_a_rigid_job_with_a_part_of_its_gang(name: str) -> None:
    jobs, cluster = crowded()
    assert not jobs.malleable.any()
    record = Experiment.of(jobs, cluster=cluster, speed="recorded").run(name)
    assert partial(record.events, jobs) == []
    assert record.summary["n_unfinished"] == 0
    assert record.summary["n_cuts"] == 0


@pytest.mark.parametrize("name", ["drf", "optimus"])
@pytest.mark.parametrize("placer", ["first_fit", "spread", "pack", "even"])
def test_rigid_jobs_stay_whole_beside_malleable_ones_with_any_placer(name: str, placer: str) -> None:
    """Every third job is malleable, and is what gives way."""
    jobs, cluster = crowded()
    grows = np.arange(len(jobs)) % 3 == 0
    jobs = jobs.with_columns(max_workers=np.where(grows, 2 * jobs.n_workers, jobs.n_workers))
    record = Experiment.of(jobs, cluster=cluster, speed="recorded").run(f"{name}(placer={placer})")
    assert partial(record.events, jobs) == []
    assert record.summary["n_unfinished"] == 0


@pytest.mark.filterwarnings("ignore:throughput estimated")
@pytest.mark.parametrize("name", ["drf", "optimus"])
def test_no_job_of_a_philly_trace_at_four_times_its_load_is_cut(name: str, shared_data) -> None:
    jobs = scaled(read(shared_data("philly/2869ce.trace")), load=4.0)
    jobs = jobs.take(np.flatnonzero(jobs.gpus <= 8))  # the others fit on no machine of this cluster
    throughputs: Path = shared_data("gavel/simulation_throughputs.json")
    record = Experiment.of(jobs, cluster="gavel-8-16-24", throughputs=throughputs).run(name)
    assert partial(record.events, jobs) == []


@pytest.mark.parametrize("placer", [FirstFit(), Spread(), Pack(), Even(), LeastInterference()], ids=repr)
def test_each_gang_says_whether_it_may_shrink(placer: object) -> None:
    """Of three gangs of three on four GPUs the second may not shrink and waits; the third takes what is left."""
    cluster = no_network(1, servers=Server("s", sockets=((4, 16, 64),)))
    jobs = Jobs.of(arrival_s=[0, 0, 0], total_steps=1, n_workers=3, max_workers=3)
    snapshot = empty_snapshot(jobs, cluster=cluster, runs_on=np.ones((3, 1), np.bool_))
    gangs = Gangs.of([0, 1, 2], n_workers=3, shrinks=[False, False, True])
    placement = placer.place(snapshot, gangs)  # type: ignore[attr-defined]
    assert dict(zip(placement.job.tolist(), placement.count.tolist(), strict=True)) == {0: 3, 2: 1}
    assert gangs.take(np.array([2, 0])).may_shrink().tolist() == [True, False]
    assert Gangs(gangs.job, gangs.n_workers, gangs.n_ps, gangs.device_type).may_shrink().tolist() == [False] * 3

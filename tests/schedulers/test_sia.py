"""Sia: types and numbers of workers by hand, its growth, and what it gains where types and numbers both count."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Cluster, InputError, Jobs, Kind
from labkit.core.running import Running
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads.gavel_traces import gavel_jobs

pytestmark = pytest.mark.filterwarnings("ignore:sia.* is an oracle", "ignore:pollux.* is an oracle")


class ByType:
    """Steps/s of a worker of each job on each type, (N, T), times workers^0.9."""

    local = True

    def __init__(self, jobs: Jobs, cluster: Cluster, per_worker: list[list[float]]) -> None:
        self.jobs, self.cluster, self.per_worker = jobs, cluster, np.array(per_worker)

    def speeds(self, running: Running) -> np.ndarray:
        kind = self.cluster.group_type[running.group[running.first[:-1]]]
        return self.per_worker[running.job, kind] * running.n_workers**0.9

    def runs_on(self) -> np.ndarray:
        return self.per_worker > 0

    def durations_s(self) -> np.ndarray:
        return self.jobs.duration_s.copy()


def machines(n_fast: int, n_slow: int, gpus: int = 1) -> Cluster:
    kinds = [Server(kind, sockets=((gpus, 64, 512),), device_type=kind) for kind in ("fast", "slow")]
    return no_network(n_fast + n_slow, servers=[(n_fast, kinds[0]), (n_slow, kinds[1])])


def first_gangs(
    jobs: Jobs, cluster: Cluster, per_worker: list[list[float]], scheduler: str
) -> dict[int, tuple[str, int]]:
    """Return the type and the number of workers that each job has at the first decision."""
    run = simulate(jobs, cluster=cluster, speed=ByType(jobs, cluster, per_worker), scheduler=scheduler)
    rows = run.events[(run.events["kind"] == Kind.PLACED) & (run.events["time_s"] == 0)]
    kind = {row["job"]: cluster.device_types[cluster.group_type[row["group"]]] for row in rows}
    return {int(job): (kind[job], int(rows["value"][rows["job"] == job].sum())) for job in np.unique(rows["job"])}


def test_rigid_jobs_take_the_types_by_which_the_sum_of_costs_is_least() -> None:
    """Job 0 is 4 times as fast there, job 1 1.2 times: 1/sqrt(4) + 1 = 1.5, the other way 1 + 1/sqrt(1.2) = 1.91."""
    jobs = Jobs.of(arrival_s=[0.0, 0.0], total_steps=1000, duration_s=1000)
    speeds = [[4.0, 1.0], [1.2, 1.0]]
    assert first_gangs(jobs, machines(1, 1), speeds, "sia") == {0: ("fast", 1), 1: ("slow", 1)}
    assert first_gangs(jobs, machines(1, 1), speeds[::-1], "sia") == {0: ("slow", 1), 1: ("fast", 1)}
    never_there = [[4.0, 0.0], [1.05, 1.0]]
    assert first_gangs(jobs, machines(1, 1), never_there, "sia") == {0: ("fast", 1), 1: ("slow", 1)}


@pytest.mark.parametrize(("unplaced", "n_placed"), [(1.1, 1), (2.0, 2)])
def test_what_a_job_without_workers_costs_decides_whether_another_has_its_gpu(unplaced: float, n_placed: int) -> None:
    """Two GPUs: both jobs with one cost 2; one with both costs 2^-0.45 = 0.73, and the other `unplaced`."""
    jobs = Jobs.of(arrival_s=[0.0, 0.0], total_steps=1000, duration_s=1000, n_workers=1, max_workers=2)
    found = first_gangs(jobs, machines(1, 1, 2), [[0.0, 1.0], [0.0, 1.0]], make("sia", grow=inf, unplaced=unplaced))
    assert sum(n for _, n in found.values()) == 2
    assert len(found) == n_placed


def test_numbers_are_powers_of_two_within_a_machine_and_then_whole_machines() -> None:
    jobs = Jobs.of(arrival_s=[0.0], total_steps=90_000, duration_s=90_000, n_workers=1, max_workers=12)
    cluster = machines(1, 3, 3)
    run = simulate(
        jobs, cluster=cluster, speed=ByType(jobs, cluster, [[0.0, 1.0]]), scheduler="sia(penalty_s=0)", cadence="sia"
    )
    placed = run.events[run.events["kind"] == Kind.PLACED]
    assert [placed["value"][placed["time_s"] == at].sum() for at in np.unique(placed["time_s"])] == [1, 2, 3, 6, 9]


def test_a_gang_that_no_type_holds_runs_where_there_is_room_in_the_end() -> None:
    jobs = Jobs.of(arrival_s=[0.0, 1.0], total_steps=100, duration_s=100, n_workers=[1, 3])
    run = Experiment.of(jobs, cluster=machines(2, 2)).run("sia")
    assert run.summary["n_unfinished"] == 0


def test_where_types_and_numbers_count_it_is_far_below_rules_that_choose_one_of_them() -> None:
    """Gavel's jobs, malleable up to 8 workers; the paper's abstract has 30 to 93% below on its traces."""
    jobs = gavel_jobs(24, seed=3, mean_gap_s=900.0, multi_gpu=True)
    here = Experiment.of(jobs.with_columns(max_workers=np.maximum(jobs.n_workers, 8)), cluster="gavel-8-16-24")
    mean = {name: here.run(name).summary["mean_jct_s"] for name in ("sia", "pollux", "gavel_las")}
    assert mean["sia"] < 0.8 * min(mean["pollux"], mean["gavel_las"])


def test_bad_options_are_named() -> None:
    with pytest.raises(InputError, match=r"sia: power is 0\.5, .*; expected a number < 0"):
        make("sia", power=0.5)

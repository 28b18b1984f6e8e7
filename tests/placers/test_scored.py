"""FGD's measure and rule, and the placers that its authors compare it with."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np
import pytest

from labkit import build
from labkit.core import Gangs, Jobs
from labkit.core.devices import widened
from labkit.placers import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random, make
from labkit.placers.fragments import TaskMix, fragments_of
from labkit.testing import check_placer
from labkit.testing.scenes import empty_snapshot, random_cluster, random_runs_on
from labkit.topology import no_network
from labkit.topology.servers import Server

NAMES = ("best_fit", "dot_product", "fgd", "gpu_clustering", "gpu_packing", "random")


def server(gpus: int, cpus: float = 64.0, kind: str = "v100") -> Server:
    return Server(kind, ((gpus, cpus, 512.0),), device_type=kind)


def waiting(cluster, demand, **columns):  # type: ignore[no-untyped-def]
    n = len(demand)
    jobs = Jobs.of(arrival_s=np.zeros(n), total_steps=1.0, worker_demand=demand, **columns)
    return empty_snapshot(jobs, cluster=cluster, runs_on=np.ones((n, len(cluster.device_types)), np.bool_))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_placer(name: str) -> None:
    check_placer(make(name))


def brute_force(row: np.ndarray, mix: TaskMix, kind: int) -> float:
    """Return the measure of ATC 2023, eq. 1 to 4, gang by gang: idle GPUs that a gang cannot use."""
    total = 0.0
    for share, gpus, n, cpus, runs_on in zip(*mix, strict=True):
        devices = row[3:]
        hosts = runs_on[kind] and cpus <= row[1] and n > 0 and (devices >= gpus).sum() >= n
        total += share * (devices[devices < gpus].sum() if hosts else devices.sum())
    return total


@pytest.mark.parametrize("seed", range(20))
def test_fragments_are_the_idle_gpus_that_a_gang_cannot_use(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng)
    runs_on = random_runs_on(rng, cluster=cluster, n_jobs=12)
    gpus = rng.choice([0, 0.25, 0.5, 1.0, 2.0], 12)
    jobs = Jobs.of(
        arrival_s=np.zeros(12), total_steps=1.0, n_workers=rng.integers(1, 4, 12),
        worker_demand=np.stack([gpus, rng.choice([1.0, 4.0, 9.0], 12), np.zeros(12)], axis=1),
    )  # fmt: skip
    mix, rows = TaskMix.of(jobs, runs_on), widened(cluster.capacity, 4)
    rows[:, 3:] *= rng.choice([0.0, 0.25, 0.5, 1.0], rows[:, 3:].shape)
    rows[:, 1] *= rng.random(len(rows))
    expected = [brute_force(row, mix, kind) for row, kind in zip(rows, cluster.group_type, strict=True)]
    assert mix.share.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(fragments_of(rows, 3, mix, cluster.group_type.astype(np.int32)), expected, atol=1e-9)


def test_fgd_keeps_a_whole_gpu_for_gangs_that_need_one() -> None:
    """Half a GPU goes beside the half that is in use; first fit by groups would open another GPU of the first one."""
    snapshot = waiting(no_network(2, servers=server(2)), [(0.5, 1, 1), (0.5, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)])
    placement = Fgd().place(snapshot, Gangs.of(np.arange(5), n_workers=1))
    assert len(placement.set_jobs) == 5
    halves = [(g, d) for g, d in zip(placement.group, placement.devices, strict=True)][:2]
    assert halves[0] == halves[1]


def test_best_fit_leaves_least() -> None:
    snapshot = waiting(no_network(2, servers=[(1, server(8)), (1, server(2, 8.0))]), [(2, 8, 1)])
    assert BestFit().place(snapshot, Gangs.of([0], n_workers=1)).group.tolist() == [1]


def test_dot_product_takes_the_least_aligned() -> None:
    snapshot = waiting(no_network(2, servers=[(1, server(8)), (1, server(2, 64.0))]), [(1, 1, 1)])
    assert DotProduct().place(snapshot, Gangs.of([0], n_workers=1)).group.tolist() == [1]


def test_gpu_packing_shares_before_it_opens() -> None:
    snapshot = waiting(no_network(2, servers=server(2)), [(0.5, 1, 1), (0.25, 1, 1), (1, 1, 1), (2, 1, 1)])
    placement = GpuPacking().place(snapshot, Gangs.of(np.arange(4), n_workers=1))
    assert placement.group.tolist() == [0, 0, 0, 1]
    assert placement.devices.tolist() == [1, 1, 2, 3]


def test_gpu_clustering_puts_like_to_like() -> None:
    snapshot = waiting(no_network(3, servers=server(4)), [(0.5, 1, 1), (1, 1, 1), (2, 1, 1), (0.5, 1, 1), (1, 1, 1)])
    placement = GpuClustering().place(snapshot, Gangs.of(np.arange(5), n_workers=1))
    assert placement.group.tolist() == [0, 1, 2, 0, 1]


def test_random_draws_uniformly_and_again_the_same() -> None:
    snapshot = waiting(no_network(4, servers=server(8)), [(0.5, 1, 1)] * 32)
    one, other, again = (Random(seed).place(snapshot, Gangs.of(np.arange(32), n_workers=1)) for seed in (1, 2, 1))
    assert one.group.tolist() == again.group.tolist() != other.group.tolist()
    assert set(one.group.tolist()) == {0, 1, 2, 3}


def test_a_gang_that_a_machine_can_hold_waits_for_one() -> None:
    """A pod of two GPUs is on one machine; one of five is larger than any and is split."""
    snapshot = waiting(no_network(2, servers=server(3)), [(2, 1, 1), (2, 1, 1), (1, 1, 1)], n_workers=[1, 1, 2])
    placed = BestFit().place(snapshot, Gangs.of([0, 1, 2], n_workers=[1, 1, 2]))
    assert placed.set_jobs.tolist() == [0, 1]
    split = BestFit().place(snapshot, Gangs.of([2], n_workers=[5]))
    assert split.count.sum() == 5


def test_openb_has_the_machines_of_alibabas_node_list(shared_data) -> None:  # type: ignore[no-untyped-def]
    cluster = build("openb")
    rows = csv.DictReader(shared_data("alibaba/openb_node_list_gpu_node.csv").read_text().splitlines())
    listed = Counter(
        (r["model"], float(r["gpu"]), int(r["cpu_milli"]) / 1e3, int(r["memory_mib"]) / 1024) for r in rows
    )
    types = np.array(cluster.device_types)[cluster.group_type].tolist()
    assert Counter(zip(types, *cluster.capacity.T.tolist(), strict=True)) == listed
    assert (cluster.n_machines, cluster.n_gpus) == (1213, 6212)

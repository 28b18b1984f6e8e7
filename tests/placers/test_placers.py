"""Where tasks go: load balance, Tetris' machine order, Optimus' theorem, device types, gangs whole or nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Cluster, Gangs, Jobs, Placement, PlacementError, Placer, Snapshot
from labkit.experiment import Session
from labkit.placers import Even, FirstFit, LeastInterference, Pack, Spread, kernels
from labkit.simulator import Faults, Simulator
from labkit.speed.recorded import Recorded
from labkit.testing import ConformanceError, check_placer
from labkit.testing.scenes import SharedSpeeds, empty_snapshot
from labkit.topology import no_network
from labkit.topology.servers import Server

ALL = [FirstFit(), Spread(), Pack(), Even()]


def alone(cluster: Cluster, *, runs_on: np.ndarray | None = None, **columns: object) -> Snapshot:
    """Return the moment at which some jobs wait for an empty cluster."""
    jobs = Jobs.of(**{"arrival_s": 0.0, "total_steps": 1.0} | columns)
    everywhere = np.ones((len(jobs), len(cluster.device_types)), np.bool_)
    return empty_snapshot(jobs, cluster=cluster, runs_on=everywhere if runs_on is None else runs_on)


def machines_of(snapshot: Snapshot, placement: Placement) -> np.ndarray:
    """Return tasks by job, role and machine, (N, 2, M)."""
    tasks = np.zeros((len(snapshot.table), 2, snapshot.cluster.n_machines), int)
    machine = snapshot.cluster.group_machine[placement.group]
    np.add.at(tasks, (placement.job, placement.role, machine), placement.count)
    return tasks


def forty_jobs() -> Snapshot:
    cluster = no_network(20, servers=Server("s", sockets=((0, 32, 64),)))
    return alone(cluster, arrival_s=np.zeros(40), worker_demand=(0, 5, 10))


def n_machines_used(placer: Placer, snapshot: Snapshot) -> int:
    placement = placer.place(snapshot, Gangs.of(snapshot.jobs.number, n_workers=1))
    assert len(placement.set_jobs) == len(snapshot.jobs)
    return int(machines_of(snapshot, placement).any(axis=(0, 1)).sum())


def test_pack_is_machine_first_as_tetris_is() -> None:
    """Scored per task, the dot product opens all 20 servers for 40 tasks; machine-first 7 are enough (SIGCOMM'14)."""
    assert n_machines_used(Pack(), forty_jobs()) == 7  # six tasks of 5 cores on a server of 32
    assert n_machines_used(FirstFit(), forty_jobs()) == 7


def test_spread_uses_all_machines() -> None:
    assert n_machines_used(Spread(), forty_jobs()) == 20


def test_spread_leaves_the_lowest_maximal_load() -> None:
    snapshot = forty_jobs()
    placement = Spread().place(snapshot, Gangs.of(snapshot.jobs.number, n_workers=1))
    assert machines_of(snapshot, placement)[:, 0].sum(axis=0).tolist() == [2] * 20


def test_spread_follows_the_plain_rule() -> None:
    """argmin over machines of sum_r used / capacity, task by task (MARL text, sec. VI)."""
    mix = [(1, Server("a", sockets=((4, 16, 64),))), (2, Server("b", sockets=((2, 8, 32), (2, 8, 96))))]
    cluster = no_network(3, servers=mix)
    snapshot = alone(cluster, arrival_s=np.zeros(5), worker_demand=(1, 3, 8), ps_demand=(0, 2, 5))
    gangs = Gangs.of(np.arange(5), n_workers=[2, 1, 2, 1, 1], n_ps=[1, 2, 0, 1, 1])
    got = machines_of(snapshot, Spread().place(snapshot, gangs))

    capacity = np.array([cluster.capacity[cluster.group_machine == m].sum(axis=0) for m in range(3)])
    free, wanted = cluster.capacity.copy(), np.zeros_like(got)
    for j in range(5):
        for role, n, demand in ((0, gangs.n_workers[j], (1, 3, 8)), (1, gangs.n_ps[j], (0, 2, 5))):
            for _ in range(n):
                load = [(capacity[m] - free[cluster.group_machine == m].sum(axis=0)) / capacity[m] for m in range(3)]
                fitting = [g for g in range(5) if (free[g] >= demand).all()]
                best = min(cluster.group_machine[fitting], key=lambda m: (round(load[m].sum(), 12), m))
                groups = [g for g in fitting if cluster.group_machine[g] == best]
                free[groups[0]] -= demand
                wanted[j, role, best] += 1
    assert got.tolist() == wanted.tolist()


def test_pack_stays_on_the_machines_of_the_gang() -> None:
    cluster = no_network(3, servers=Server("s", sockets=((2, 8, 64), (2, 8, 64))))
    snapshot = alone(cluster, arrival_s=np.zeros(2), ps_demand=(0, 1, 0), n_ps=1)
    placement = Pack().place(snapshot, Gangs.of([0, 1], n_workers=[3, 4], n_ps=[2, 1]))
    tasks = machines_of(snapshot, placement)
    assert tasks[0].tolist() == [[3, 0, 0], [2, 0, 0]]
    assert tasks[1, 0].sum() == 4
    assert (tasks[1].sum(axis=0) > 0).sum() == 2  # the last GPU of the first machine, then the second


# --- Optimus' theorem


def transfer_time(workers: np.ndarray, servers: np.ndarray) -> float:
    """Seconds that a PS or a worker needs at most for what crosses machines, with S/p = B = b = 1.

    A PS beside w_k of the w workers exchanges with the other w - w_k, a worker beside p_k of the p PSs with p - p_k.
    """
    by_ps = (workers.sum() - workers)[servers > 0].max(initial=0)
    by_worker = (servers.sum() - servers)[workers > 0].max(initial=0)
    return float(max(by_ps, by_worker))


def slots(n_machines: int, n_tasks: int) -> Cluster:
    """Return machines that hold so many tasks of one core each."""
    return no_network(n_machines, servers=Server("s", sockets=((0, n_tasks, 64),)))


def test_transfer_times_of_the_published_example() -> None:
    """EuroSys'18, Fig. 10: three servers, two PSs and four workers; the three placements take 3, 3 and 2."""
    assert transfer_time(np.array([1, 1, 2]), np.array([1, 1, 0])) == 3
    assert transfer_time(np.array([1, 1, 2]), np.array([2, 0, 0])) == 3
    assert transfer_time(np.array([2, 2, 0]), np.array([1, 1, 0])) == 2


def test_even_finds_the_best_of_the_published_example() -> None:
    snapshot = alone(slots(3, 3), worker_demand=(0, 1, 0), n_workers=4, n_ps=2)
    tasks = machines_of(snapshot, Even().place(snapshot, Gangs.of([0], n_workers=4, n_ps=2)))[0]
    assert sorted(map(tuple, tasks.T.tolist())) == [(0, 0), (2, 1), (2, 1)]
    assert transfer_time(*tasks) == 2


def splits(n: int, k: int) -> list[np.ndarray]:
    return [np.array(split) for split in product(range(n + 1), repeat=k) if sum(split) == n]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("n_workers", "n_ps"), [(2, 2), (4, 2), (3, 3), (4, 4), (6, 3), (6, 2), (2, 4), (3, 2), (5, 3)]
)
def test_even_needs_the_fewest_servers_and_no_split_over_as_many_is_faster(
    size: int, n_workers: int, n_ps: int
) -> None:
    """Theorem 1 of EuroSys'18, against all splits of the tasks over servers of one size."""
    snapshot = alone(slots(n_workers + n_ps, size), worker_demand=(0, 1, 0), n_workers=n_workers, n_ps=n_ps)
    got = machines_of(snapshot, Even().place(snapshot, Gangs.of([0], n_workers=n_workers, n_ps=n_ps)))[0]
    workers, servers = got[:, got.any(axis=0)]
    k = len(workers)
    all_splits = [
        (w, p) for w, p in product(splits(n_workers, k), splits(n_ps, k)) if (w + p <= size).all() and (w + p > 0).all()
    ]
    assert k == -(-(n_workers + n_ps) // size)
    assert transfer_time(workers, servers) == min(transfer_time(w, p) for w, p in all_splits)


def test_even_passes_over_machines_that_are_too_small() -> None:
    """Optimus' testbed has servers without GPUs; their many free cores must not attract jobs that need GPUs."""
    mix = [(2, Server("cpu", sockets=((0, 64, 256),))), (2, Server("gpu", sockets=((2, 8, 64),)))]
    snapshot = alone(no_network(4, servers=mix), n_workers=4, n_ps=2)
    tasks = machines_of(snapshot, Even().place(snapshot, Gangs.of([0], n_workers=4, n_ps=2)))[0]
    assert tasks.tolist() == [[0, 0, 2, 2], [0, 0, 1, 1]]


def test_even_places_what_no_even_split_could_ever_hold() -> None:
    mix = [(1, Server("small", sockets=((1, 64, 64),))), (1, Server("large", sockets=((4, 8, 64),)))]
    snapshot = alone(no_network(2, servers=mix), n_workers=5)
    tasks = machines_of(snapshot, Even().place(snapshot, Gangs.of([0], n_workers=5)))[0, 0]
    assert tasks.tolist() == [1, 4]


# --- gangs


@pytest.mark.parametrize("placer", ALL, ids=repr)
def test_a_gang_is_placed_whole_or_not_at_all(placer: Placer) -> None:
    snapshot = alone(no_network(1), arrival_s=np.zeros(3), ps_demand=(0, 1, 0))
    placement = placer.place(snapshot, Gangs.of([0, 1, 2], n_workers=[3, 2, 1]))
    assert sorted(placement.set_jobs.tolist()) != [0, 1, 2]
    assert machines_of(snapshot, placement)[:, 0, 0].tolist() in ([3, 0, 1], [0, 2, 1])  # Even: the smallest first


@pytest.mark.parametrize("placer", ALL, ids=repr)
def test_workers_do_not_stay_when_their_servers_find_no_room(placer: Placer) -> None:
    snapshot = alone(no_network(1), arrival_s=np.zeros(2), ps_demand=(0, 9, 0), n_ps=1)
    placement = placer.place(snapshot, Gangs.of([0, 1], n_workers=[2, 4], n_ps=[1, 0]))
    assert machines_of(snapshot, placement)[:, :, 0].tolist() == [[0, 0], [4, 0]]


@pytest.mark.parametrize("placer", [FirstFit(), Spread(), Pack(), Even(keep_order=True)], ids=repr)
def test_strict_stops_at_the_first_gang_without_room(placer: Placer) -> None:
    snapshot = alone(no_network(1), arrival_s=np.zeros(3))
    gangs = Gangs.of([0, 1, 2], n_workers=[2, 4, 1])
    assert placer.place(snapshot, gangs, strict=True).set_jobs.tolist() == [0]
    assert placer.place(snapshot, gangs).set_jobs.tolist() == [0, 2]


@pytest.mark.parametrize("placer", ALL, ids=repr)
def test_a_gang_that_shrinks_gets_what_there_is_in_about_its_ratio(placer: Placer) -> None:
    snapshot = alone(no_network(1), n_workers=8, n_ps=4)
    placement = placer.place(snapshot, Gangs.of([0], n_workers=8, n_ps=4, shrinks=True))
    assert machines_of(snapshot, placement)[0, :, 0].tolist() == [4, 2]


@pytest.mark.parametrize("placer", ALL, ids=repr)
def test_workers_get_one_device_type_and_the_one_that_is_wanted(placer: Placer) -> None:
    mix = [(1, Server("a", sockets=((2, 8, 64),), device_type="k80")), (2, Server("b", sockets=((2, 8, 64),)))]
    cluster = no_network(3, servers=mix)
    snapshot = alone(cluster, arrival_s=np.zeros(4), n_workers=2)

    def types(gangs: Gangs) -> list[list[int]]:
        placement = placer.place(snapshot, gangs)
        return [np.unique(cluster.group_type[placement.group[placement.job == j]]).tolist() for j in gangs.job]

    assert types(Gangs.of([0, 1], n_workers=2, device_type=[1, 0])) == [[1], [0]]
    assert types(Gangs.of([0], n_workers=3)) == [[1]]  # two k80 are not enough, and types are not mixed
    assert types(Gangs.of([0, 1, 2], n_workers=2, device_type=0)) == [[0], [], []]
    assert types(Gangs.of([0], n_workers=6)) == [[0, 1]]  # no one type has six


@pytest.mark.parametrize("placer", ALL, ids=repr)
def test_a_job_goes_only_where_it_runs(placer: Placer) -> None:
    mix = [(1, Server("a", sockets=((4, 8, 64),), device_type="k80")), (1, Server("b", sockets=((4, 8, 64),)))]
    runs_on = np.array([[False, True], [True, False]])
    snapshot = alone(no_network(2, servers=mix), runs_on=runs_on, arrival_s=np.zeros(2))
    placement = placer.place(snapshot, Gangs.of([0, 1], n_workers=4))
    assert machines_of(snapshot, placement)[:, 0].tolist() == [[0, 4], [4, 0]]
    assert not len(placer.place(snapshot, Gangs.of([0], n_workers=5)))  # not even when it would have to mix


@given(n=st.integers(1, 12), workers=st.integers(1, 4), gpus=st.sampled_from([0.1, 0.25, 0.3, 1.0]))
@settings(max_examples=15)
def test_fractions_of_a_gpu_fill_it_to_the_brim(n: int, workers: int, gpus: float) -> None:
    cluster = no_network(1, servers=Server("s", sockets=((1, 64, 64),)))
    snapshot = alone(cluster, arrival_s=np.zeros(n), worker_demand=(gpus, 1, 0), n_workers=workers)
    placement = FirstFit().place(snapshot, Gangs.of(np.arange(n), n_workers=workers))
    fitting = int(round(1 / gpus, 9)) // workers
    assert len(placement.set_jobs) == min(n, fitting)


EVERY = [*ALL, LeastInterference()]


@pytest.mark.parametrize("placer", EVERY, ids=lambda placer: type(placer).__name__)
def test_two_jobs_that_share_go_together_and_take_their_gpus_once(placer: Placer) -> None:
    """Each machine has 2 GPUs and 8 cores: of two pairs of 2 workers and a job, the job finds nothing."""
    cluster = no_network(2, servers=Server("s", sockets=((2, 8, 64),)))
    snapshot = alone(cluster, arrival_s=np.zeros(5), n_workers=2, worker_demand=(1, 2, 0))
    gangs = Gangs.of([0, 2, 4], n_workers=2, partner=[1, 3, -1])
    placement = placer.place(snapshot, gangs)
    assert dict(zip(placement.set_jobs.tolist(), placement.partner.tolist(), strict=True)) == {0: 1, 1: 0, 2: 3, 3: 2}
    tasks = machines_of(snapshot, placement)[:, 0]
    assert tasks[0].tolist() == tasks[1].tolist()
    assert tasks[2].tolist() == tasks[3].tolist()
    assert tasks[[0, 2]].sum(axis=0).tolist() == [2, 2]


@pytest.mark.parametrize("placer", EVERY, ids=lambda placer: type(placer).__name__)
def test_of_a_pair_both_are_placed_or_none(placer: Placer) -> None:
    """Its cores do not fit twice, the PS of the second finds no room, or the two run on different types."""
    cluster = no_network(1, servers=Server("s", sockets=((2, 8, 64),)))
    pair = Gangs.of([0], n_workers=2, partner=[1])
    for columns in (
        {"worker_demand": (1, 3, 0)},
        {"n_ps": [0, 1], "ps_demand": (0, 5, 0)},
    ):
        snapshot = alone(cluster, arrival_s=np.zeros(2), n_workers=2, **columns)
        assert not len(placer.place(snapshot, pair))
    mix = [(1, Server("a", sockets=((4, 8, 64),), device_type="k80")), (1, Server("b", sockets=((4, 8, 64),)))]
    apart = np.array([[False, True], [True, False]])
    assert not len(placer.place(alone(no_network(2, servers=mix), runs_on=apart, arrival_s=np.zeros(2)), pair))
    with_ps = alone(cluster, arrival_s=np.zeros(2), n_workers=2, n_ps=[1, 2])
    placement = placer.place(with_ps, Gangs.of([0], n_workers=2, n_ps=1, partner=[1]))
    assert machines_of(with_ps, placement)[:, :, 0].tolist() == [[2, 1], [2, 2]]


@pytest.mark.parametrize("placer", EVERY, ids=lambda placer: type(placer).__name__)
def test_a_pair_without_room_is_stopped_if_it_ran_and_strict_ends_there(placer: Placer) -> None:
    cluster = no_network(1, servers=Server("s", sockets=((2, 8, 64),)))
    jobs = Jobs.of(arrival_s=np.zeros(4), total_steps=100, duration_s=100, n_workers=2)
    session = Session(Simulator(jobs, cluster, speed=SharedSpeeds(jobs, cluster)))
    session._note(session.backend.apply(placer.place(session.snapshot(), Gangs.of([0], n_workers=2, partner=[1]))))
    gangs = Gangs.of([2, 0, 3], n_workers=2, partner=[-1, 1, -1])
    placement = placer.place(session.snapshot(), gangs, strict=True)
    assert sorted(placement.set_jobs.tolist()) == [0, 1, 2]
    assert np.unique(placement.job).tolist() == [2]
    assert placement.partner.tolist() == [-1, -1, -1]
    stays = placer.place(session.snapshot(), Gangs.of([0], n_workers=2))  # job 1 keeps the GPUs
    assert (stays.set_jobs.tolist(), len(stays)) == ([0], 0)


@pytest.mark.parametrize("placer", EVERY, ids=lambda placer: type(placer).__name__)
def test_a_task_that_needs_nothing_needs_a_machine(placer: Placer) -> None:
    """Machine 0 is down; workers and PSs without any demand go to machine 1, and the simulator would refuse others."""
    cluster = no_network(2, servers=Server("s", sockets=((2, 8, 64),)))
    for columns in ({"worker_demand": (0, 0, 0)}, {"n_ps": 1, "ps_demand": (0, 0, 0)}):
        jobs = Jobs.of(**{"arrival_s": 0.0, "total_steps": 100, "duration_s": 100} | columns)
        session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster), faults=Faults(1e9, 1e9)))
        simulator = session.backend
        simulator._due.failures.next_s[0] = 0.0
        session._note(simulator.advance(1.0, stop_at_event=True))
        snapshot = session.snapshot()
        assert snapshot.up.tolist() == [False, True]
        placement = placer.place(snapshot, Gangs.of([0], n_workers=1, n_ps=jobs.n_ps))
        assert placement.group.tolist() == [1] * (1 + jobs.n_ps[0])
        with pytest.raises(PlacementError, match="machine m0 is down"):
            simulator.apply(Placement.of([0], job=[0], group=[0]))
        simulator.apply(placement)


class Divorcing(FirstFit):
    """Places the first of a pair only."""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        single = Gangs(gangs.job, gangs.n_workers, gangs.n_ps, gangs.device_type, gangs.shrinks)
        return super().place(snapshot, single, strict=strict)


class Scattering(FirstFit):
    """Puts the second of a pair elsewhere."""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        placement = super().place(snapshot, gangs, strict=strict)
        moved = np.isin(placement.job, gangs.partner) & (placement.role == 0)
        group = np.where(moved, (placement.group + 1) % snapshot.cluster.n_groups, placement.group)
        return Placement(placement.set_jobs, placement.job, placement.role, group, placement.count, placement.partner)


@pytest.mark.parametrize(
    ("placer", "complaint"),
    [
        (Divorcing(), r"gives job \d+ the partner -1 instead of"),
        (Scattering(), "whose workers sit in different places"),
    ],
)
def test_a_placer_that_parts_pairs_is_caught(placer: Placer, complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        check_placer(placer)


@pytest.mark.parametrize(
    "kernel",
    [kernels.place_gangs, kernels._place_or_shrink, kernels._place_pair, kernels._place_one, kernels._place_on],
    ids=lambda kernel: kernel.__name__,
)
def test_the_large_kernels_are_compiled_once_whatever_is_placed(kernel) -> None:
    """Each further combination of types, a constant among the arguments is one, is compiled for seconds."""
    cluster = no_network(2, servers=Server("s", sockets=((2, 8, 64),)))
    for columns in ({}, {"worker_demand": (1, 2, 0), "n_ps": [1, 2]}, {"ps_demand": [(0, 1, 0), (0, 2, 0)]}):
        snapshot = alone(cluster, arrival_s=np.zeros(2), **columns)
        for placer in ALL:
            assert placer.place(snapshot, Gangs.of([0], n_workers=1, partner=[1]))
            assert placer.place(snapshot, Gangs.of([0, 1], n_workers=2, n_ps=1, shrinks=True))
    assert len(kernel.signatures) <= 2  # with conditions and without; none: its caller was kept by an earlier process

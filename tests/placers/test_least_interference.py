"""Least interference: the rule by hand, against its definition in plain Python, and against pack and spread."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Cluster, Gangs, Jobs, Placement, Placer, Snapshot
from labkit.core.errors import InputError
from labkit.core.resources import Floats
from labkit.core.running import Running
from labkit.placers import LeastInterference, Pack, Spread
from labkit.placers.least_interference import default_model
from labkit.schedulers import make
from labkit.speed.interference import InterferenceModel
from labkit.speed.interference.measured import Kinds, profile
from labkit.speed.interference.use import Interference, ModelUse, task_use
from labkit.testing import check_placer
from labkit.testing.scenes import empty_snapshot, random_scenes
from labkit.topology import no_network
from labkit.topology.servers import Server

ONE_SOCKET = Server("one", sockets=((4, 16, 64),))
TWO_SOCKETS = Server("two", sockets=((2, 8, 64), (2, 8, 64)))


def tenth_per_core() -> InterferenceModel:
    """Return the model D = 1 + U_C / 10."""
    model = InterferenceModel("linear")
    model.cpu_, model.pcie_ = np.array([0.0, 0.1, 1.0]), np.array([0.0, 0.0, 1.0])
    return model


def by_cores(**cores: float) -> dict[str, ModelUse]:
    return {name: ModelUse(used) for name, used in cores.items()}


def waiting(cluster: Cluster, **columns: object) -> Snapshot:
    """Return the moment at which some jobs wait for an empty cluster."""
    jobs = Jobs.of(**{"arrival_s": 0.0, "total_steps": 1.0, "worker_demand": (1, 1, 0)} | columns)
    return empty_snapshot(jobs, cluster=cluster, runs_on=np.ones((len(jobs), len(cluster.device_types)), np.bool_))


def groups_of(placement: Placement, *, job: int, role: int = 0) -> dict[int, int]:
    rows = (placement.job == job) & (placement.role == role)
    return dict(zip(placement.group[rows].tolist(), placement.count[rows].tolist(), strict=True))


def test_the_second_task_goes_to_the_other_socket() -> None:
    """Jobs on one socket compete for more than jobs on two (MARL text, Fig. 2b)."""
    snapshot = waiting(no_network(1, servers=TWO_SOCKETS), arrival_s=[0, 0])
    placement = LeastInterference(tenth_per_core()).place(snapshot, Gangs.of([0, 1], n_workers=1))
    assert groups_of(placement, job=0) == {0: 1}
    assert groups_of(placement, job=1) == {1: 1}


def test_all_tasks_of_the_machine_count_not_only_the_new_one() -> None:
    """Beside one busy task: 1.5 + 1.1 = 2.6; beside two idle ones: 1.1 + 2 x 1.15 = 3.4, although the new one gains."""
    cluster = no_network(2, servers=ONE_SOCKET)
    uses = by_cores(busy=5, idle=0.5, new=1)
    snapshot = waiting(cluster, arrival_s=[0] * 4, model=["busy", "idle", "idle", "new"])
    gangs = Gangs.of(np.arange(4), n_workers=1)
    placement = LeastInterference(tenth_per_core(), uses).place(snapshot, gangs)
    on = [next(iter(groups_of(placement, job=j))) for j in range(4)]
    assert on == [0, 1, 1, 0]  # the second idle one: 1.5 + 1.05 on the first machine, 1.05 + 1.05 on the second


def test_cores_beyond_those_of_a_socket_are_taken_from_the_other() -> None:
    """10 cores wanted of 8: the task in the other socket, which asks for 3, sees U_C = 2, those here 5 (sec. V-B)."""
    cluster = no_network(1, servers=TWO_SOCKETS)
    running = Running(
        *(np.array(c, np.int32) for c in ([0, 1], [0, 1, 2])), np.zeros(2, np.int8),
        *(np.array(c, np.int32) for c in ([0, 1], [2, 1], [2, 1], [0, 0])),
    )  # fmt: skip
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=1.0, model=["wide", "thin"])
    slower = Interference(tenth_per_core(), jobs, cluster, uses=by_cores(wide=5, thin=3))(running)
    assert slower == pytest.approx([1.5, 1.2])


def test_ties_go_to_the_machine_with_the_fewest_tasks() -> None:
    """Beside two that use nothing: 1 + 1 + 1; beside one that uses ten cores: 2 + 1, with one task fewer."""
    snapshot = waiting(no_network(2, servers=ONE_SOCKET), arrival_s=[0] * 4, model=["quiet", "ten", "quiet", "quiet"])
    placer = LeastInterference(tenth_per_core(), by_cores(quiet=0, ten=10))
    placement = placer.place(snapshot, Gangs.of(np.arange(4), n_workers=1))
    assert [next(iter(groups_of(placement, job=j))) for j in range(4)] == [0, 1, 0, 1]


def test_a_gang_that_does_not_fit_gets_nothing_and_takes_nothing() -> None:
    snapshot = waiting(no_network(2, servers=ONE_SOCKET), arrival_s=[0] * 3, ps_demand=(0, 16, 0))
    placer = LeastInterference(tenth_per_core())
    placement = placer.place(snapshot, Gangs.of([0, 1, 2], n_workers=[4, 4, 1], n_ps=[0, 1, 0]))
    assert placement.set_jobs.tolist() == [0, 2]
    strict = placer.place(snapshot, Gangs.of([0, 1, 2], n_workers=[4, 4, 1], n_ps=[0, 1, 0]), strict=True)
    assert strict.set_jobs.tolist() == [0]


def test_a_gang_may_shrink_where_it_is_allowed_to() -> None:
    snapshot = waiting(no_network(1, servers=ONE_SOCKET), arrival_s=[0])
    placement = LeastInterference(tenth_per_core()).place(snapshot, Gangs.of([0], n_workers=6, n_ps=3, shrinks=True))
    assert sum(groups_of(placement, job=0).values()) == 4
    assert sum(groups_of(placement, job=0, role=1).values()) == 2


def test_workers_get_one_device_type_unless_no_type_holds_them() -> None:
    mix = [(1, Server("a", sockets=((2, 8, 64),), device_type="v100")), (1, Server("b", sockets=((2, 8, 64),), device_type="k80"))]  # fmt: skip  # noqa: E501
    snapshot = waiting(no_network(2, servers=mix), arrival_s=[0, 0, 0])
    placer = LeastInterference(tenth_per_core())
    assert [len(groups_of(placer.place(snapshot, Gangs.of([0], n_workers=n)), job=0)) for n in (2, 3)] == [1, 2]
    told = placer.place(snapshot, Gangs.of([0, 1], n_workers=1, device_type=[1, 0]))
    kinds = snapshot.cluster.group_type
    assert [int(kinds[next(iter(groups_of(told, job=j)))]) for j in (0, 1)] == [1, 0]
    one_and_two = placer.place(snapshot, Gangs.of([0, 1], n_workers=[1, 2]))
    assert one_and_two.set_jobs.tolist() == [0, 1]
    assert groups_of(one_and_two, job=1) == {1: 2}  # the first type has one GPU left, so both go to the second


def test_it_keeps_the_placers_protocol() -> None:
    check_placer(LeastInterference())
    check_placer(LeastInterference(tenth_per_core()), seed=1)


def plain_sum(model: InterferenceModel, cluster: Cluster, machine: int, tasks: list[tuple[int, float, float]]) -> float:
    """Return the sum of D over the tasks (group, cores, Gbps) of a machine, from the formulas of sec. V-B."""
    total = 0.0
    for i, (g, u, p) in enumerate(tasks):
        others = tasks[:i] + tasks[i + 1 :]
        co_u = sum(t[1] for t in others if t[0] == g)
        for h in np.flatnonzero(cluster.group_machine == machine):
            if h != g:
                co_u += max(0.0, sum(t[1] for t in tasks if t[0] == h) - cluster.capacity[h, 1])
        co_p = sum(t[2] for t in others if t[0] == g)
        total += float(model.slowdown(u, p, co_cpu_cores=co_u, co_pcie_gbps=co_p))
    return total


def plain(snapshot: Snapshot, gangs: Gangs, model: InterferenceModel, uses: dict[str, ModelUse]) -> list[list[int]]:
    """Return the groups of each gang's tasks, by trying every group for every task."""
    cluster, table = snapshot.cluster, snapshot.table
    cores, pcie = task_use(table, uses=uses)
    free = cluster.capacity.copy()
    on: list[list[tuple[int, float, float]]] = [[] for _ in cluster.machines]
    answer = []
    for j, w, p in zip(gangs.job, gangs.n_workers, gangs.n_ps, strict=True):
        groups = []
        for role in [0] * w + [1] * p:
            demand = (table.worker_demand, table.ps_demand)[role][j]
            tried = []
            for g in range(cluster.n_groups):
                if (free[g] + 1e-9 >= demand).all():
                    m = int(cluster.group_machine[g])
                    score = plain_sum(model, cluster, m, [*on[m], (g, cores[role, j], pcie[role, j])])
                    tried.append((round(score, 9), len(on[m]), sum(t[0] == g for t in on[m]), g))
            g = min(tried)[-1]
            free[g] -= demand
            on[cluster.group_machine[g]].append((g, cores[role, j], pcie[role, j]))
            groups.append(g)
        answer.append(sorted(groups))
    return answer


def random_case(seed: int, preset: str) -> tuple[Snapshot, Gangs, InterferenceModel, dict[str, ModelUse]]:
    """Return jobs that wait for six empty machines, and the model of a synthetic server."""
    rng = np.random.default_rng([seed, len(preset)])
    kinds, model = Kinds.draw(8, rng=rng), InterferenceModel().fit(profile(preset, rng=rng))
    uses = {f"kind-{k}": ModelUse(kinds.cpu_cores[k], 1.0, kinds.pcie_gbps[k]) for k in range(8)}
    n = int(rng.integers(3, 12))
    n_workers, n_ps = rng.integers(1, 3, n), rng.integers(0, 3, n)
    names = [f"kind-{k}" for k in rng.integers(8, size=n)]
    demands = {"worker_demand": (1, 2, 0), "ps_demand": (0, 1, 0)}
    snapshot = waiting(no_network(6), arrival_s=np.zeros(n), model=names, n_workers=n_workers, n_ps=n_ps, **demands)
    return snapshot, Gangs.of(np.arange(n), n_workers=n_workers, n_ps=n_ps), model, uses


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("preset", ["mild", "convex"])
def test_it_follows_the_plain_rule(seed: int, preset: str) -> None:
    """argmin over machines of the sum of D over their tasks, the new one among them, task by task (sec. VI-A)."""
    snapshot, gangs, model, uses = random_case(seed, preset)
    placement = LeastInterference(model, uses).place(snapshot, gangs)
    got = [sorted(np.repeat(placement.group, placement.count * (placement.job == j)).tolist()) for j in gangs.job]
    assert got == plain(snapshot, gangs, model, uses)


def slowdowns(snapshot: Snapshot, placement: Placement, model: InterferenceModel, uses: dict[str, ModelUse]) -> Floats:
    """Return the foreseen slowdown of each placed task."""
    jobs, first = np.unique(placement.job, return_index=True)
    table, edges = snapshot.table, np.append(first, len(placement)).astype(np.int32)
    columns = (placement.role, placement.group, placement.count, table.n_workers[jobs], table.n_ps[jobs])
    rows = Interference(model, table, snapshot.cluster, uses=uses)(Running(jobs.astype(np.int32), edges, *columns))
    return np.repeat(rows, placement.count)


@pytest.mark.parametrize("preset", ["mild", "convex"])
def test_it_foresees_less_slowdown_in_all_than_pack_and_spread(preset: str) -> None:
    means = []
    for seed in range(20):
        snapshot, gangs, model, uses = random_case(seed, preset)
        placers: list[Placer] = [LeastInterference(model, uses), Spread(), Pack()]
        tasks = [slowdowns(snapshot, placer.place(snapshot, gangs), model, uses) for placer in placers]
        assert len({len(t) for t in tasks}) == 1  # all of them place every gang
        means.append([t.mean() for t in tasks])
    least, spread, pack = np.array(means).T
    assert (least <= pack + 1e-9).all()
    assert (least <= spread * 1.03).all()  # greedy, task by task: once in a while an even load is a shade better
    assert least.mean() - 1 < 0.8 * (spread.mean() - 1) < 0.8 * (pack.mean() - 1)


def test_the_same_question_has_the_same_answer() -> None:
    for scene in random_scenes(n=5, seed=3):
        gangs = Gangs.of(scene.snapshot().waiting, n_workers=1)
        a, b = (LeastInterference().place(scene.snapshot(), gangs) for _ in range(2))
        assert [x.tolist() for x in (a.set_jobs, a.job, a.group, a.count)] == [
            x.tolist() for x in (b.set_jobs, b.job, b.group, b.count)
        ]


def test_a_scheduler_takes_it() -> None:
    snapshot = waiting(no_network(1, servers=TWO_SOCKETS), arrival_s=[0, 0])
    placement = make("fifo", placer=LeastInterference(tenth_per_core())).schedule(snapshot)
    assert groups_of(placement, job=1) == {1: 1}


def test_use_comes_from_the_catalogue_else_from_what_was_asked() -> None:
    """DL2's measurements: a worker of resnet-50 keeps 0.99 cores busy, its PS 1.60; 2 x 102.2 MB in 0.449 s."""
    jobs = Jobs.of(arrival_s=[0, 0, 0], total_steps=1.0, model=["resnet-50", "mine", "own"], worker_demand=(1, 3, 0))
    cores, pcie = task_use(jobs, uses=by_cores(own=0.5))
    assert cores.tolist() == [[0.99, 3, 0.5], [1.60, 1, 0]]
    assert pcie.tolist() == [[3.64, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_use_that_is_no_amount_is_refused(wrong: float) -> None:
    with pytest.raises(InputError, match=r"worker_cores of a task is .*; expected a number >= 0"):
        ModelUse(wrong)


def test_without_a_model_it_uses_the_synthetic_mild_server() -> None:
    assert default_model() is default_model()
    alone, beside = default_model().slowdown(2, 0, co_cpu_cores=[0, 8], co_pcie_gbps=0)
    assert alone == 1
    assert 1.05 < beside < 1.5

"""How fast a gang can be where its own tasks slow each other: every way onto one machine, or over a network card."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.resources import CPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.speed.interference.model import MODELS, InterferenceModel
from labkit.speed.interference.profile import NO_LOAD
from labkit.speed.interference.use import co_load

MOST: Final = 4096
"""Ways onto a machine that are tried of a gang; where there are more, its tasks are taken not to slow each other."""


class RigidGang(NamedTuple):
    """A rigid gang: tasks, demands (R,), use alone (cores and Gbps of worker and PS), seconds and exchange.

    `compute_s` (T,) is what a worker needs on each device type, inf where it cannot run; `exchange_gbit` what the
    slowest exchange moves; `sync`: the slowest worker counts, otherwise each for itself.
    """

    n_workers: int
    n_ps: int
    worker: tuple[float, ...]
    ps: tuple[float, ...]
    cores: tuple[float, float]
    pcie_gbps: tuple[float, float]
    compute_s: tuple[float, ...]
    exchange_gbit: float
    sync: bool


def least_step_s(gangs: list[RigidGang], cluster: Cluster, *, model: InterferenceModel, most_gbps: Floats) -> Floats:
    """Return seconds per update that no placement of each gang can go below on this cluster, (K,).

    On one machine, every way to put its tasks into the device groups is tried, and its tasks slow each other as the
    model has it. On several, at least one exchange of a synchronous gang crosses a network card, and no task slows
    another. Other jobs' tasks only add to that: the load on cores never speeds up, and of those on the bus (whose
    fitted factor may fall) the one that slows least is taken. 0 where not even the former is sure.

    Parameters
    ----------
    most_gbps : array
        (G,) what all tasks that fit into a group may move over its bus.
    """
    if not grows(model):
        return np.zeros(len(gangs))
    kinds, nic_gbps = _kinds_of_machine(cluster), _card_gbps(cluster)
    return np.array(
        [
            min(
                _on_several(gang, cluster, nic_gbps),
                *(_on_one(gang, cluster, groups, model, most_gbps[groups]) for groups in kinds),
            )
            for gang in gangs
        ]
    )


def grows(model: InterferenceModel) -> bool:
    """Return whether a task is slowed no less where more cores are busy beside it, by a model's shape and signs.

    >>> from labkit.speed.interference.levels import mild_model
    >>> grows(mild_model()), grows(InterferenceModel("quadratic"))
    (True, False)
    """
    shape, cpu = MODELS[model.kind], model.cpu_
    if shape.cpu not in (None, "exponential") or shape.pcie not in (None, "linear"):
        return False
    return cpu is None or bool(cpu[0] >= 0 and cpu[2] >= 0)


def _kinds_of_machine(cluster: Cluster) -> list[Ints]:
    """Return the groups of one machine of each kind."""
    first = np.searchsorted(cluster.group_machine, np.arange(cluster.n_machines + 1))
    columns = np.column_stack([cluster.group_type, cluster.group_pcie_gbps, cluster.capacity])
    kinds = {columns[a:b].tobytes(): np.arange(a, b) for a, b in pairwise(first.tolist())}
    return list(kinds.values())


def _card_gbps(cluster: Cluster) -> float:
    """Return the bandwidth of all cards of the fastest machine; 0: there is one machine, inf: there is no network."""
    if cluster.n_machines < 2:
        return 0.0
    if cluster.network is None:
        return np.inf
    network = cluster.network
    sums = [np.bincount(ends, network.link_gbps)[: cluster.n_machines] for ends in (network.link_from, network.link_to)]
    return float(max(gbps.max() for gbps in sums))


def _seconds(gbit: float, gbps: float) -> float:
    return 0.0 if gbit == 0 else gbit / gbps if gbps > 0 else np.inf


def _on_several(gang: RigidGang, cluster: Cluster, nic_gbps: float) -> float:
    """Return the least seconds of an update on several machines."""
    if nic_gbps == 0 or gang.n_workers + gang.n_ps < 2:
        return np.inf
    waits_s = _seconds(gang.exchange_gbit, float(cluster.group_pcie_gbps.max(initial=0.0)))
    if gang.sync:
        waits_s = max(waits_s, _seconds(fewest_across(gang.n_workers, gang.n_ps) * gang.exchange_gbit, nic_gbps))
    step_s = min(gang.compute_s) + waits_s
    return step_s if gang.sync else step_s / gang.n_workers


@cache
def fewest_across(n_workers: int, n_ps: int) -> int:
    """Return how many exchanges share the busiest direction of some machine's card at least, if a gang is on several.

    A machine with w of W workers and p of P servers sends w (P - p) pushes and receives (W - w) p. The least of the
    larger of the two over all w, p counts, as some machine has to have some of the tasks. Around a ring it is one.

    >>> fewest_across(1, 4), fewest_across(4, 4), fewest_across(4, 0)
    (1, 3, 1)
    """
    if n_ps == 0:
        return 1
    parts = product(range(n_workers + 1), range(n_ps + 1))
    return min(max(w * (n_ps - p), (n_workers - w) * p) for w, p in parts if 0 < w + p < n_workers + n_ps)


def _on_one(gang: RigidGang, cluster: Cluster, groups: Ints, model: InterferenceModel, most_gbps: Floats) -> float:
    """Return the least seconds of an update on a machine with these groups; inf: it does not hold the gang."""
    ways = splits(gang.n_workers, gang.n_ps, len(groups))
    waits_s = _seconds(gang.exchange_gbit, float(cluster.group_pcie_gbps[groups].max()))
    compute_s = np.array(gang.compute_s)[cluster.group_type[groups]]
    if ways is None:
        step_s = float(compute_s.min()) + waits_s
        return step_s if gang.sync else step_s / gang.n_workers
    workers, servers = ways
    may_run = np.isfinite(compute_s)
    taken = workers[..., None] * np.array(gang.worker) + servers[..., None] * np.array(gang.ps)
    held: Bools = (taken <= cluster.capacity[groups] + SLACK).all(axis=(1, 2)) & ~(workers[:, ~may_run] > 0).any(axis=1)
    workers, servers = workers[held], servers[held]
    if not len(workers):
        return np.inf
    slower = _slowdown(gang, workers, servers, cores=cluster.capacity[groups, CPUS], model=model, most=most_gbps)
    busy_s = np.where(workers > 0, np.where(may_run, compute_s, 0.0) * slower, 0.0)
    socket_gbps = float(cluster.machine_socket_gbps[cluster.group_machine[groups[0]]])
    across_s = max(waits_s, _seconds(gang.exchange_gbit, socket_gbps))
    others = servers if gang.n_ps else workers
    waits = np.where(others.sum(axis=1, keepdims=True) > others, across_s, waits_s)  # with a partner in another group
    if gang.sync:
        return float((busy_s.max(axis=1) + np.where(workers > 0, waits, 0.0).max(axis=1)).min())
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(workers > 0, workers / (busy_s + waits), 0.0).sum(axis=1)
    return float(1 / rate.max())


def _slowdown(
    gang: RigidGang, workers: Ints, servers: Ints, *, cores: Floats, model: InterferenceModel, most: Floats
) -> Floats:  # fmt: skip
    """Return how much a worker in each group is slowed at least, by way and group, (C, g)."""
    n, g = workers.shape
    group = np.arange(n * g)
    beside = co_load(
        np.concatenate([group, group]), count=np.concatenate([workers.ravel(), servers.ravel()]),
        cpu_cores=np.repeat(gang.cores, n * g), pcie_gbps=np.repeat(gang.pcie_gbps, n * g),
        group_machine=np.repeat(np.arange(n), g), group_cores=np.tile(cores, n),
    )  # fmt: skip
    co_cores, co_gbps = (column[: n * g] for column in beside)
    loads = (
        co_gbps,
        np.maximum(co_gbps, 2 * NO_LOAD),
        np.maximum(co_gbps, np.tile(most, n)),
    )  # a line is least at ends
    least = [
        model.slowdown(gang.cores[0], gang.pcie_gbps[0], co_cpu_cores=co_cores, co_pcie_gbps=gbps) for gbps in loads
    ]
    slower: Floats = np.min(least, axis=0).reshape(n, g)
    return slower


@cache
def splits(n_workers: int, n_ps: int, n_groups: int) -> tuple[Ints, Ints] | None:
    """Return all ways to put workers and servers into groups, (C, g) of each; None: they are more than `MOST`.

    >>> workers, servers = splits(2, 1, 2)
    >>> workers.tolist(), servers.tolist()
    ([[0, 2], [0, 2], [1, 1], [1, 1], [2, 0], [2, 0]], [[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    """
    if (n_workers + 1) ** (n_groups - 1) * (n_ps + 1) ** (n_groups - 1) > MOST:
        return None
    parts = [
        np.array([[*c, n - sum(c)] for c in product(range(n + 1), repeat=n_groups - 1) if sum(c) <= n], np.int64)
        for n in (n_workers, n_ps)
    ]
    first, second = np.divmod(np.arange(len(parts[0]) * len(parts[1])), len(parts[1]))
    return parts[0][first], parts[1][second]

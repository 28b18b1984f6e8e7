"""The gangs of a model to measure, and where their tasks are placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.run.training import site_names


@dataclass(frozen=True, slots=True)
class GangShape:
    """Parameter servers, workers, and number of hosts."""

    n_ps: int
    n_workers: int
    n_hosts: int = 1

    def __str__(self) -> str:
        spread = f" on {self.n_hosts} hosts" if self.n_hosts > 1 else ""
        return f"{self.n_ps} PS, {self.n_workers} workers{spread}"


@dataclass(frozen=True, slots=True)
class MeasuredKind:
    """A kind of job to measure: a model with its way of training."""

    model: str
    sync: bool = True
    """`model` and `sync`: model, and whether it trains synchronously."""
    max_ps: int = 2
    max_workers: int = 2
    """`max_ps` and `max_workers`: the largest gang."""

    def __str__(self) -> str:
        return self.model if self.sync else f"{self.model} (asynchronous)"


def kinds_of(jobs: Jobs) -> list[MeasuredKind]:
    """Return the kinds of the jobs of a trace, up to their largest gangs."""
    found: dict[tuple[str, bool], MeasuredKind] = {}
    for number in range(len(jobs)):
        name, sync = jobs.models[jobs.model[number]], bool(jobs.sync[number])
        before = found.get((name, sync), MeasuredKind(name, sync, 1, 1))
        found[name, sync] = MeasuredKind(
            name, sync, max(before.max_ps, int(jobs.max_ps[number])),
            max(before.max_workers, int(jobs.max_workers[number])),
        )  # fmt: skip
    return list(found.values())


def kinds_named(
    models: Iterable[str], *, max_ps: int = 2, max_workers: int = 2, sync: bool = True
) -> list[MeasuredKind]:
    """Return kinds by model names, all up to the same gang.

    Raise InputError if no model is named, or a gang has no worker or no PS.
    """
    names = list(dict.fromkeys(models))
    if not names:
        raise InputError("no model is named; labkit profile --models dssm,wlm, or --trace FILE.")
    for what, n in (("max_ps", max_ps), ("max_workers", max_workers)):
        if n < 1:
            raise InputError(f"{what} is {n}; expected at least 1.")
    return [MeasuredKind(name, sync, max_ps, max_workers) for name in names]


def walk(kind: MeasuredKind, cluster: Cluster) -> list[GangShape]:
    """Return the gangs to measure, in an order in which each is a small change of the one before.

    Every gang up to 3 by 3, else those of `labkit.speed.optimus.pre_runs`; and where there are several hosts, the
    largest one also spread over two.

    >>> from labkit.topology import single_switch
    >>> [str(gang) for gang in walk(MeasuredKind("dssm"), single_switch(2))]  # doctest: +NORMALIZE_WHITESPACE
    ['1 PS, 1 workers', '1 PS, 2 workers', '2 PS, 2 workers', '2 PS, 2 workers on 2 hosts', '2 PS, 1 workers']
    """
    chosen = _chosen(kind)
    largest = max(chosen, key=lambda gang: (gang.n_workers + gang.n_ps, gang.n_workers))
    gangs = [
        gang if fits(gang, cluster) else GangShape(gang.n_ps, gang.n_workers, _fewest(gang, cluster)) for gang in chosen
    ]
    if cluster.n_machines > 1 and largest in gangs and largest.n_workers + largest.n_ps > 2:
        gangs.insert(gangs.index(largest) + 1, GangShape(largest.n_ps, largest.n_workers, 2))
    return gangs


def _chosen(kind: MeasuredKind) -> list[GangShape]:
    if max(kind.max_ps, kind.max_workers) <= 3:
        rows = [range(1, kind.max_workers + 1), range(kind.max_workers, 0, -1)]
        return [GangShape(p, w) for p in range(1, kind.max_ps + 1) for w in rows[(p - 1) % 2]]
    from labkit.speed.optimus import pre_runs

    ps, workers = pre_runs(max_ps=kind.max_ps, max_workers=kind.max_workers)
    return [GangShape(p, w) for p, w in sorted(zip(ps.tolist(), workers.tolist(), strict=True))]


def fits(gang: GangShape, cluster: Cluster) -> bool:
    """Return whether a gang's workers fit on its number of hosts."""
    return bool(gang.n_workers <= room(cluster)[: gang.n_hosts].sum())


def _fewest(gang: GangShape, cluster: Cluster) -> int:
    """Return the smallest number of hosts that its workers fit on; all if they fit on none."""
    free = np.cumsum(room(cluster))
    return min(int(np.searchsorted(free, gang.n_workers)) + 1, cluster.n_machines)


def room(cluster: Cluster) -> np.ndarray:
    """Return the workers that each host can take, (M,); hosts without a GPU take one."""
    gpus = np.bincount(cluster.group_machine, weights=cluster.capacity[:, GPUS], minlength=cluster.n_machines)
    return np.maximum(gpus, 1)


def place_of(gang: GangShape, cluster: Cluster, *, first: int = 0) -> JobPlacement:
    """Return the placement of a gang: host by host, GPU by GPU, servers spread as workers are."""
    machines = [(first + i) % cluster.n_machines for i in range(gang.n_hosts)]
    sites = {m: [name for name, of in zip(site_names(cluster), cluster.group_machine, strict=True) if of == m]
             for m in machines}  # fmt: skip
    free = room(cluster)[machines].astype(int)
    workers = _dealt(gang.n_workers, free.tolist())
    servers = _dealt(gang.n_ps, [gang.n_ps] * len(machines))
    place: dict[str, tuple[int, int]] = {}
    for m, w, p in zip(machines, workers, servers, strict=True):
        groups = len(sites[m])
        for i, name in enumerate(sites[m]):
            counts = (w + groups - 1 - i) // groups, (p + groups - 1 - i) // groups
            if any(counts):
                place[name] = counts
    return place


def _dealt(n: int, room: Sequence[int]) -> list[int]:
    """Divide n evenly, limited by room; what exceeds all room is added to the last."""
    got = [0] * len(room)
    for _ in range(n):
        open_ = [i for i, there in enumerate(room) if got[i] < there]
        got[min(open_, key=lambda i: got[i]) if open_ else len(room) - 1] += 1
    return got

"""Speed from Gavel's measured throughputs: by model, number of GPUs, device type, partner and placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.device_types import could_run_on, may_run_on
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.kernels import kernel
from labkit.speed.units import refuse_samples
from labkit.workloads.gavel import Throughputs

APART: Final = "_unconsolidated"
"""Suffix of the device types of gangs that are spread over machines, in Gavel's file."""


class GavelSpeed:
    """Steps/s of a job: the table's figure for the GPUs of all its workers, on the slowest device type among them.

    A gang that spans device types trains at the pace of the slowest, i.e. the minimum over the types. Where the table
    says 0 the job makes no progress. A job that holds fewer workers than it asked for runs at the figure of that
    number of GPUs. Parameter servers cost nothing here.

    A job that shares its GPUs runs at the figure measured beside its partner's model; where none was measured for that
    number of GPUs, it makes no progress (so schedulers must not pair such jobs). A partner counts from the moment at
    which it holds its tasks.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Every model and every device type must be in the table.
    throughputs : Throughputs, optional
        The published figures by default.
    strict : bool
        Refuse numbers of GPUs that were not measured, instead of estimating them (`Throughputs.steps_per_s`).
    said : str
        Where the figures are from, for headers of runs.
    placement : bool
        A gang of several GPUs whose workers on a device type sit on more machines than needed runs at the figures of
        "<type>_unconsolidated" [1]_, where there are such; off by default, as in the published simulator. A job that
        shares its GPUs runs at the figure of the pair all the same.

    Attributes
    ----------
    pairs : bool
        Whether the table has figures of jobs that share their GPUs.

    Raises
    ------
    InputError
        If a model or a device type is not in the table, or, with `strict`, a number of GPUs was not measured, or, with
        `placement`, the table knows no spread gangs.

    Warns
    -----
    EstimatedThroughput
        Once, naming the models and numbers of GPUs that the jobs asked for and that were not measured.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
       sec. 3.1, "Placement sensitivity".
    """

    local = True

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        throughputs: Throughputs | None = None,
        strict: bool = False,
        placement: bool = False,
        description: str = "",
    ) -> None:
        if description:
            self.in_words = description
        table = Throughputs.published() if throughputs is None else throughputs
        types = cluster.device_types
        refuse_samples(jobs, what="Gavel's table")
        gpus_each = jobs.worker_demand[:, GPUS]
        _check_gpus(jobs, gpus_each)
        self._alone = table.steps_per_s(
            jobs.model_names().tolist(), n_gpus=jobs.n_workers * gpus_each, device_types=types, strict=strict
        )
        self._alone = np.where(may_run_on(jobs, cluster), self._alone, 0.0)
        kinds, kind = np.unique(np.stack([jobs.model.astype(np.float64), gpus_each]), axis=1, return_inverse=True)
        self._kind: Ints = kind.reshape(-1).astype(np.int32)
        self._by_workers = _by_workers(jobs, kinds, table, types)
        self._group_type: Ints = np.ascontiguousarray(cluster.group_type, np.int32)
        self._jobs, self._total_steps = jobs, jobs.total_steps
        self._could = could_run_on(jobs, cluster)
        self.pairs = table.shared is not None
        self._model: Ints = np.ascontiguousarray(jobs.model, np.int32)
        self._counted, self._shared = _shared(jobs, kinds, table, types)
        self._apart = _Apart.of(jobs, cluster, kinds, table, self._by_workers) if placement else None

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        speeds: Floats = _slowest(
            self._by_workers, self._shared, self._counted, self._kind, self._model, self._group_type, running.job,
            running.first, running.role, running.group, running.n_workers, running.partner,
        )  # fmt: skip
        if self._apart is None:
            return speeds
        spread = _spread(
            self._apart.fewest, self._kind, self._group_type, self._apart.group_machine, running.job, running.first,
            running.role, running.group, running.count,
        )  # fmt: skip
        slower: Floats = _slowest(
            self._apart.by_workers, self._shared, self._counted, self._kind, self._model, self._group_type, running.job,
            running.first, running.role, running.group, running.n_workers, running.partner,
        )  # fmt: skip
        return np.where(spread, slower, speeds)

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        able: Bools = self._alone > 0
        return able

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with its gang on its fastest device type, (N,); inf: it runs nowhere."""
        best = self._alone.max(axis=1)
        durations: Floats = np.divide(self._total_steps, best, out=np.full(len(best), np.inf), where=best > 0)
        return durations

    def fastest(self) -> Floats:
        """Return steps/s of each job with any number of its workers on the fastest type that it may have, alone, (N,).

        Where pairs were measured, at least as much as beside any partner; with `placement`, as spread over machines.
        """
        rates = self._by_workers if self._apart is None else np.maximum(self._by_workers, self._apart.by_workers)
        jobs, fastest = self._jobs, np.zeros(len(self._jobs))
        for types in np.unique(self._could, axis=0):
            row = np.flatnonzero((self._could == types).all(axis=1))
            best = rates[:, :, types].max(axis=2, initial=0.0)[self._kind[row]]
            if self.pairs:
                counted = self._counted[self._kind[row]]
                of_pairs = self._shared[..., types].max(axis=(2, 3), initial=0.0)
                in_pairs = of_pairs[self._model[row, None], counted]
                best = np.where(counted >= 0, np.maximum(best, in_pairs), best)
            each = np.arange(len(row))
            most = np.maximum.accumulate(best, axis=1)[each, jobs.max_workers[row]]
            fastest[row] = np.where(jobs.malleable[row], most, best[each, jobs.n_workers[row]])
        return fastest


def _check_gpus(jobs: Jobs, gpus_each: Floats) -> None:
    without = np.flatnonzero(gpus_each <= 0)
    if len(without):
        raise InputError(
            f"job {jobs.id[without[0]]} asks for no GPU; throughputs are per GPU. Give its workers a GPU, or use the "
            "recorded durations instead."
        )


def _by_workers(jobs: Jobs, kinds: Floats, table: Throughputs, types: tuple[str, ...]) -> Floats:
    """Return steps/s by kind of job (model, GPUs per worker), number of workers and device type, (C, W + 1, T)."""
    n_most = int(jobs.max_workers.max())
    rates = np.zeros((kinds.shape[1], n_most + 1, len(types)))
    for c, (k, gpus) in enumerate(kinds.T):
        counts = gpus * np.arange(1, n_most + 1)
        rates[c, 1:] = table.steps_per_s(jobs.models[int(k)], n_gpus=counts, device_types=types, warn=False)
    return rates


def _shared(jobs: Jobs, kinds: Floats, table: Throughputs, types: tuple[str, ...]) -> tuple[Ints, Floats]:
    """Return the measured speeds of pairs.

    Returns
    -------
    array
        (C, W + 1) the index of a kind's number of GPUs with so many workers among the measured ones, or -1.
    array
        (K, S, K, T) steps/s of the jobs' models beside each other, 0 where not measured.
    """
    counts = kinds[1][:, None] * np.arange(int(jobs.max_workers.max()) + 1)
    counted = np.full(counts.shape, -1, np.int32)
    if table.shared is None:
        return counted, np.zeros((1, 1, 1, len(types)))
    for s, n_gpus in enumerate(table.n_gpus):
        counted[counts == n_gpus] = s
    models = [table.models.index(model) for model in jobs.models]
    known = [name.lower() for name in table.device_types]
    columns = [known.index(name.lower()) for name in types]
    pairs = table.shared[models][:, :, models][..., columns]
    return counted, np.ascontiguousarray(np.nan_to_num(pairs, nan=0.0))


@dataclass(frozen=True, eq=False, slots=True)
class _Apart:
    """What is known of gangs on more machines than needed."""

    by_workers: Floats
    """(C, W + 1, T) steps/s when spread; as on few machines where that was not measured."""
    fewest: Ints
    """(C, W + 1, T) machines that so many workers need on the empty cluster."""
    group_machine: Ints
    """(G,) the machine of each group."""

    @classmethod
    def of(cls, jobs: Jobs, cluster: Cluster, kinds: Floats, table: Throughputs, together: Floats) -> Self:
        known = {name.lower(): name for name in table.device_types}
        names = [known.get(f"{kind}{APART}".lower()) for kind in cluster.device_types]
        if not any(names):
            raise InputError(
                f"these throughputs have no column '{cluster.device_types[0]}{APART}' or the like, which placement "
                "needs; read Gavel's file with --throughputs FILE, or leave placement out."
            )
        by_workers, fewest = together.copy(), np.zeros(together.shape, np.int32)
        for c, (k, gpus) in enumerate(kinds.T):
            for t, name in enumerate(names):
                fewest[c, :, t] = _fewest(cluster, t, gpus, n_most=together.shape[1] - 1)
                if name is not None:
                    counts = gpus * np.arange(1, together.shape[1])
                    rates = _spread_rates(table, jobs.models[int(k)], name, counts)
                    by_workers[c, 1:, t] = np.where(rates > 0, rates, together[c, 1:, t])
        return cls(by_workers, fewest, np.ascontiguousarray(cluster.group_machine, np.int32))


def _spread_rates(table: Throughputs, model: str, name: str, counts: Floats) -> Floats:
    """Return steps/s of a model on a type with these numbers of GPUs; 0 where a number was measured only elsewhere."""
    rates: Floats = table.steps_per_s(model, n_gpus=counts, device_types=[name], warn=False)[:, 0]
    measured = table.alone[table.models.index(model), :, table.device_types.index(name)]
    for s, n_gpus in enumerate(table.n_gpus):
        rates[counts == n_gpus] = np.nan_to_num(measured[s])
    return rates


def _fewest(cluster: Cluster, device_type: int, gpus_each: float, *, n_most: int) -> Ints:
    """Return the machines that 0, 1, ... workers need on a type when the cluster is empty, (W + 1,)."""
    room = np.floor(cluster.capacity[:, GPUS] / gpus_each + 1e-9) * (cluster.group_type == device_type)
    holds = np.sort(np.bincount(cluster.group_machine, room, cluster.n_machines))[::-1]
    needed: Ints = np.searchsorted(np.cumsum(holds), np.arange(n_most + 1)).astype(np.int32) + 1
    needed[0] = 0
    return np.minimum(needed, np.count_nonzero(holds)).astype(np.int32)


@kernel
def _slowest(
    rates: Floats, shared: Floats, counted: Ints, kind: Ints, model: Ints, group_type: Ints, job: Ints, first: Ints,
    role: NDArray[np.int8], group: Ints, n_workers: Ints, partner: Ints,
) -> Floats:  # fmt: skip
    speeds = np.zeros(len(job))
    n_most = rates.shape[1] - 1
    for j in range(len(job)):
        k, n = kind[job[j]], min(n_workers[j], n_most)
        other = partner[j] if len(partner) else -1
        slowest = np.inf
        for p in range(first[j], first[j + 1]):
            if role[p] == 0 and other < 0:
                slowest = min(slowest, rates[k, n, group_type[group[p]]])
            elif role[p] == 0:
                s = counted[k, n]
                pair_speed = shared[model[job[j]], s, model[other], group_type[group[p]]] if s >= 0 else 0.0
                slowest = min(slowest, pair_speed)
        speeds[j] = slowest if n > 0 and slowest < np.inf else 0.0
    return speeds


@kernel
def _spread(
    fewest: Ints, kind: Ints, group_type: Ints, group_machine: Ints, job: Ints, first: Ints, role: NDArray[np.int8],
    group: Ints, count: Ints,
) -> Bools:  # fmt: skip
    """Return which gangs have workers of a device type on more machines than these need."""
    spread = np.zeros(len(job), np.bool_)
    for j in range(len(job)):
        for t in range(fewest.shape[2]):
            n, n_machines = 0, 0
            for p in range(first[j], first[j + 1]):
                if role[p] != 0 or group_type[group[p]] != t:
                    continue
                n += count[p]
                seen = False
                for q in range(first[j], p):
                    if role[q] == 0 and group_type[group[q]] == t:
                        seen |= group_machine[group[q]] == group_machine[group[p]]
                n_machines += not seen
            if n_machines > fewest[kind[job[j]], min(n, fewest.shape[1] - 1), t]:
                spread[j] = True
    return spread

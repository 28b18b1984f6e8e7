"""Speed of asynchronous training with parameter servers on CPU cores: the tightest of three limits, softly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError, unknown
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, Bools, Floats, Ints
from labkit.core.running import EachTask, Running, TaskUse
from labkit.speed.isolated import compact
from labkit.speed.units import samples_of_step

SHARDING: Final = ("dynamic", "static")
SOFTNESS: Final = 8.0
"""Exponent p of softmin(x) = (sum x^-p)^(-1/p): towards infinity it is the minimum."""


def softmin(*limits: ArrayLike) -> Floats:
    """Return a smooth minimum of positive numbers, element by element; infinite ones are no limit, 0 gives 0.

    >>> softmin(3.0, float("inf")), round(float(softmin(1.0, 1.0)), 3)
    (array(3.), 0.917)
    """
    with np.errstate(divide="ignore"):
        inverse = [1 / np.asarray(limit, np.float64) for limit in limits]
        largest = np.maximum(np.maximum.reduce(np.broadcast_arrays(*inverse)), 1e-300)
        together = sum((np.minimum(each, 1e300) / np.minimum(largest, 1e300)) ** SOFTNESS for each in inverse)
        speed: Floats = np.asarray(1 / (largest * np.asarray(together) ** (1 / SOFTNESS)))
    return speed


@dataclass(frozen=True, slots=True)
class Work:
    """What one step of a job takes; scalars or arrays that broadcast.

    The steps per second of n workers with w cores each, and of servers with s cores, are

        softmin(n w / c, s / (u h), n / t)

    with the core-seconds c that computing a gradient takes and u that applying it takes, the part h of the updates that
    the hottest server has, and the seconds t that a step of one worker takes however many cores there are. Core-seconds
    are cores in use over steps per second, as measured: Table 1 of DLRover [1]_ has both. The published eq. (1) adds up
    the times of the three in place of this (`labkit.speed.cpu`); read so, it does not reach Table 1.

    Attributes
    ----------
    compute_core_s, update_core_s : float or array
        c and u.
    rest_s : float or array
        t.
    hot : float or array
        Updates of the hottest servers against the mean, >= 1: of P servers, each of them has hot / P.
    n_hot : int
        How many servers are as hot as that. They are the ones with the most cores, where servers differ.

    References
    ----------
    .. [1] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", sec. 4.
    """

    compute_core_s: Any
    update_core_s: Any
    rest_s: Any
    hot: Any = 1.0
    n_hot: int = 1

    def __post_init__(self) -> None:
        for name, least in (("compute_core_s", 0.0), ("update_core_s", 0.0), ("rest_s", 0.0), ("hot", 1.0)):
            values = np.asarray(getattr(self, name), np.float64)
            bad = ~(values >= least) | ~np.isfinite(values)
            if bad.any():
                raise InputError(f"{name} is {values[bad].flat[0]:g}; expected a finite number >= {least:g}.")
        if self.n_hot < 1:
            raise InputError(f"n_hot is {self.n_hot}; expected a number of servers >= 1.")

    @classmethod
    def of_sample(
        cls, speed: float, *, cores_each: float, used_cores: tuple[float, float], hot: float = 1.0, n_hot: int = 1
    ) -> Work:
        """Return used cores (2,) and steps/s of one worker and one server with so many cores each."""
        compute, update = used_cores[0] / speed, used_cores[1] / speed
        rest = speed**-SOFTNESS - (cores_each / compute) ** -SOFTNESS - (cores_each / update) ** -SOFTNESS
        return cls(compute, update, max(rest, 0.0) ** (1 / SOFTNESS), hot, n_hot)

    def hottest_load(self, n_ps: ArrayLike) -> Floats:
        """Return the part of the updates that the hottest of n servers has; servers are alike where all can be hot."""
        n = np.maximum(np.asarray(n_ps, np.float64), 1)
        uneven = n > self.n_hot
        return np.asarray(np.where(uneven, np.minimum(np.asarray(self.hot) / n, 1 / self.n_hot), 1 / n))

    def loads(self, n_ps: int) -> Floats:
        """Return the part of the updates that each server has, (n_ps,), the hottest first.

        >>> Work(0.1, 0.1, 0.1, hot=1.5, n_hot=1).loads(3)
        array([0.5 , 0.25, 0.25])
        """
        loads = np.full(n_ps, self.hottest_load(n_ps))
        if n_ps > self.n_hot:
            loads[self.n_hot :] = (1 - self.n_hot * loads[0]) / (n_ps - self.n_hot)
        return loads

    def speed(self, n_workers: ArrayLike, *, worker_cores: ArrayLike, n_ps: ArrayLike, ps_cores: ArrayLike) -> Floats:
        """Return steps/s of gangs in which all workers are alike and all servers are, (...,)."""
        n, cores = np.asarray(n_workers, np.float64), np.asarray(ps_cores, np.float64)
        with np.errstate(divide="ignore"):
            compute = n * np.asarray(worker_cores) / np.asarray(self.compute_core_s)
            update = cores / (np.asarray(self.update_core_s) * self.hottest_load(n_ps))
            return softmin(compute, update, n / np.asarray(self.rest_s))


WORK: Final[Mapping[str, Work]] = {
    "wide-deep": Work.of_sample(12.0, cores_each=32, used_cores=(2.5, 5.7), hot=1.266, n_hot=2),
    "xdeepfm": Work.of_sample(6.2, cores_each=32, used_cores=(19.4, 3.1)),
}
"""Of the models of DLRover's Table 1, by the name in the catalogue: from its sample rows alone. `hot` of Wide&Deep is
set for its 210 steps/s; two servers are hot, as two were replaced."""


class Bottleneck:
    """Steps/s of jobs that train asynchronously with parameter servers on CPU cores, as `Work` has it.

    Workers of one job may have different cores: each computes at softmin(w / c, 1 / t), and the servers take the sum.
    So may servers: the slowest for its load is the limit. Machines and networks do not matter, only cores. A task that
    is slow (`running.troubles`) computes, or takes updates in, at its pace; a hot server has so many times the mean
    load, and the others share the rest as before.

    Parameters
    ----------
    jobs : Jobs
        N jobs, each with a server at least, none synchronous.
    cluster : Cluster
        Where they run.
    work : mapping, optional
        The work of a parameter update by the name of the model; by default that of DLRover's two models.
    sharding : str
        "dynamic": workers take samples as fast as they are. "static": each has as many of them in advance, so that a
        job of n workers comes to its end n times as fast as its slowest one; a worker that is faster is idle at last,
        and what it uses is told as the mean over its job.

    Raises
    ------
    InputError
        If the work of a model is not known, a job is synchronous or has no server, or the sharding is neither.
    """

    local = True
    amounts = True
    troubles = True

    def __init__(
        self, jobs: Jobs, cluster: Cluster, *, work: Mapping[str, Work] | None = None, sharding: str = "dynamic"
    ) -> None:
        from labkit.workloads import catalogue

        if sharding not in SHARDING:
            raise unknown("sharding", sharding, SHARDING)
        self.jobs, self.cluster, self.sharding = jobs, cluster, sharding
        names = [name if work and name in work else catalogue.model(name).name for name in jobs.models]
        known = WORK if work is None else work
        for name in names:
            if name not in known:
                raise InputError(
                    f"model {name} has no work on CPU cores that is known; speed model 'bottleneck' knows "
                    f"{', '.join(known)}: take another speed model, or give Bottleneck(work=...) its work."
                )
        self._work = [known[name] for name in names]
        self._refuse(jobs.sync, "is synchronous", "asynchronous")
        self._refuse(jobs.n_ps < 1, "has no parameter server", "at least one")
        if np.isnan(jobs.samples_per_step).all():
            self._updates_per_step: Floats = np.ones(len(jobs.models))
        else:
            batch = np.array([catalogue.model(name).batch for name in jobs.models], np.float64)
            self._updates_per_step = samples_of_step(jobs, batch=batch) / batch

    def _refuse(self, wrong: Bools, what: str, expected: str) -> None:
        if wrong.any():
            job = self.jobs.id[np.flatnonzero(wrong)[0]]
            raise InputError(
                f"job {job} {what}, and {int(wrong.sum()) - 1} more; speed model 'bottleneck' expects {expected}: take "
                "'step-time' for such jobs."
            )

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        speeds, _, _ = self._speeds_and_loads(running)
        return speeds

    def use(self, running: Running) -> TaskUse:
        """Return tasks' use: computing and updating take core-seconds, so that use follows from speed."""
        speeds, rates, loads = self._speeds_and_loads(running)
        owner = running.row_job()
        c, u = (self._column(name)[running.job][owner] for name in ("compute_core_s", "update_core_s"))
        updates = speeds * self._updates_per_step[self.jobs.model[running.job]]
        alone = _summed(owner, np.where(running.role == Role.WORKER, rates * running.count, 0.0), len(running.job))
        own = self._own(rates, updates, alone, running.n_workers, owner)
        worker = running.role == Role.WORKER
        with np.errstate(divide="ignore", invalid="ignore"):
            return TaskUse(
                cores=np.where(worker, own * c, updates[owner] * u * loads),
                step_s=np.where(worker, 1 / own, np.nan),
                compute_s=np.where(worker, 1 / rates, np.nan),
                load=np.where(worker, np.nan, loads),
            )

    def each(self, running: Running) -> EachTask:
        """Return the use of every single task, troubles included."""
        at, role, task, row = _tasks_of(running)
        speeds, rates, _ = self._speeds_and_loads(running)
        updates = speeds * self._updates_per_step[self.jobs.model[running.job]]
        pace = np.ones(len(at))
        for trouble in running.troubles:
            pace[(at == trouble["at"]) & (role == trouble["role"]) & (task == trouble["task"])] *= trouble["pace"]
        worker, number = role == Role.WORKER, running.job[at]
        of_row = self._cores(running)
        rate, cores = rates[row] * pace, of_row[row]
        alone = _summed(at, np.where(worker, rate, 0.0), len(running.job))
        c, u = (self._column(name)[number] for name in ("compute_core_s", "update_core_s"))
        loads = np.full(len(at), np.nan)
        loads[~worker] = np.concatenate(
            [np.empty(0), *(self._loads(running, j, of_row) for j in range(len(running.job)))]
        )
        own = self._own(rate, updates, alone, running.n_workers, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            use = TaskUse(
                cores=np.where(worker, own * c, updates[at] * u * loads),
                step_s=np.where(worker, 1 / own, np.nan),
                compute_s=np.where(worker, 1 / rate, u / (cores * pace)),
                load=loads,
            )
        return EachTask(at, role, task, row, use)

    def _own(self, rates: Floats, updates: Floats, alone: Floats, n_workers: Ints, owner: Ints) -> Floats:
        """Return updates/s of each worker, held up by the servers, or by the shares that all were given."""
        if self.sharding == "static":
            return np.where(rates > 0, updates[owner] / np.maximum(n_workers, 1)[owner], 0.0)
        part = np.divide(updates, alone, out=np.zeros(len(updates)), where=alone > 0)[owner]
        return np.asarray(rates * part)

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all: all that they allow, (N, T)."""
        return may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return the seconds of each job's steps with the gang and cores that it asked for, (N,).

        NaN for a job that does not fit the empty cluster.
        """
        jobs, fits = self.jobs, np.zeros(len(self.jobs), np.bool_)
        every_job = np.arange(len(jobs), dtype=np.int32)
        for kind in range(len(self.cluster.device_types)):
            fits[compact(jobs, self.cluster, which=every_job, device_type=kind)[1]] = True
        speed = np.full(len(jobs), np.nan)
        for k, work in enumerate(self._work):
            mine = np.flatnonzero((jobs.model == k) & fits)
            cores = {"worker_cores": jobs.worker_demand[mine, CPUS], "ps_cores": jobs.ps_demand[mine, CPUS]}
            speed[mine] = work.speed(jobs.n_workers[mine], n_ps=jobs.n_ps[mine], **cores) / self._updates_per_step[k]
        return np.asarray(jobs.total_steps / np.where(speed > 0, speed, np.nan))

    def _column(self, name: str) -> Floats:
        """Return a constant of each job, (N,)."""
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        names = ("compute_core_s", "update_core_s", "rest_s")
        return {n: np.array([getattr(w, n) for w in self._work], np.float64)[self.jobs.model] for n in names}

    def _cores(self, running: Running) -> Floats:
        """Return the cores of each task of a row, (P,)."""
        if len(running.cpus):
            return np.asarray(running.cpus, np.float64)
        demand = np.stack([self.jobs.worker_demand[:, CPUS], self.jobs.ps_demand[:, CPUS]])
        declared: Floats = demand[running.role, running.job[running.row_job()]]
        return declared

    def _speeds_and_loads(self, running: Running) -> tuple[Floats, Floats, Floats]:
        """Return steps/s (J,), updates/s of a worker of each row if servers were no limit, and a server's load (P,)."""
        cores, owner = self._cores(running), running.row_job()
        c, t = (self._column(name)[running.job][owner] for name in ("compute_core_s", "rest_s"))
        worker = running.role == Role.WORKER
        with np.errstate(divide="ignore"):
            rates = np.where(worker, softmin(cores / c, 1 / t), 0.0)
        compute = self._computing(running, rates, owner)
        loads, update = self._servers(running, cores)
        works = (running.n_workers > 0) & (running.n_ps > 0) & (compute > 0) & (update > 0)
        updates = np.where(works, softmin(np.where(works, compute, 1.0), np.where(works, update, 1.0)), 0.0)
        return updates / self._updates_per_step[self.jobs.model[running.job]], rates, loads

    def _computing(self, running: Running, rates: Floats, owner: Ints) -> Floats:
        """Return the updates/s that the workers of each job compute, (J,)."""
        rows = running.troubles[running.troubles["role"] == Role.WORKER]
        compute = _summed(owner, rates * running.count, len(running.job))
        if not len(rows) and self.sharding == "dynamic":
            return compute
        slowest = np.full(len(running.job), np.inf)
        working = running.role == Role.WORKER
        np.minimum.at(slowest, owner[working], rates[working])
        for at, _, task, pace, _ in rows.tolist():
            mine = np.flatnonzero(working & (owner == at))
            ends = np.cumsum(running.count[mine])
            if task < (ends[-1] if len(ends) else 0):
                rate = rates[mine[np.searchsorted(ends, task, side="right")]]
                compute[at] -= rate * (1 - pace)
                slowest[at] = min(slowest[at], rate * pace)
        if self.sharding == "static":
            return np.where(running.n_workers > 0, running.n_workers * slowest, 0.0)
        return compute

    def _loads(self, running: Running, j: int, of_row: Floats) -> Floats:
        """Return the part of the updates that each server of one job has, in order; `of_row`: cores of a task (P,)."""
        first, end = running.first[j], running.first[j + 1]
        rows = first + np.flatnonzero(running.role[first:end] == Role.PS)
        count = running.count[rows]
        cores = np.repeat(of_row[rows], count)
        loads = np.empty(len(cores))
        loads[np.argsort(-cores, kind="stable")] = self._work[self.jobs.model[running.job[j]]].loads(len(cores))
        hot = np.zeros(len(cores))
        for _, _, task, _, load in _of_servers(running, j):
            if load > 1 and task < len(cores):
                hot[task] = max(hot[task], load / len(cores))
        return _heated(loads, hot)

    def _servers(self, running: Running, cores: Floats) -> tuple[Floats, Floats]:
        """Return the mean load of a server of each row, (P,), and the updates/s that servers can take in, (J,)."""
        loads, update = np.zeros(len(running.role)), np.zeros(len(running.job))
        for j, (number, first, end) in enumerate(zip(running.job, running.first[:-1], running.first[1:], strict=True)):
            rows: Ints = first + np.flatnonzero(running.role[first:end] == Role.PS).astype(np.int32)
            n = int(running.count[rows].sum())
            if not n:
                continue
            work = self._work[self.jobs.model[number]]
            order = rows[np.argsort(-cores[rows], kind="stable")]  # blocks that are hot are where the cores are
            of_task, each = np.repeat(order, running.count[order]), work.loads(n)
            if len(running.troubles) and (troubles := _of_servers(running, j)):
                each, of_task, paces = self._loads(running, j, cores), np.repeat(rows, running.count[rows]), np.ones(n)
                for _, _, task, pace, _ in troubles:
                    paces[task : task + 1] *= pace
                np.maximum.at(loads, of_task, each)
                update[j] = (cores[of_task] * paces / np.maximum(work.update_core_s * each, 1e-300)).min()
                continue
            np.maximum.at(loads, of_task, each)
            update[j] = (cores[of_task] / np.maximum(work.update_core_s * each, 1e-300)).min()
        return loads, update


def _summed(owner: Ints, values: Floats, n: int) -> Floats:
    """Return the sum of the values of each of n owners, (n,)."""
    return np.asarray(np.bincount(owner, values, n), np.float64)


def _of_servers(running: Running, j: int) -> list[tuple[int, int, int, float, float]]:
    """Return the troubles of the servers of one job: at, role, task, pace, load."""
    rows = running.troubles
    found: list[tuple[int, int, int, float, float]] = rows[(rows["at"] == j) & (rows["role"] == Role.PS)].tolist()
    return found


def _heated(loads: Floats, hot: Floats) -> Floats:
    """Return loads of which some (not 0) are set; the others share what is left as they did before.

    >>> _heated(np.array([0.25, 0.25, 0.25, 0.25]), np.array([0.5, 0, 0, 0])).round(3)
    array([0.5  , 0.167, 0.167, 0.167])
    """
    heated, total = hot > 0, float(hot.sum())
    if not heated.any():
        return loads
    if total >= 1 or heated.all():
        return np.asarray(hot / total)
    rest: Floats = np.where(heated, 0.0, loads)
    return np.asarray(np.where(heated, hot, rest * (1 - total) / rest.sum()))


def _tasks_of(running: Running) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
    """Return job position, role, number within the role and row of every single task, in order of the three, (K,)."""
    row = np.repeat(np.arange(len(running.role), dtype=np.int32), running.count)
    at, role = running.row_job()[row], running.role[row]
    order = np.lexsort((row, role, at))
    at, role, row = at[order], role[order], row[order]
    key = at * len(Role) + role
    begins = np.append(0, np.flatnonzero(np.diff(key)) + 1) if len(key) else np.empty(0, np.int64)
    sizes = np.diff(np.append(begins, len(key)))
    task = (np.arange(len(key)) - np.repeat(begins, sizes)).astype(np.int32)
    return at, role, task, row

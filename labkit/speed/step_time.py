"""Speed from first principles: compute, interference, and communication over the links that jobs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.cluster import Cluster
from labkit.core.device_types import could_run_on, may_run_on
from labkit.core.errors import InputError, unknown
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS, Bools, Floats
from labkit.core.running import Running, TaskUse
from labkit.speed.cpu import CpuModel
from labkit.speed.interference.use import Interference
from labkit.speed.isolated import compact
from labkit.speed.network import Flows, RoleTasks, Share, bandwidth_gbps, flows_of
from labkit.speed.own_slowdown import RigidGang, least_step_s
from labkit.speed.retiming import Retiming, knows
from labkit.speed.units import samples_of_step

ANY_GBPS: Final = 1e12
"""Workers that need no GPU may move any amount over a bus."""

Slowdown = Callable[[Running], Floats]
"""Running jobs -> how much co-located tasks slow them, >= 1: one for each job (J,) or for each row of tasks (P,)."""


class StepTime:
    """Steps/s of a job: the slowest worker's compute and the slowest exchange make a step [1]_.

    Synchronous: the global batch is constant, each of w workers computes 1/w of it, and the next step begins when the
    last worker has finished and the last pair has exchanged. Asynchronous: every worker computes whole batches at its
    own rate and each of its pushes counts as a step. All-reduce (a job that asked for no parameter server) is
    synchronous always.

    Parameters
    ----------
    jobs : Jobs
        N jobs.
    cluster : Cluster
        With its network, or without.
    compute_s : array_like
        (N,) seconds in which one worker computes the gradient of the global batch.
    model_bytes : array_like
        (N,) bytes of the parameters.
    type_speed : array_like
        (T,) or (N, T) speed of each device type against the one that `compute_s` was measured on; 0: cannot run there.
    share : {"max-min", "equal"}
        How flows share links: fairly, or by the literal "bottleneck bandwidth", capacity over flows.
    slowdown : callable, optional
        The interference among co-located jobs; without it there is none.
    cpu : CpuModel, optional
        Work on CPU cores, per job (N,), that adds to each step, on the cores that each task has (`Running.cpus`). Its
        `compute_core_s` is for a whole batch, of which a synchronous worker computes its part. Work is 0 for jobs that
        have none.
    updates_per_step : array_like
        (N,) parameter updates in a step of the trace; less than 1 where it counts samples.

    Raises
    ------
    InputError
        If a column is of another length, negative or NaN, or `share` is misspelt.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        compute_s: ArrayLike,
        model_bytes: ArrayLike,
        type_speed: ArrayLike = 1.0,
        share: Share = "max-min",
        slowdown: Slowdown | None = None,
        cpu: CpuModel | None = None,
        updates_per_step: ArrayLike = 1.0,
    ) -> None:
        if share not in ("max-min", "equal"):
            raise unknown("way to share links", share, ("max-min", "equal"))
        self.jobs, self.cluster, self.share, self.slowdown, self.cpu = jobs, cluster, share, slowdown, cpu
        self.compute_s = _column("compute_s", compute_s, (len(jobs),))
        self.model_bytes = _column("model_bytes", model_bytes, (len(jobs),))
        self.updates_per_step = _column("updates_per_step", updates_per_step, (len(jobs),))
        self.type_speed = _column("type_speed", type_speed, (len(jobs), len(cluster.device_types)))
        self.local = cluster.network is None and slowdown is None
        with np.errstate(divide="ignore"):
            self.type_s = 1 / self.type_speed
        self.amounts = cpu is not None
        self._cpu = {} if cpu is None else {f: _column(f, getattr(cpu, f), (len(jobs),)) for f in cpu.__slots__}

        empty = np.flatnonzero(self.updates_per_step <= 0)
        if len(empty):
            raise InputError(f"updates_per_step of job {empty[0]} is 0; expected a number > 0.")
        idle = np.flatnonzero(self.compute_s + self._cpu.get("compute_core_s", 0.0) <= 0)
        if len(idle):
            raise InputError(
                f"compute_s of job {idle[0]} is 0 and it has no work on CPU cores; a step takes some time."
            )

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,).

        From one call to the next, only jobs that a change touched are timed anew (`labkit.speed.retiming`).
        """
        return self._speeds(running, alone=False) if self._retiming is None else self._retiming.speeds(running)

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        return (self.type_speed > 0) & may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return the seconds of each job's declared steps, (N,).

        With the gang that it asked for, packed as tightly as the empty cluster allows, on its best device type;
        NaN for a job that does not fit even then.
        """
        return np.asarray(self.jobs.total_steps / np.where(self._speeds_alone > 0, self._speeds_alone, np.nan))

    def fastest(self) -> Floats | None:
        """Return steps/s that no gang can exceed, (N,): on the best type that a job may have, over one PCIe bus, alone.

        With interference, tasks of a rigid gang slow each other, or exchange over a network card
        (`labkit.speed.own_slowdown`). None with work on CPU cores, of which there may be any number. More workers or
        servers are never slower, but around a ring, where all numbers of workers are tried.
        """
        if self.cpu is not None:
            return None
        jobs, best, could = self.jobs, np.zeros(len(self.jobs)), could_run_on(self.jobs, self.cluster)
        ring = jobs.n_ps == 0
        for kind in range(len(self.cluster.device_types)):
            pcie = self.cluster.group_pcie_gbps[self.cluster.group_type == kind].max(initial=0.0)
            for fewer in range(int(jobs.max_workers[ring].max(initial=1))):
                w = np.where(ring, np.maximum(jobs.max_workers - fewer, 1), jobs.max_workers)
                part = np.where(ring, (w - 1) / w, 1 / np.maximum(jobs.max_ps, 1))
                with np.errstate(divide="ignore", invalid="ignore"):
                    exchange_s = np.nan_to_num(2 * part * self.model_bytes * 8e-9 / pcie, posinf=np.inf)
                    sync = jobs.sync | ring
                    step_s = self.compute_s * np.where(sync, 1 / w, 1.0) * self.type_s[:, kind] + exchange_s
                    best = np.maximum(best, np.where(could[:, kind], np.where(sync, 1.0, w) / step_s, 0.0))
        if isinstance(self.slowdown, Interference):
            best = np.minimum(best, self._fastest_gangs(self.slowdown))
        fastest: Floats = best / self.updates_per_step
        return fastest

    def _fastest_gangs(self, interference: Interference) -> Floats:
        """Return updates/s that no placement of a rigid gang can exceed, (N,); inf for other jobs."""
        jobs, could = self.jobs, could_run_on(self.jobs, self.cluster)
        ring, workers = jobs.n_ps == 0, np.maximum(jobs.n_workers, 1)
        part = np.where(ring, (workers - 1) / workers, 1 / np.maximum(jobs.n_ps, 1))
        sync = jobs.sync | ring
        compute_s = (self.compute_s / np.where(sync, workers, 1))[:, None] * np.where(could, self.type_s, np.inf)
        number: dict[RigidGang, int] = {}
        which, rigid = np.zeros(len(jobs), np.int64), np.flatnonzero(~jobs.malleable)
        for j in rigid:
            gang = RigidGang(
                int(jobs.n_workers[j]), int(jobs.n_ps[j]), tuple(jobs.worker_demand[j]), tuple(jobs.ps_demand[j]),
                tuple(interference.cores[:, j]), tuple(interference.pcie_gbps[:, j]), tuple(compute_s[j]),
                float(2 * part[j] * self.model_bytes[j] * 8e-9), bool(sync[j]),
            )  # fmt: skip
            which[j] = number.setdefault(gang, len(number))
        best = np.full(len(jobs), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_gpu = np.nan_to_num(interference.pcie_gbps[0] / jobs.worker_demand[:, GPUS], posinf=ANY_GBPS).max(
                initial=0
            )
            most_gbps = by_gpu * self.cluster.capacity[:, GPUS]
            step_s = least_step_s([*number], self.cluster, model=interference.model, most_gbps=most_gbps)
            best[rigid] = 1 / step_s[which[rigid]]
        return best

    def _speeds(self, running: Running, *, alone: bool) -> Floats:
        n = len(running.job)
        workers, servers = RoleTasks.of(running, Role.WORKER), RoleTasks.of(running, Role.PS)
        all_reduce = (self.jobs.n_ps[running.job] == 0) & (servers.count == 0)
        sync, compute_s, exchange_s = self._seconds(running, workers, servers, alone=alone)
        with np.errstate(divide="ignore"):
            together = 1 / (_largest(compute_s, workers, n) + _largest(exchange_s, workers, n))
            apart = np.bincount(workers.job, 1 / (compute_s + exchange_s), n)
        works = (workers.count > 0) & (all_reduce | (servers.count > 0))
        updates: Floats = np.where(works, np.where(sync, together, apart), 0.0)
        return updates / self.updates_per_step[running.job]

    def _seconds(
        self, running: Running, workers: RoleTasks, servers: RoleTasks, *, alone: bool
    ) -> tuple[Bools, Floats, Floats]:
        """Return which jobs are synchronous, and seconds that each worker computes and exchanges, (J,), (W,), (W,)."""
        jobs = running.job
        sync = self.jobs.sync[jobs] | ((self.jobs.n_ps[jobs] == 0) & (servers.count == 0))
        compute_s = self._compute_s(running, workers, sync=sync, alone=alone)
        flows = flows_of(running, jobs=self.jobs, model_bytes=self.model_bytes)
        return sync, compute_s, self._exchange_s(flows, len(workers), alone=alone)

    def use(self, running: Running) -> TaskUse:
        """Return tasks' use: cores as far as `cpu` models them, loads as blocks are spread evenly.

        A worker computes without what it does beside: reading its batch, updates on the servers, the exchange.
        """
        n, rows = len(running.job), len(running.role)
        workers, servers = RoleTasks.of(running, Role.WORKER), RoleTasks.of(running, Role.PS)
        sync, busy_s, exchange_s = self._seconds(running, workers, servers, alone=False)
        together = _largest(busy_s, workers, n) + _largest(exchange_s, workers, n)
        step_s = np.where(sync[workers.job], together[workers.job], busy_s + exchange_s)
        cores, fixed_s = np.full(rows, np.nan), np.zeros(n)
        if self.cpu is not None:
            part = np.where(sync, 1 / np.maximum(workers.count, 1), 1.0)[workers.job]
            _, fixed_s = self._cpu_terms(running, workers)
            work = {name: column[running.job] for name, column in self._cpu.items()}
            core_s = part * (work["compute_core_s"] / work["core_speed"])[workers.job]
            cores[workers.row] = core_s / step_s
            pushes = np.bincount(workers.job, 1 / step_s, n)  # gradients per second
            update = pushes * work["update_core_s"] / work["core_speed"] / np.maximum(servers.count, 1)
            cores[servers.row] = update[servers.job]
        load = np.full(rows, np.nan)
        load[servers.row] = (1 / np.maximum(servers.count, 1))[servers.job]
        return TaskUse(
            cores=cores, step_s=_of_rows(step_s, workers, rows), load=load,
            compute_s=_of_rows(busy_s - fixed_s[workers.job], workers, rows),
        )  # fmt: skip

    def _compute_s(self, running: Running, workers: RoleTasks, *, sync: Bools, alone: bool) -> Floats:
        """Return seconds of each worker for its part of the batch, slowed by its neighbours, (W,)."""
        job = running.job[workers.job]
        part = np.where(sync, 1 / np.maximum(workers.count, 1), 1.0)[workers.job]
        kind = self.cluster.group_type[workers.group]
        seconds: Floats = self.compute_s[job] * part * self.type_s[job, kind]
        if self.slowdown is not None and not alone:
            slower = self.slowdown(running)
            seconds *= slower[workers.job] if len(slower) == len(running.job) else slower[workers.row]
        return seconds if self.cpu is None else seconds + self._cpu_s(running, workers, part=part)

    def _cpu_s(self, running: Running, workers: RoleTasks, *, part: Floats) -> Floats:
        """Return the seconds of DLRover's CPU terms, (W,)."""
        compute_s, fixed_s = self._cpu_terms(running, workers)
        seconds: Floats = compute_s * part + fixed_s[workers.job]
        return seconds

    def _cpu_terms(self, running: Running, workers: RoleTasks) -> tuple[Floats, Floats]:
        """Return seconds of each worker for a batch, (W,), and beside it of each job for update and input, (J,)."""
        terms = CpuModel(**{name: column[running.job] for name, column in self._cpu.items()})
        ps_cores = running.n_ps * self.jobs.ps_demand[running.job, CPUS]
        if len(running.cpus):
            ps_cores = ps_cores + self._more_ps_cores(running)
            each = CpuModel(**{name: column[running.job[workers.job]] for name, column in self._cpu.items()})
            compute_s = each.compute_s(running.cpus[workers.row])
        else:
            compute_s = terms.compute_s(self.jobs.worker_demand[running.job, CPUS])[workers.job]
        update_s = np.where(running.n_ps > 0, terms.update_s(ps_cores, n_workers=workers.count), 0.0)
        return compute_s, update_s + np.asarray(terms.io_s)

    def _more_ps_cores(self, running: Running) -> Floats:
        """Return how many cores more than declared the servers of each job have together, (J,)."""
        row_job = running.row_job()
        more = running.count * (running.cpus - self.jobs.ps_demand[running.job[row_job], CPUS])
        together = np.zeros(len(running.job))
        np.add.at(together, row_job, np.where(running.role == Role.PS, more, 0.0))
        return together

    def _exchange_s(self, flows: Flows, n_workers: int, *, alone: bool) -> Floats:
        """Return seconds that each worker waits for its slowest exchange, (W,)."""
        seconds = np.zeros(n_workers)
        gbps = bandwidth_gbps(self.cluster, flows, share=self.share, alone=alone)
        with np.errstate(divide="ignore"):
            np.maximum.at(seconds, flows.worker, flows.size_bytes * 8e-9 / gbps)
        return seconds

    @cached_property
    def _retiming(self) -> Retiming | None:
        """What was running last; None: all jobs are timed at each call."""
        return Retiming(self) if type(self) is StepTime and knows(self) else None

    @cached_property
    def _speeds_alone(self) -> Floats:
        """Speed of each job alone, on its best device type, (N,)."""
        jobs = self.jobs
        shape = np.column_stack([jobs.n_workers, jobs.n_ps, jobs.worker_demand, jobs.ps_demand])
        columns = [
            self.compute_s,
            self.model_bytes,
            self.updates_per_step,
            jobs.sync,
            self.type_speed,
            *self._cpu.values(),
        ]
        _, example, same = np.unique(np.column_stack([shape, *columns]), axis=0, return_index=True, return_inverse=True)
        best = np.zeros(len(example))
        for kind in range(len(self.cluster.device_types)):
            running, placed = compact(jobs, self.cluster, which=example, device_type=kind)
            best[placed] = np.maximum(best[placed], self._speeds(running, alone=True))
        return best[same.ravel()]


def step_time(
    jobs: Jobs,
    cluster: Cluster,
    *,
    type_speed: Mapping[str, float] | None = None,
    share: Share = "max-min",
    slowdown: Slowdown | None = None,
    cpu: CpuModel | None = None,
) -> StepTime:
    """Return the model of jobs that the catalogue knows by name, in the steps that they count.

    Parameters
    ----------
    jobs : Jobs
        N jobs; their models are names of `labkit.workloads.catalogue`.
    cluster : Cluster
        Where they run.
    type_speed : mapping, optional
        Speed of device types by name, 1 for those not named.
    share, slowdown, cpu
        As for `StepTime`.

    Raises
    ------
    InputError
        If the catalogue does not know a model, or the cluster not a device type.
    """
    from labkit.workloads import catalogue

    for name in type_speed or {}:
        if name not in cluster.device_types:
            raise unknown("device type", name, cluster.device_types)
    models = [catalogue.model(name) for name in jobs.models]
    batch = np.array([model.batch for model in models], dtype=np.float64)
    return StepTime(
        jobs,
        cluster,
        updates_per_step=(samples_of_step(jobs, batch=batch) / batch)[jobs.model],
        compute_s=np.array([model.compute_s for model in models])[jobs.model],
        model_bytes=np.array([model.bytes for model in models], dtype=np.float64)[jobs.model],
        type_speed=np.array([(type_speed or {}).get(kind, 1.0) for kind in cluster.device_types]),
        share=share,
        slowdown=slowdown,
        cpu=cpu,
    )


def _largest(values: Floats, tasks: RoleTasks, n: int) -> Floats:
    """Return the largest value among each job's tasks, (J,); 0 where it has none."""
    largest = np.zeros(n)
    np.maximum.at(largest, tasks.job, values)
    return largest


def _of_rows(values: Floats, tasks: RoleTasks, n: int) -> Floats:
    """Return the largest value among the tasks of each row, (P,); NaN where it has none."""
    rows = np.full(n, np.nan)
    np.fmax.at(rows, tasks.row, values)
    return rows


def _column(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return values broadcast to a shape, checked."""
    array = np.asarray(values, np.float64)
    try:
        column = np.array(np.broadcast_to(array, shape))
    except ValueError:
        raise InputError(f"{name} has shape {array.shape}; expected {shape} or what broadcasts to it.") from None
    bad = np.argwhere(~(column >= 0))
    if len(bad):
        raise InputError(f"{name} of job {bad[0][0]} is {column[tuple(bad[0])]:g}; expected 0 or more.")
    return column

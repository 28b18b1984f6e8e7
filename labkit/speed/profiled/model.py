"""The speed model of a measured testbed: each gang as fast as it was alone, slowed by those that share its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.speed.measured import SpeedTable
from labkit.speed.optimus import PRIOR, SpeedFunction
from labkit.speed.profiled.contention import MeasuredContention, max_min
from labkit.speed.profiled.overheads import ChangeCost, Costs, weight_of
from labkit.speed.profiled.profile import GangMeasurement, TestbedProfile
from labkit.speed.units import refuse_samples


class GangTable(NamedTuple):
    """What gangs do alone: seconds of an update (J,); cores that they keep busy, and processes that compete, (J, K)."""

    step_s: Floats
    cores: Floats
    weight: Floats


class ProfiledSpeed:
    """Steps per second as on the testbed that a profile describes.

    A gang alone makes an update in the seconds that were measured, and keeps cpu_s / step_s cores busy. Gangs on one
    machine share its cores: while they want more than there are, these are divided max-min fairly among their
    processes, and a gang that gets half of what it wants is half as fast. What co-located jobs slow each other beyond
    that, where it was measured, is a factor of its own. A gang on several machines is as fast as on
    the tightest of them. Starts and rescales take their share of the cores too, and take longer beside others: it is a
    `ChangeModel`.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Which jobs train, and where.
    profile : TestbedProfile
        What was measured.

    Raises
    ------
    InputError
        If the profile does not know a model.
    """

    local = False

    def __init__(self, jobs: Jobs, cluster: Cluster, *, profile: TestbedProfile) -> None:
        refuse_samples(jobs, what="a testbed's profile")
        self.jobs, self.cluster, self.profile = jobs, cluster, profile
        self.group_pool, self.pool_cores = profile.pool_of(cluster)
        self.warm_s = profile.warm_s
        self._kind, kinds = _kinds(jobs)
        self._grids = [
            UpdateGrid.of(
                profile.of(model, sync=sync),
                max_ps=max(int(jobs.max_ps.max()), 1) + 1,
                max_workers=int(jobs.max_workers.max()) + 1,
            )
            for model, sync in kinds
        ]

        self._costs = [Costs(profile.overheads, model) for model in jobs.models]
        self._contention = MeasuredContention.of(profile)
        self._change_costs: dict[tuple[int, int], tuple[ChangeCost, ChangeCost, ChangeCost]] = {}

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        if not len(running.job):
            return np.empty(0)
        gangs = self.alone(running)
        others = gangs.cores.sum(axis=0) - gangs.cores
        return self.shares(gangs.cores, gangs.weight) / gangs.step_s / self._contended(running, gangs.cores, others)

    def change_s(self, jobs: Ints, *, n_new: Ints, cold: Bools | None = None) -> Floats:
        """Return the seconds of a start, a restart and a rescale with no job beside it, (J, 3)."""
        found = [self._costs_of(job, n) for job, n in zip(jobs.tolist(), n_new.tolist(), strict=True)]
        seconds = np.array([[cost.seconds for cost in costs] for costs in found]).reshape(-1, 3)
        if cold is not None:
            extra_s = np.array([self._costs[model].cold_s for model in self.jobs.model[jobs].tolist()])
            seconds[:, :2] += (extra_s * cold)[:, None]
        return seconds

    def rates(self, running: Running) -> tuple[Floats, Floats]:
        """Return steps per second of each job, 0 of those that start, and the pace of its change, (J,) each."""
        if not len(running.changing):
            return self.speeds(running), np.ones(len(running.job))
        gangs, trains = self.alone(running), running.changing != 1
        here = self.tasks_by_pool(running).sum(axis=0)
        wanted, heavy = self._change_cores(running)
        part = here / here.sum(axis=1, keepdims=True)
        cores = np.concatenate([gangs.cores * trains[:, None], wanted[:, None] * part])
        weight = np.concatenate([gangs.weight, heavy[:, None] * part])
        share = self.shares(cores, weight)
        n = len(running.job)
        contended = self._contended(running, gangs.cores, cores.sum(axis=0) - cores[:n] - cores[n:])
        pace = share[n:] / self._press(running, cores)
        return np.where(trains, share[:n] / gangs.step_s / contended, 0.0), pace

    def _contended(self, running: Running, cores: Floats, others: Floats) -> Floats:
        """Return by how much longer than the sharing of cores says each gang takes beside the others, (J,)."""
        models = [self.jobs.models[model] for model in self.jobs.model[running.job].tolist()]
        return self._contention.slowdown(cores, others, models)

    def _change_cores(self, running: Running) -> tuple[Floats, Floats]:
        """Return the cores that the change of each job wants, (J,), 0 without one, and as how many it competes."""
        cores, weight = np.zeros(len(running.job)), np.ones(len(running.job))
        for i in np.flatnonzero(running.changing):
            start, _, rescale = self._costs_of(int(running.job[i]), int(running.n_new[i]))
            kind, cost = ("start", start) if running.changing[i] == 1 else ("rescale", rescale)
            cores[i] = cost.cpu_s / cost.seconds if cost.seconds > 0 else 0.0
            weight[i] = weight_of(kind, float(cores[i]), n_new=int(running.n_new[i]))
        return cores, weight

    def _press(self, running: Running, cores: Floats) -> Floats:
        """Return the factor by which the change of each job takes longer than its share of the cores says, (J,)."""
        pressed = np.ones(len(running.job))
        excess = cores.sum(axis=0) / self.pool_cores - 1.0
        for i in np.flatnonzero(running.changing):
            here = cores[len(running.job) + i] > 0
            press = self._contention.start if running.changing[i] == 1 else self._contention.rescale
            pressed[i] = press.at(float(excess[here].max(initial=0.0)))
        return pressed

    def _costs_of(self, job: int, n_new: int) -> tuple[ChangeCost, ChangeCost, ChangeCost]:
        key = int(self.jobs.model[job]), n_new
        if key not in self._change_costs:
            costs = self._costs[key[0]]
            self._change_costs[key] = costs.start(n_new), costs.start(n_new, again=True), costs.rescale(n_new)
        return self._change_costs[key]

    def alone(self, running: Running) -> GangTable:
        """Return the speed and core use of each gang alone."""
        n_hosts = self._n_hosts(running)
        step_s, worker_s, ps_s = (np.empty(len(running.job)) for _ in range(3))
        kind = self._kind[running.job]
        for k in np.unique(kind):
            mine, grid = kind == k, self._grids[k]
            where = tuple(
                np.minimum(numbers[mine], size - 1)
                for numbers, size in zip((n_hosts, running.n_ps, running.n_workers), grid.step_s.shape, strict=True)
            )
            step_s[mine], worker_s[mine], ps_s[mine] = (
                grid.step_s[where],
                grid.worker_cpu_s[where],
                grid.ps_cpu_s[where],
            )
        here = self.tasks_by_pool(running)
        here[1] += np.where((running.n_ps == 0)[:, None], here[0] / np.maximum(running.n_workers, 1)[:, None], 0.0)
        each = np.stack([worker_s / np.maximum(running.n_workers, 1), ps_s / np.maximum(running.n_ps, 1)]) / step_s
        cores = here[0] * each[0][:, None] + here[1] * each[1][:, None]
        busiest = np.where(here > 0, each[:, :, None], 0.0).max(axis=0)
        weight = np.divide(cores, busiest, out=np.ones_like(cores), where=busiest > 0)
        return GangTable(step_s, cores, weight)

    def shares(self, cores: Floats, weight: Floats) -> Floats:
        """Return which part of the cores that it wants each gang gets, (J,).

        Parameters
        ----------
        cores : array
            (J, K) what each wants in each pool.
        weight : array
            (J, K) processes that compete there.
        """
        part = np.ones(len(cores))
        for pool, there in enumerate(self.pool_cores):
            wants = cores[:, pool] > 0
            if cores[wants, pool].sum() > there:
                got = max_min(cores[wants, pool], there, weight=weight[wants, pool])
                part[wants] = np.minimum(part[wants], got / cores[wants, pool])
        return part

    def tasks_by_pool(self, running: Running) -> Floats:
        """Return how many tasks of each role each gang has in each pool, (2, J, K)."""
        tasks = np.zeros((2, len(running.job), len(self.pool_cores)))
        np.add.at(tasks, (running.role, running.row_job(), self.group_pool[running.group]), running.count)
        return tasks

    def _n_hosts(self, running: Running) -> Ints:
        """Return over how many hosts each gang is spread, (J,)."""
        machine = self.cluster.group_machine[running.group].astype(np.int64)
        pairs = np.unique(running.row_job() * np.int64(self.cluster.n_machines) + machine)
        counts: Ints = np.bincount(pairs // self.cluster.n_machines, minlength=len(running.job)).astype(np.int32)
        return counts

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types: all that they allow, (N, T)."""
        return may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with the gang it asked for, alone on one host, (N,)."""
        jobs, n = self.jobs, len(self.jobs)
        running = Running(
            job=np.arange(n, dtype=np.int32), first=np.zeros(n + 1, np.int32), role=np.empty(0, np.int8),
            group=np.empty(0, np.int32), count=np.empty(0, np.int32), n_workers=jobs.n_workers, n_ps=jobs.n_ps,
        )  # fmt: skip
        return jobs.total_steps * self.alone(running).step_s


def _kinds(jobs: Jobs) -> tuple[NDArray[np.intp], list[tuple[str, bool]]]:
    """Return the kind of each job, (N,), and the kinds: what trains, and whether synchronously."""
    pairs, kind = np.unique(np.stack([jobs.model, jobs.sync.astype(np.int32)]), axis=1, return_inverse=True)
    return kind.ravel(), [(jobs.models[model], bool(sync)) for model, sync in pairs.T]


@dataclass(frozen=True, eq=False, slots=True)
class UpdateGrid:
    """What an update takes with every gang up to a size; row 0 of an axis is that of 1."""

    step_s: Floats
    """(H + 1, P + 1, W + 1) seconds; index [0] of an axis repeats [1]."""
    worker_cpu_s: Floats
    ps_cpu_s: Floats
    """`worker_cpu_s` and `ps_cpu_s`: of the same shape: processor seconds of workers (and of what runs beside them),
    and of parameter servers."""

    @classmethod
    def of(cls, cells: Sequence[GangMeasurement], *, max_ps: int, max_workers: int) -> UpdateGrid:
        """Return the grid of one model's measured gangs.

        A measured gang has its measured numbers. One that was measured over another number of hosts only is changed as
        those are that were measured over both.
        Between measured gangs, radial-basis functions as in `SpeedTable.interpolate`, never beyond what was measured;
        outside of them, Optimus' speed function, passing through the nearest measured gang.
        """
        spans = sorted({cell.n_hosts for cell in cells})
        shape = (max_ps, max_workers)
        layers = [_layer(_nearest(cells, span), *shape) for span in range(1, spans[-1] + 1)]
        arrays = [_padded(np.stack([layer[i] for layer in layers])) for i in range(3)]
        return cls(*arrays)


def _nearest(cells: Sequence[GangMeasurement], span: int) -> list[GangMeasurement]:
    """Return one cell of each gang: that over so many hosts, or the most similar number, changed as others change."""
    best: dict[tuple[int, int], GangMeasurement] = {}
    for cell in sorted(cells, key=lambda cell: (abs(cell.n_hosts - span), cell.n_hosts)):
        best.setdefault((cell.n_ps, cell.n_workers), cell)
    return [cell if cell.n_hosts == span else _spread(cell, cells, span) for cell in best.values()]


def _spread(cell: GangMeasurement, cells: Sequence[GangMeasurement], span: int) -> GangMeasurement:
    """Return a cell for another number of hosts, scaled as gangs that were measured over both."""
    there = {(each.n_ps, each.n_workers): each for each in cells if each.n_hosts == span}
    both = [
        (each, there[each.n_ps, each.n_workers])
        for each in cells
        if each.n_hosts == cell.n_hosts and (each.n_ps, each.n_workers) in there
    ]
    if not both or cell.step_s is None:
        return cell
    slower = np.mean([(to.step_s or 1.0) / (of.step_s or 1.0) for of, to in both])
    costlier = np.mean([to.cpu_s / of.cpu_s for of, to in both if of.cpu_s > 0] or [1.0])
    return replace(
        cell, step_s=float(cell.step_s * slower), cpu_s=float(cell.cpu_s * costlier),
        ps_cpu_s=None if cell.ps_cpu_s is None else float(cell.ps_cpu_s * costlier),
    )  # fmt: skip


def _layer(cells: Sequence[GangMeasurement], max_ps: int, max_workers: int) -> tuple[Floats, Floats, Floats]:
    ps, workers = (np.array([getattr(cell, role) for cell in cells], np.float64) for role in ("n_ps", "n_workers"))
    step_s = np.array([float(cell.step_s or np.nan) for cell in cells])
    cpu_s = np.array([cell.cpu_s for cell in cells])
    part = np.array([_ps_part(cell) for cell in cells])
    at_ps, at_workers = np.meshgrid(np.arange(1.0, max_ps + 1), np.arange(1.0, max_workers + 1), indexing="ij")
    speed = _between(ps, workers, 1 / step_s, at_ps, at_workers)
    outside = (at_ps < ps.min()) | (at_ps > ps.max()) | (at_workers < workers.min()) | (at_workers > workers.max())
    if outside.any():
        speed = np.where(outside, _beyond(cells, at_ps, at_workers, speed), speed)
    cpu = _between(ps, workers, cpu_s, at_ps, at_workers)
    ps_cpu: Floats = cpu * _between(ps, workers, part, at_ps, at_workers)
    return 1 / speed, cpu - ps_cpu, ps_cpu


def _ps_part(cell: GangMeasurement) -> float:
    """Return which part of the processor time is that of parameter servers; by numbers of tasks if unknown."""
    if cell.ps_cpu_s is None or cell.cpu_s <= 0:
        return cell.n_ps / (cell.n_ps + cell.n_workers)
    return min(cell.ps_cpu_s / cell.cpu_s, 1.0)


def _between(ps: Floats, workers: Floats, values: Floats, at_ps: Floats, at_workers: Floats) -> Floats:
    """Return values at gangs within the measured ones, and those of the nearest edge outside."""
    if len(values) == 1:
        return np.full(at_ps.shape, values[0])
    table = SpeedTable.of(["it"] * len(values), n_ps=ps, n_workers=workers, samples_per_s=values)
    p, w = np.clip(at_ps, ps.min(), ps.max()), np.clip(at_workers, workers.min(), workers.max())
    return np.asarray(np.clip(table.interpolate("it", n_ps=p, n_workers=w), values.min(), values.max()), np.float64)


def _beyond(cells: Sequence[GangMeasurement], at_ps: Floats, at_workers: Floats, edge: Floats) -> Floats:
    """Return speeds outside of the measured gangs: those of the nearest edge, changed as the speed function changes."""
    ps, workers = [cell.n_ps for cell in cells], [cell.n_workers for cell in cells]
    speeds = [1 / cell.step_s for cell in cells if cell.step_s]
    fitted = SpeedFunction.fit(ps, workers, speeds, sync=cells[0].sync, prior=PRIOR)
    p, w = np.clip(at_ps, min(ps), max(ps)), np.clip(at_workers, min(workers), max(workers))
    changed: Floats = edge * fitted.speed(at_ps, at_workers) / fitted.speed(p, w)
    return changed


def _padded(grid: Floats) -> Floats:
    """Return a grid whose index is the number itself: one of 0 is as one of 1."""
    return np.pad(grid, ((1, 0), (1, 0), (1, 0)), mode="edge")

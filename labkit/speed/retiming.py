"""Step times after a change: only the jobs that it touches are timed anew."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.solvers.maxmin import equal_share_rates, max_min_rates
from labkit.speed.interference.model import MODELS
from labkit.speed.interference.use import Interference
from labkit.speed.network import flows_of, rates_inside

LEAST: Final = 65_536
"""Flows that are kept before those of jobs that are gone are dropped."""


class Timed(Protocol):
    """What is read of a model that is timed anew change by change: of `labkit.speed.step_time.StepTime`."""

    cluster: Cluster
    jobs: Jobs
    slowdown: Any
    cpu: Any
    local: bool
    compute_s: Floats
    model_bytes: Floats
    updates_per_step: Floats
    type_s: Floats

    @property
    def share(self) -> str:
        """How flows share a link."""


class Retiming:
    """What was running last, and how fast; `speeds` tells how fast jobs are now.

    A change touches the jobs whose tasks are others, those on machines where a task came or went (interference),
    and those whose flows share a link with flows that came or went, or with flows that do, and so on. Flows that
    share no link, even over others, do not change each other's max-min fair rate; so the rest goes on as it was.

    Parameters
    ----------
    model : StepTime
        Without work on CPU cores, and with `Interference` as its slowdown, or none: `knows(model)`.
    """

    _before: tuple[np.ndarray[Any, Any], ...]
    _begin: Ints
    _end: Ints
    _owner: Ints
    _worker: Ints
    _paths: Ints
    _gbit: Floats
    _near: Floats
    _gbps: Floats
    _capacity: Floats
    _far: Bools
    _n_flows: int
    _most: int

    def __init__(self, model: Timed) -> None:
        cluster, n = model.cluster, len(model.jobs)
        self.model = model
        self._solve = max_min_rates if model.share == "max-min" else equal_share_rates
        self._where = np.full(n, -1, np.int32)
        self._dirty = np.zeros(n, np.bool_)
        self._speed = np.zeros(n)
        self._machine = np.ascontiguousarray(cluster.group_machine, np.int32)
        self._type = np.ascontiguousarray(cluster.group_type, np.int32)
        self._group_cores = np.ascontiguousarray(cluster.capacity[:, CPUS], np.float64)
        self._type_s = np.ascontiguousarray(model.type_s, np.float64)
        self._sync, self._no_ps = np.asarray(model.jobs.sync, np.bool_), np.asarray(model.jobs.n_ps == 0, np.bool_)
        self._hops = 0
        self._use(model.slowdown)
        self._forget()

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        kernel = _kernel()

        now = _copied(running)
        touched = np.zeros(self.model.cluster.n_machines, np.bool_)
        changed, gone = kernel.compare(*now, *self._before, self._where, self._machine, touched)
        if not len(gone) and not changed.any():
            return np.asarray(self._speed[now[0]], np.float64)
        if self._n_flows > self._most:  # the flows of jobs that are gone are dropped: all jobs are new
            self._forget()
            return self.speeds(running)
        others = now[0][changed]
        marked = self._replaced(running, changed, others, gone)
        self._dirty[others] = True
        if marked is not None:
            found = kernel.flows_on(now[0], self._begin, self._end, self._far, self._paths, marked)
            if len(found):
                rates = self._solve(self._paths[found], self._capacity)
                self._gbps[found] = np.minimum(self._near[found], rates)
                kernel.mark_owners(found, self._owner, self._dirty)
        self._retime(now, touched)
        self._before = now
        return np.asarray(self._speed[now[0]], np.float64)

    def _retime(self, now: tuple[np.ndarray[Any, Any], ...], touched: Bools) -> None:
        kernel = _kernel()

        model, empty = self.model, np.zeros(0)
        used, moved, elsewhere = empty, empty, empty
        if self._slows:
            used, moved, elsewhere = kernel.loads(
                *now, self._cores, self._pcie, self._machine, self._group_cores, len(touched)
            )
            kernel.mark_touched(now[0], now[1], now[3], self._machine, touched, self._dirty)
        kernel.retime(
            *now, self._dirty, self._speed, self._begin, self._end, self._worker, self._gbit, self._gbps,
            model.compute_s, self._type_s, self._type, self._sync, self._no_ps, model.updates_per_step, self._slows,
            self._cores, self._pcie, used, moved, elsewhere, self._kinds, self._cpu, self._bus, self._additive,
        )  # fmt: skip

    def _replaced(self, running: Running, changed: Bools, others: Ints, gone: Ints) -> Bools | None:
        """Note the flows of changed jobs; return the links (L + 1,) that flows left or joined; None: there are none."""
        kernel = _kernel()

        network = self.model.cluster.network
        marked = None if network is None else np.zeros(network.n_links + 1, np.bool_)
        for jobs in (gone, others):
            if marked is not None:
                kernel.mark_links(jobs, self._begin, self._end, self._far, self._paths, marked)
            self._begin[jobs] = self._end[jobs] = 0
        if len(others):
            self._add(_part(running, changed))
            if marked is not None:
                kernel.mark_links(others, self._begin, self._end, self._far, self._paths, marked)
        return marked if marked is not None and marked[:-1].any() else None

    def _add(self, some: Running) -> None:
        model, cluster = self.model, self.model.cluster
        flows = flows_of(some, jobs=model.jobs, model_bytes=model.model_bytes)
        n = len(flows)
        begin = self._room(n)
        at = slice(begin, begin + n)
        self._owner[at] = some.job[flows.job]
        self._worker[at] = flows.worker - (np.cumsum(some.n_workers) - some.n_workers)[flows.job]
        self._gbit[at] = flows.size_bytes * 8e-9
        near, far = rates_inside(cluster, flows)
        self._near[at] = self._gbps[at] = near
        self._far[at] = far & (cluster.network is not None)
        bounds = begin + np.searchsorted(flows.job, np.arange(len(some.job) + 1))
        self._begin[some.job], self._end[some.job] = bounds[:-1], bounds[1:]
        if cluster.network is not None and far.any():
            source, destination = cluster.group_machine[flows.source], cluster.group_machine[flows.destination]
            paths = cluster.network.route(source[far], destination[far], flows.flow_hash[far])
            if not self._hops:
                self._hops = paths.shape[1]
                self._paths = np.full((len(self._owner), self._hops), cluster.network.n_links, np.int32)
            self._paths[at][far] = paths

    def _room(self, n: int) -> int:
        """Return where n more flows begin."""
        begin, self._n_flows = self._n_flows, self._n_flows + n
        if self._n_flows > len(self._owner):
            more = max(self._n_flows, 2 * len(self._owner)) - len(self._owner)
            for name in ("_owner", "_worker", "_gbit", "_near", "_gbps", "_far", "_paths"):
                column = getattr(self, name)
                fresh = np.zeros((more, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, fresh]))
        if not begin:
            self._most = max(LEAST, 4 * n)
        return begin

    def _forget(self) -> None:
        n, network = len(self.model.jobs), self.model.cluster.network
        self._before = (*(np.zeros(0, np.int32), np.zeros(1, np.int32), np.zeros(0, np.int8)),
                        *(np.zeros(0, np.int32), np.zeros(0, np.int32)))  # fmt: skip
        self._begin, self._end = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._n_flows, self._most = 0, LEAST
        self._owner, self._worker = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self._gbit, self._near, self._gbps = np.zeros(0), np.zeros(0), np.zeros(0)
        self._far = np.zeros(0, np.bool_)
        self._paths = np.zeros((0, self._hops), np.int32)
        self._capacity = np.zeros(0) if network is None else network.link_gbps

    def _use(self, slowdown: object) -> None:
        """Take the fitted model apart, for the kernel."""
        kernel = _kernel()

        codes = {None: kernel.NONE, "exponential": kernel.EXPONENTIAL, "linear": kernel.LINEAR}
        codes["quadratic"] = kernel.QUADRATIC
        self._slows = isinstance(slowdown, Interference)
        self._kinds, self._additive = np.zeros(2, np.int64), False
        self._cpu = self._bus = np.zeros(6)
        self._cores = self._pcie = np.zeros((2, 0))
        if not isinstance(slowdown, Interference):
            return
        fitted, shape = slowdown.model, MODELS[slowdown.model.kind]
        self._cores, self._pcie = np.ascontiguousarray(slowdown.cores), np.ascontiguousarray(slowdown.pcie_gbps)
        self._additive = shape.additive
        # a factor that was not fitted is 1, as in `InterferenceModel`
        kinds = (shape.cpu if fitted.cpu_ is not None else None, shape.pcie if fitted.pcie_ is not None else None)
        self._kinds = np.array([codes[kind] for kind in kinds], np.int64)
        self._cpu = self._cpu if fitted.cpu_ is None else np.asarray(fitted.cpu_, np.float64)
        self._bus = self._bus if fitted.pcie_ is None else np.asarray(fitted.pcie_, np.float64)


def knows(model: Timed) -> bool:
    """Return whether a model's speeds can be kept up to date change by change."""
    slowdown = model.slowdown
    fitted = type(slowdown) is Interference and (slowdown.model.cpu_ is not None or slowdown.model.pcie_ is not None)
    return model.cpu is None and not model.local and (slowdown is None or fitted)


def _kernel() -> Any:
    """Return the compiled parts, imported when they are needed."""
    from labkit.speed import retiming_kernel

    return retiming_kernel


def _copied(running: Running) -> tuple[np.ndarray[Any, Any], ...]:
    return (
        np.array(running.job, np.int32), np.array(running.first, np.int32), np.array(running.role, np.int8),
        np.array(running.group, np.int32), np.array(running.count, np.int32),
    )  # fmt: skip


def _part(running: Running, chosen: Bools) -> Running:
    sizes = np.diff(running.first)
    rows = np.repeat(chosen, sizes)
    first = np.concatenate([[0], np.cumsum(sizes[chosen])]).astype(np.int32)
    return Running(
        running.job[chosen], first, running.role[rows], running.group[rows], running.count[rows],
        running.n_workers[chosen], running.n_ps[chosen],
    )  # fmt: skip

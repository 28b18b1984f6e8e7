"""Trouble of a job that trains: hot and slow servers, slow workers, idle cores of servers; what to do, and why; pure.

`adjust` looks at one measurement after the other. A sign must be seen `n_signs` times in a row. Each trouble has its
repairs, the cheapest first; one that has not helped after `n_tries` is told once and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np

from labkit.core.resources import Floats
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules


class Trouble(IntEnum):
    """What may be wrong with a task, or with a job (IDLE), the most urgent first."""

    SLOW_PS = 0
    HOT_PS = 1
    STRAGGLER = 2
    IDLE = 3


class Do(IntEnum):
    """What is to be done."""

    REPLACE_PS = 0
    REPLACE_WORKER = 1
    BALANCE = 2
    MORE_CORES = 3
    MORE_WORKERS = 4
    NOTHING = 5
    """Only tell why nothing is done."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done about a task of a job, and why. `amount`: cores of the server, or workers to add."""

    do: Do
    task: int
    why: str
    amount: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Tasks:
    """What a measurement tells of the tasks of one role, (n,) each; NaN: not known.

    Attributes
    ----------
    limit, used : array
        Cores that each was given, and that it uses.
    load : array
        Part of the updates of each server.
    step_s, compute_s : array
        Seconds from step to step of a worker, and those in which it computes; of a server: `compute_s` of one update.
    """

    limit: Floats
    used: Floats
    load: Floats
    step_s: Floats
    compute_s: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Report:
    """One measurement of a job.

    Attributes
    ----------
    plan : Plan
        What it holds.
    speed : float
        Steps per second.
    left_s, pause_s : float
        Seconds until it is done at this speed, and those that a change takes.
    workers, servers : Tasks
        What was measured of each task.
    most_cores, most_workers : float, int
        The most that a server may be given, and how many workers are useful.
    spare_cores : float
        Cores that nobody asks for.
    """

    plan: Plan
    speed: float
    left_s: float
    pause_s: float
    workers: Tasks
    servers: Tasks
    most_cores: float
    most_workers: int
    spare_cores: float
    unit: float = 1.0


Sign = tuple[Trouble, int]
"""A trouble and the task that has it."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is remembered of a job's troubles.

    Attributes
    ----------
    signs : mapping
        How many times in a row each sign was seen.
    tried : mapping
        How many repairs were made of each.
    told : frozenset
        Signs of which it was told that nothing is done about them.
    """

    signs: Mapping[Sign, int] = field(default_factory=dict)
    tried: Mapping[Sign, int] = field(default_factory=dict)
    told: frozenset[Sign] = frozenset()


Foretold = Callable[[int], float]
"""Steps per second that are believed of a job with so many workers."""


def adjust(
    watch: Watch, report: Report, rules: Rules, *, foretold: Foretold, free: bool = True
) -> tuple[Watch, Action | None]:  # fmt: skip
    """Return what is remembered after a measurement, and what to do; None: nothing, or not yet.

    Parameters
    ----------
    foretold : callable
        See `Foretold`.
    free : bool
        Whether the job may be changed now; where it may not, signs are only counted.
    """
    seen = [sign for find in (_slow, _hot, _stragglers, _idle) for sign in find(report, rules, foretold)]
    watch = replace(watch, signs={sign: watch.signs.get(sign, 0) + 1 for sign in seen})
    if not free:
        return watch, None
    for sign in sorted(seen):
        if watch.signs[sign] < rules.n_signs or sign in watch.told:
            continue
        action = _REPAIRS[sign[0]](watch, report, rules, foretold, sign[1])
        if action.do == Do.NOTHING:
            return replace(watch, told=watch.told | {sign}), action
        tried = {**watch.tried, sign: watch.tried.get(sign, 0) + 1}
        return replace(watch, signs={}, tried=tried), action
    return watch, None


# --- signs


def uses(tasks: Tasks) -> Floats:
    """Return the part of its limit that each task uses, (n,)."""
    return np.asarray(tasks.used / tasks.limit)


def waiting(workers: Tasks) -> float:
    """Return how long a worker of the middle waits, as a part of its step; NaN: not known."""
    known = np.isfinite(workers.step_s) & np.isfinite(workers.compute_s)
    return float(np.median(1 - workers.compute_s[known] / workers.step_s[known])) if known.any() else float("nan")


def _loads(report: Report) -> Floats:
    """Return the updates of each server against the mean, (n,)."""
    return report.servers.load * report.plan.n_ps


def _paces(report: Report) -> Floats:
    """Return the updates per second and core of each server, or per second of its own time, against the middle, (n,)."""
    servers = report.servers
    rate = 1 / servers.compute_s if np.isfinite(servers.compute_s).all() else servers.load / servers.used
    middle = np.median(rate[np.isfinite(rate)]) if np.isfinite(rate).any() else np.nan
    return np.asarray(rate / middle)


def _hot(report: Report, rules: Rules, _: Foretold) -> list[Sign]:
    if report.plan.n_ps < 2:
        return []
    hot = (
        (uses(report.servers) >= rules.hot_use)
        & (_loads(report) >= rules.hot_load)
        & (_paces(report) > rules.slow_pace)
    )
    return [(Trouble.HOT_PS, task) for task in np.flatnonzero(hot).tolist()]


def _slow(report: Report, rules: Rules, _: Foretold) -> list[Sign]:
    if report.plan.n_ps < 2 or not waiting(report.workers) >= rules.wait:
        return []
    loads = _loads(report)
    slow = (_paces(report) <= rules.slow_pace) & ~(loads >= rules.hot_load)
    return [(Trouble.SLOW_PS, task) for task in np.flatnonzero(slow).tolist()]


def worker_paces(workers: Tasks) -> Floats:
    """Return how fast each worker computes against the middle, (n,)."""
    known = workers.compute_s[np.isfinite(workers.compute_s)]
    return np.asarray(np.median(known) / workers.compute_s) if len(known) else np.full(len(workers.limit), np.nan)


def _stragglers(report: Report, rules: Rules, _: Foretold) -> list[Sign]:
    if report.plan.n_workers < 2:
        return []
    slow = worker_paces(report.workers) <= rules.slow_pace
    return [(Trouble.STRAGGLER, task) for task in np.flatnonzero(slow).tolist()]


def _idle(report: Report, rules: Rules, foretold: Foretold) -> list[Sign]:
    use = uses(report.servers)
    busy = not np.isfinite(use).any() or float(np.nanmax(use)) >= rules.idle_use
    return [] if busy or not _additional(report, rules, foretold) else [(Trouble.IDLE, -1)]


def _additional(report: Report, rules: Rules, foretold: Foretold) -> int:
    """Return how many more workers are worth their cores, at most `n_more`; 0: none."""
    plan = report.plan
    room = int((report.spare_cores + 1e-9) / max(plan.worker_cores, 1e-9))
    now = foretold(plan.n_workers)
    for k in range(min(rules.n_more, report.most_workers - plan.n_workers, room), 0, -1):
        gain = foretold(plan.n_workers + k) / max(now, 1e-12) - 1
        if gain >= rules.min_gain and gain * plan.n_workers / k >= rules.efficiency and _pays(gain, report, rules):
            return k
    return 0


def _pays(gain: float, report: Report, rules: Rules) -> bool:
    """Tell whether a speed-up saves more than `pays` times what a change takes."""
    return bool(report.left_s * gain / (1 + gain) >= rules.pays * report.pause_s)


# --- repairs


def _mend_slow(watch: Watch, report: Report, rules: Rules, _: Foretold, task: int) -> Action:
    pace, wait = float(_paces(report)[task]), waiting(report.workers)
    told = f"ps-{task} does {pace:.2f} of the updates per core of the others with no more load, workers wait {wait:.0%}"
    if watch.tried.get((Trouble.SLOW_PS, task), 0) >= rules.n_tries:
        return Action(Do.NOTHING, task, f"{told}: replaced {rules.n_tries} times, left alone")
    gain = 1 / max(1 - wait, 0.05) - 1
    if not _pays(gain, report, rules):
        return Action(Do.NOTHING, task, f"{told}: {report.left_s:.0f} s are left, a replacement does not pay")
    return Action(Do.REPLACE_PS, task, f"{told} for {watch.signs[Trouble.SLOW_PS, task]} samples: it is replaced")


def _mend_hot(watch: Watch, report: Report, rules: Rules, _: Foretold, task: int) -> Action:
    use, load, n = float(uses(report.servers)[task]), float(_loads(report)[task]), watch.signs[Trouble.HOT_PS, task]
    told = f"ps-{task} at {use:.2f} of its limit for {n} samples, {load:.1f} x the mean"
    moved = any(tried for (trouble, _), tried in watch.tried.items() if trouble == Trouble.HOT_PS)
    if not moved and rules.balance:
        return Action(Do.BALANCE, -1, f"{told}: its blocks move")
    if watch.tried.get((Trouble.HOT_PS, task), 0) > rules.n_tries:
        return Action(Do.NOTHING, task, f"{told}: it has been given cores {rules.n_tries} times, left alone")
    limit = float(report.servers.limit[task])
    wants = float(report.servers.used[task]) / max(1 - waiting(report.workers), 0.05)  # if no worker had to wait
    cores = min(np.ceil(max(wants, 1.25 * limit) / (4 * report.unit)) * 4 * report.unit, report.most_cores)
    if cores <= limit * (1 + rules.min_gain):
        return Action(Do.NOTHING, task, f"{told}: {limit:g} cores are the most that it can have, left alone")
    if cores - limit > report.spare_cores + 1e-9:
        return Action(Do.NOTHING, task, f"{told}: {cores - limit:g} more cores are not free, left alone")
    return Action(Do.MORE_CORES, task, f"{told}, also since its blocks moved: {cores:g} cores for it", float(cores))


def _mend_straggler(watch: Watch, report: Report, rules: Rules, _: Foretold, task: int) -> Action:
    pace, n = float(worker_paces(report.workers)[task]), report.plan.n_workers
    lost_s = report.left_s * (1 - pace) / n
    told = f"worker-{task} computes at {pace:.2f} of the middle and gets as few shards; over {report.left_s:.0f} s"
    told += f" that costs (1 - {pace:.2f}) / {n} of them, {lost_s:.0f} s"
    if watch.tried.get((Trouble.STRAGGLER, task), 0) >= rules.n_tries:
        return Action(Do.NOTHING, task, f"{told}: replaced {rules.n_tries} times, left alone")
    worth = (1 - pace) / n >= rules.min_gain or pace < rules.hopeless
    if not worth or lost_s < rules.pays * report.pause_s:
        why = f"less than {rules.min_gain:.0%}" if not worth else f"a change takes {report.pause_s:.0f} s"
        return Action(Do.NOTHING, task, f"{told}: {why}, it is left alone")
    return Action(Do.REPLACE_WORKER, task, f"{told}, a change takes {report.pause_s:.0f} s: it is replaced")


def _mend_idle(watch: Watch, report: Report, rules: Rules, foretold: Foretold, _: int) -> Action:
    n, k = report.plan.n_workers, _additional(report, rules, foretold)
    use = float(np.nanmax(uses(report.servers)))
    told = f"servers use {use:.2f} of their cores, {foretold(n + k):.3g} steps/s foretold in place of {foretold(n):.3g}"
    if watch.tried.get((Trouble.IDLE, -1), 0) >= rules.n_additions:
        return Action(Do.NOTHING, -1, f"{told}: workers were added {rules.n_additions} times, that is enough")
    return Action(Do.MORE_WORKERS, -1, f"{told}: {k} more workers", k)


_REPAIRS: Final = {
    Trouble.SLOW_PS: _mend_slow,
    Trouble.HOT_PS: _mend_hot,
    Trouble.STRAGGLER: _mend_straggler,
    Trouble.IDLE: _mend_idle,
}

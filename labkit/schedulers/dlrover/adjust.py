"""Trouble of a job that trains: hot and slow servers, slow workers, idle cores of servers; what to do, and why; pure.

`adjust` looks at one measurement after the other. A sign must be seen `n_signs` times in a row. Each trouble has its
repairs, the cheapest first; one that has not helped after `n_tries` is told once and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import ceil, nan
from typing import Final

from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import LEARNS, Rules

NAN: Final = nan


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
    """What is to be done about tasks of a job, and why. `amounts`: cores of each server; `more`: workers to add."""

    do: Do
    tasks: tuple[int, ...]
    why: str
    amounts: tuple[float, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What a measurement tells of one task, or of the usual one of a role (`number` -1); NaN: not known."""

    number: int
    """Which one it is."""
    limit: float
    used: float
    """`limit` and `used`: cores that it was given, and that it uses."""
    load: float = NAN
    """Part of the updates of a server."""
    compute_s: float = NAN
    """Seconds in which a worker computes a gradient, or a server works on an update."""

    @property
    def use(self) -> float:
        """The part of its cores that it uses."""
        return self.used / self.limit


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement of a job."""

    plan: Plan
    """What it holds."""
    left_s: float
    pause_s: float
    """`left_s` and `pause_s`: seconds until it is done at this speed, and those that a change takes."""
    wait: float
    """Part of a worker's step in which it waits for servers."""
    workers: tuple[Task, ...]
    servers: tuple[Task, ...]
    """`workers` and `servers`: those of which something of their own is told."""
    worker: Task
    server: Task
    """`worker` and `server`: the usual one: what all the others have in common, or the middle where each is told of."""
    most_cores: float
    most_workers: int
    """`most_cores` and `most_workers`: the most that a server may be given, and how many workers are useful."""
    spare_cores: float
    """Cores that no job asks for."""
    unit: float = 1.0
    """Cores that count as one."""


Sign = tuple[Trouble, int]
"""A trouble and the task that has it."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is remembered of a job's troubles."""

    signs: Mapping[Sign, int] = field(default_factory=dict)
    """How many times in a row each sign was seen."""
    tried: Mapping[Sign, int] = field(default_factory=dict)
    """How many repairs were made of each."""
    reported: frozenset[Sign] = frozenset()
    """Signs that were reported as left alone."""
    worker: Task | None = None
    """The usual worker, with the seconds of a gradient averaged over what was measured at its limit, as long as it was
    not slow: what a job's only worker is compared with."""


Predicted = Callable[[int], float]
"""Steps per second that are believed of a job with so many workers."""


def adjust(
    watch: Watch, report: Report, rules: Rules, *, predicted: Predicted, free: bool = True
) -> tuple[Watch, Action | None]:  # fmt: skip
    """Return what is remembered after a measurement, and what to do; None: nothing, or not yet.

    `predicted`: see `Predicted`; `free`: whether the job may be changed now; where it may not, signs are only counted.
    """
    measured, report = report.worker, _with_former_worker(report, watch.worker)
    seen = [sign for find in (_slow, _hot, _stragglers, _idle) for sign in find(report, rules, predicted)]
    if report.workers and measured.compute_s > 0 and not (_alone(report) and (Trouble.STRAGGLER, 0) in seen):
        watch = replace(watch, worker=_averaged(watch.worker, measured))
    if seen or watch.signs:
        watch = replace(watch, signs={sign: watch.signs.get(sign, 0) + 1 for sign in seen})
    if not free:
        return watch, None
    for sign in sorted(seen):
        if watch.signs[sign] < rules.n_signs or sign in watch.reported:
            continue
        action = _REPAIRS[sign[0]](watch, report, rules, predicted, sign[1])
        if action.do == Do.NOTHING:
            return replace(watch, reported=watch.reported | {sign}), action
        mended = {sign, *((sign[0], task) for task in action.tasks)}
        tried = {**watch.tried, **{each: watch.tried.get(each, 0) + 1 for each in mended}}
        return replace(watch, signs={}, tried=tried), action
    return watch, None


# --- signs


def pace_of_server(task: Task, usual: Task) -> float:
    """Return how fast a server works on updates with the cores that it was given, against the usual one.

    Where updates are not timed, by the updates that it takes in per core that it uses.
    """
    by_time = _part(usual.compute_s * usual.limit, task.compute_s * task.limit)
    return by_time if by_time == by_time else _part(_part(task.load, usual.load), _part(task.used, usual.used))


def pace_of_worker(task: Task, usual: Task) -> float:
    """Return how fast a worker computes against the usual one; where it is not timed, by the cores that it uses."""
    by_time = _part(usual.compute_s, task.compute_s)
    return by_time if by_time == by_time else _part(task.used, usual.used)


def _part(a: float, b: float) -> float:
    return a / b if b else NAN


def _hot(report: Report, rules: Rules, _: Predicted) -> list[Sign]:
    return [(Trouble.HOT_PS, task.number) for task in report.servers if _is_hot(task, report, rules)]


def _is_hot(task: Task, report: Report, rules: Rules) -> bool:
    n = report.plan.n_ps
    return n > 1 and task.use >= rules.hot_use and task.load * n >= rules.hot_load


def _slow(report: Report, rules: Rules, _: Predicted) -> list[Sign]:
    if report.plan.n_ps < 2 or not report.wait >= rules.wait:
        return []
    return [(Trouble.SLOW_PS, task.number) for task in report.servers if _is_slow(task, report, rules)]


def _is_slow(task: Task, report: Report, rules: Rules) -> bool:
    """Return whether a server is slow and not used more than others; at its limit, that limit holds it back.

    Updates are timed on the clock: those of a server that is paused at its limit take longer, wherever it runs.
    """
    held_back = task.use >= rules.hot_use and task.use > report.server.use
    return pace_of_server(task, report.server) <= rules.slow_pace and not held_back


def _stragglers(report: Report, rules: Rules, _: Predicted) -> list[Sign]:
    return [
        (Trouble.STRAGGLER, task.number)
        for task in report.workers
        if pace_of_worker(task, report.worker) <= rules.slow_pace
    ]


def _alone(report: Report) -> bool:
    return report.plan.n_workers == 1


def _with_former_worker(report: Report, former: Task | None) -> Report:
    """Return the report of a job whose only worker is compared with what it was: it has no others.

    More cores do not make a gradient take longer, and fewer cores not by more than in proportion.
    """
    if not _alone(report) or former is None:
        return report
    expected_s = former.compute_s * max(1.0, former.limit / report.worker.limit)
    return replace(report, worker=replace(report.worker, compute_s=expected_s))


def _averaged(former: Task | None, now: Task) -> Task:
    if former is None or former.limit != now.limit:
        return now
    return replace(now, compute_s=former.compute_s + LEARNS * (now.compute_s - former.compute_s))


def _idle(report: Report, rules: Rules, predicted: Predicted) -> list[Sign]:
    busiest = max((task.use for task in (*report.servers, report.server)), default=NAN)
    idle = busiest < rules.idle_use and not report.wait >= rules.wait and _additional(report, rules, predicted) > 0
    return [(Trouble.IDLE, -1)] if idle else []


def _additional(report: Report, rules: Rules, predicted: Predicted) -> int:
    """Return how many more workers are worth their cores, at most `n_more`; 0: none."""
    plan = report.plan
    room = int((report.spare_cores + 1e-9) / max(plan.worker_cores, 1e-9))
    most = min(rules.n_more, report.most_workers - plan.n_workers, room)
    now = predicted(plan.n_workers) if most > 0 else NAN
    for k in range(most, 0, -1):
        gain = predicted(plan.n_workers + k) / max(now, 1e-12) - 1
        if gain >= rules.min_gain and gain * plan.n_workers / k >= rules.efficiency and _pays(gain, report, rules):
            return k
    return 0


def _pays(gain: float, report: Report, rules: Rules) -> bool:
    """Return whether a speed-up saves more than `pays` times what a change takes."""
    return report.left_s * gain / (1 + gain) >= rules.pays * report.pause_s


def _task(tasks: tuple[Task, ...], number: int) -> Task:
    return next(task for task in tasks if task.number == number)


# --- repairs


def _mend_slow(watch: Watch, report: Report, rules: Rules, _: Predicted, task: int) -> Action:
    server, wait = _task(report.servers, task), report.wait
    told = f"ps-{task} updates at {pace_of_server(server, report.server):.2f} of the pace of the others"
    told += f" at {server.use:.2f} of its limit, workers wait for {wait:.0%} of their time"
    if watch.tried.get((Trouble.SLOW_PS, task), 0) >= rules.n_tries:
        return Action(Do.NOTHING, (task,), f"{told}: replaced {rules.n_tries} times, it is left alone")
    gain = 1 / max(1 - wait, 0.05) - 1
    if not _pays(gain, report, rules):
        return Action(Do.NOTHING, (task,), f"{told}: {report.left_s:.0f} s are left, to replace it does not pay")
    return Action(Do.REPLACE_PS, (task,), f"{told}, for {watch.signs[Trouble.SLOW_PS, task]} samples: it is replaced")


def _mend_hot(watch: Watch, report: Report, rules: Rules, _: Predicted, task: int) -> Action:
    server, n = _task(report.servers, task), watch.signs[Trouble.HOT_PS, task]
    told = (
        f"ps-{task} at {server.use:.2f} of its limit for {n} samples, {server.load * report.plan.n_ps:.1f} x the mean"
    )
    if not _pays(server.load * report.plan.n_ps - 1, report, rules):
        return Action(Do.NOTHING, (task,), f"{told}: {report.left_s:.0f} s are left, a change does not pay")
    moved = any(tried for (trouble, _), tried in watch.tried.items() if trouble == Trouble.HOT_PS)
    if not moved and rules.balance:
        return Action(Do.BALANCE, (), f"{told}: its blocks move")
    told += ", also since its blocks moved" if moved else ""
    if watch.tried.get((Trouble.HOT_PS, task), 0) > rules.n_tries:
        return Action(Do.NOTHING, (task,), f"{told}: it was given cores {rules.n_tries} times, it is left alone")
    wanted = {t.number: _cores_for(t, report) for t in report.servers if _is_hot(t, report, rules)}
    least = 1 + rules.min_gain
    larger = {number: cores for number, cores in wanted.items() if cores > least * report.plan.cores_of(number)}
    if task not in larger:
        return Action(Do.NOTHING, (task,), f"{told}: {server.limit:g} cores are the most it can use, it is left alone")
    more = sum(cores - report.plan.cores_of(number) for number, cores in larger.items())
    if more > report.spare_cores + 1e-9:
        return Action(Do.NOTHING, (task,), f"{told}: {more:g} more cores are not free, it is left alone")
    names = " and ".join(f"{cores:g} cores for ps-{number}" for number, cores in larger.items())
    return Action(Do.MORE_CORES, tuple(larger), f"{told}: {names}", tuple(larger.values()))


def _cores_for(server: Task, report: Report) -> float:
    """Return the cores that a hot server is to have: s_hot / s_total x s N_w of the text.

    What it would use if no worker had to wait, at least as much more than the others as its load is; a grid of 4 units.
    """
    wait = report.wait if report.wait == report.wait else 0.0
    wants = max(server.used / max(1 - wait, 0.05), report.plan.ps_cores * server.load * report.plan.n_ps)
    step = 4 * report.unit
    return min(ceil(wants / step - 1e-9) * step, report.most_cores)


def _mend_straggler(watch: Watch, report: Report, rules: Rules, _: Predicted, task: int) -> Action:
    pace, n = pace_of_worker(_task(report.workers, task), report.worker), report.plan.n_workers
    lost_s = report.left_s * (1 - pace) / n
    others = "its former pace" if _alone(report) else "the middle and gets as few shards"
    told = f"worker-{task} computes at {pace:.2f} of {others}; over {report.left_s:.0f} s"
    told += f" that costs (1 - {pace:.2f}) / {n} of them, {lost_s:.0f} s"
    if watch.tried.get((Trouble.STRAGGLER, task), 0) >= rules.n_tries:
        return Action(Do.NOTHING, (task,), f"{told}: replaced {rules.n_tries} times, it is left alone")
    worth = (1 - pace) / n >= rules.min_gain or pace < rules.hopeless
    if not worth or lost_s < rules.pays * report.pause_s:
        why = f"less than {rules.min_gain:.0%}" if not worth else f"a change takes {report.pause_s:.0f} s"
        return Action(Do.NOTHING, (task,), f"{told}: {why}, it is left alone")
    return Action(Do.REPLACE_WORKER, (task,), f"{told}, a change takes {report.pause_s:.0f} s: it is replaced")


def _mend_idle(watch: Watch, report: Report, rules: Rules, predicted: Predicted, _: int) -> Action:
    n, k = report.plan.n_workers, _additional(report, rules, predicted)
    use = max(task.use for task in (*report.servers, report.server))
    told = (
        f"servers use {use:.2f} of their cores, {predicted(n + k):.3g} steps/s predicted in place of {predicted(n):.3g}"
    )
    if watch.tried.get((Trouble.IDLE, -1), 0) >= rules.n_additions:
        return Action(Do.NOTHING, (), f"{told}: workers were added {rules.n_additions} times, that is enough")
    return Action(Do.MORE_WORKERS, (), f"{told}: {k} more workers", more=k)


_REPAIRS: Final = {
    Trouble.SLOW_PS: _mend_slow,
    Trouble.HOT_PS: _mend_hot,
    Trouble.STRAGGLER: _mend_straggler,
    Trouble.IDLE: _mend_idle,
}

"""Which plans jobs get: what each would gain, and what is worth a change; for many jobs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import kernel
from labkit.schedulers.dlrover.fit import Sample, works_of
from labkit.schedulers.dlrover.front import Front, PlanLimits, fronts
from labkit.schedulers.dlrover.plan import NO_SLOWER, Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.select import chosen
from labkit.schedulers.dlrover.stages import JobState
from labkit.speed.bottleneck import SOFTNESS, Work

FEWER: Final = "as fast with fewer cores"
BACK: Final = "back to the plan of then"
TAKEN_BACK: Final = "others need the cores beyond its quota"


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """What is believed of a job: from which samples, its work, and the plans that are worth their cores."""

    samples: tuple[Sample, ...]
    work: Floats
    front: Front
    _speeds: dict[tuple[Plan, int], float] = field(default_factory=dict)
    _gains: dict[int, tuple[Plan, float]] = field(default_factory=dict)

    def speed(self, plan: Plan, *, more: int = 0) -> float:
        """Return the steps/s that are believed of a plan with so many more workers, as `believed` does for many."""
        if (plan, more) not in self._speeds:
            self._speeds[plan, more] = self._speed(plan, plan.n_workers + more)
        return self._speeds[plan, more]

    def gain(self, plan: Plan, *, more: int) -> float:
        """Return how many times as fast a plan is believed to be with so many more workers."""
        last = self._gains.get(more)
        if last is None or last[0] is not plan:
            last = self._gains[more] = plan, self.speed(plan, more=more) / self.speed(plan)
        return last[1]

    def _speed(self, plan: Plan, n: int) -> float:
        c, u, t, hot = self.work.tolist()
        most = max((cores for _, cores in plan.extra), default=plan.ps_cores)
        hot = max(hot * plan.ps_cores / most, 1.0) if most > plan.ps_cores else hot
        load = min(hot / plan.n_ps, 1.0) if plan.n_ps > 1 else 1.0
        taken_s = (c / (n * plan.worker_cores), u * load / plan.ps_cores, t / n)
        longest = max(taken_s)
        return float(1 / (longest * sum((each / longest) ** SOFTNESS for each in taken_s) ** (1 / SOFTNESS)))


@dataclass(eq=False, slots=True)
class Beliefs:
    """Fronts of jobs, made when their samples are new."""

    _known: dict[int, Known] = field(default_factory=dict)

    def of(
        self, states: Mapping[int, JobState], jobs: Sequence[int], limits: Callable[[list[int]], list[PlanLimits]]
    ) -> list[Known]:  # fmt: skip
        """Return what is believed of some jobs, all of which have samples; `limits` are asked for where it is new."""
        known = self._known
        new = [job for job in jobs if job not in known or known[job].samples is not states[job].samples]
        if new:
            works = works_of([states[job].samples for job in new])
            for job, work, front in zip(new, works, fronts(works, limits(new)), strict=True):
                known[job] = Known(states[job].samples, work, front)
        if len(known) > 4 * len(states) + 64:
            self._known = {job: each for job, each in known.items() if job in states}
        return [self._known[job] for job in jobs]

    def forget(self) -> None:
        """Begin anew."""
        self._known.clear()


@dataclass(frozen=True, slots=True)
class Wish:
    """A plan that a job is to have, and why; `more`: cores that it takes beside those that it has."""

    job: int
    plan: Plan
    why: str
    more: float


def believed(works: Floats, plans: Sequence[Plan]) -> Floats:
    """Return the steps/s that are believed of plans, (J,), of jobs with works (J, 4)."""
    n, w, p, s = np.array([(q.n_workers, q.worker_cores, q.n_ps, q.ps_cores) for q in plans], np.float64).T
    c, u, t, hot = works.T
    most = np.array([max(cores for _, cores in q.extra) if q.extra else q.ps_cores for q in plans])
    evened = np.where(most > s, np.maximum(hot * s / most, 1.0), hot)  # as if the load were that much less
    return Work(c, u, t, evened).speed(n, worker_cores=w, n_ps=p, ps_cores=s)


def wishes(
    known: Sequence[Known], states: Sequence[JobState], *, jobs: Sequence[int], left: Floats, budget: float,
    rules: Rules, pause_s: float, wait: bool, root: float,
) -> list[Wish]:  # fmt: skip
    """Return the changes that are worth it, of jobs that may be changed, within a budget of cores for all of them.

    Parameters
    ----------
    left : array
        (J,) steps that are left.
    pause_s : float
        Seconds that a change takes.
    wait : bool
        Whether others wait to start.
    root : float
        What a job gains is its speed, as a part of that of its best plan, to the power of this.
    """
    if not known:
        return []
    fronts_of = [each.front for each in known]
    first = np.zeros(len(known) + 1, np.int64)
    np.cumsum([len(front.cores) for front in fronts_of], out=first[1:])
    all_cores, speed = (
        np.concatenate(columns) for columns in zip(*((f.cores, f.speed) for f in fronts_of), strict=True)
    )
    gain = (speed / np.repeat(speed[first[1:] - 1], np.diff(first))) ** root
    least = float(all_cores[first[:-1]].sum())
    at = first[:-1] + np.maximum(chosen(all_cores, gain, first, max(budget, least)), 0)
    now = believed(np.array([each.work for each in known]), [state.plan for state in states])
    predicted, frugal = speed[at], _frugal(speed, first, at)
    cores, entries = all_cores[frugal], frugal - first[:-1]
    held = np.array([state.plan.cores for state in states])
    special = np.array([bool(state.plan.extra or state.plan.beyond) for state in states])
    faster, fewer = _worth(now, predicted, cores, held, left, special, rules=rules, pause_s=pause_s, wait=wait)
    told = []
    spare = budget - held.sum()
    backs = {i: back for i, state in enumerate(states) if (back := back_to(state, float(predicted[i]), rules))}
    for i in sorted({*np.flatnonzero(faster | fewer).tolist(), *backs}):
        if (back := backs.get(i)) is not None:
            last, more = states[i].samples[-1], back.plan.cores - float(held[i])
            saved_s = left[i] / last.speed - left[i] / back.speed
            if more <= spare + 1e-9 and saved_s >= rules.pays * pause_s:
                told.append(Wish(jobs[i], back.plan, _slower(last, back), more))
            continue
        why = _why(states[i].samples[-1], float(predicted[i]), float(now[i]))
        if fewer[i]:
            why += f": {FEWER if predicted[i] >= (1 - rules.min_gain) * now[i] else 'others gain more by its cores'}"
        told.append(Wish(jobs[i], known[i].front.plan(int(entries[i])), why, float(cores[i] - held[i])))
    return told


@kernel
def _frugal(speed: Floats, first: Ints, at: Ints) -> Ints:
    """Return the row with the fewest cores of those of a job that are hardly slower than its row `at` (J,)."""
    told = np.empty_like(at)
    for j in range(len(at)):
        mine = speed[first[j] : first[j + 1]]
        told[j] = first[j] + np.searchsorted(mine, (1 - NO_SLOWER) * speed[at[j]])
    return told


def back_to(state: JobState, predicted: float, rules: Rules) -> Sample | None:
    """Return the sample of an earlier plan that a job goes back to; None: it goes on.

    It was faster than the newest one by `back`, and the best of all plans is predicted to be hardly better
    (`predicted`, in steps/s). Measurements count here, and not what is believed of plans: that has led to the slower
    one.
    """
    if len(state.samples) < 2:
        return None
    last, best = state.samples[-1], max(state.samples, key=lambda sample: sample.speed)
    slower = last.plan != best.plan and best.speed > (1 + rules.back) * last.speed
    known = state.plan in (last.plan, best.plan)
    return best if slower and known and predicted < (1 + rules.min_gain) * best.speed else None


def _worth(
    now: Floats, predicted: Floats, cores: Floats, held: Floats, left: Floats, special: Bools, *, rules: Rules,
    pause_s: float, wait: bool,
) -> tuple[Bools, Bools]:  # fmt: skip
    """Return which plans are worth a change because they are faster, and which because they free cores, (J,) each.

    A change must save `pays` times the seconds that it takes; one that only frees cores may cost a job `min_gain` of
    the time that it has left, unless others wait to start. Cores that a job was given beyond its plan are not freed
    unless others wait.
    """
    left_s = left / np.maximum(now, 1e-12)
    faster = predicted >= (1 + rules.min_gain) * now
    pays = left_s - left / np.maximum(predicted, 1e-12) >= rules.pays * pause_s
    frees = (cores <= (1 - rules.frees) * held) & (wait | (~special & (rules.min_gain * left_s >= pause_s)))
    return faster & pays, ~faster & frees


def _slower(last: Sample, back: Sample) -> str:
    return f"{last.speed:.3g} steps/s, {back.speed:.3g} were measured before: {BACK}"


def _why(sample: Sample, predicted: float, now: float) -> str:
    return (
        f"{sample.speed:.3g} steps/s with {sample.worker_cores:.3g} + {sample.ps_cores:.3g} cores in use; "
        f"{predicted:.3g} predicted, {now:.3g} as it is"
    )


def limits_of(
    max_workers: Ints, max_ps: Ints, *, total_cores: float, most_cores: float, unit: float, few: bool = False
) -> list[PlanLimits]:
    """Return the limits of jobs that differ in the tasks that are useful to them."""
    pairs = list(zip(max_workers.tolist(), max_ps.tolist(), strict=True))
    limits = {pair: PlanLimits(total_cores, *pair, most_cores, unit, few) for pair in set(pairs)}
    return [limits[pair] for pair in pairs]

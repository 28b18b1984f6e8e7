"""Which plans jobs get: what each would gain, and what is worth a change; for many jobs at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import kernel
from labkit.schedulers.dlrover.belief import SpeedBelief
from labkit.schedulers.dlrover.fit import Sample, works_of
from labkit.schedulers.dlrover.front import Front, PlanLimits, fronts
from labkit.schedulers.dlrover.plan import NO_SLOWER, Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.select import chosen
from labkit.schedulers.dlrover.stages import JobState, compared
from labkit.speed.bottleneck import SOFTNESS, Work

FEWER: Final = "as fast with fewer cores"
OTHERS: Final = "others gain more by its cores"
BACK: Final = "back to a plan that was measured"
TAKEN_BACK: Final = "others need the cores beyond its quota"


_NONE: Final = np.array([1.0, 1.0, 1.0, 1.0])


@dataclass(frozen=True, eq=False, slots=True)
class JobBelief:
    """What is believed of a job: from which samples, its work or a belief, and the plans that are worth their cores."""

    samples: tuple[Sample, ...]
    work: Floats
    front: Front
    limits: PlanLimits
    belief: SpeedBelief | None = None
    _speeds: dict[tuple[Plan, int], float] = field(default_factory=dict)
    _gains: dict[int, tuple[Plan, float]] = field(default_factory=dict)

    def follows(self, state: JobState) -> bool:
        """Return whether this is what is believed of a job."""
        return self.belief is state.belief and (self.belief is not None or self.samples is state.samples)

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
        if self.belief is not None:
            return self.belief.speed(replace(plan, n_workers=n))
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

    _by_job: dict[int, JobBelief] = field(default_factory=dict)

    def of(
        self, states: Mapping[int, JobState], jobs: Sequence[int], limits: Callable[[list[int]], list[PlanLimits]]
    ) -> list[JobBelief]:  # fmt: skip
        """Return the beliefs about some jobs, all with samples; `limits` is called for new ones."""
        by_job = self._by_job
        new = [job for job in jobs if job not in by_job or not by_job[job].follows(states[job])]
        plain = [job for job in new if states[job].belief is None]
        if plain:
            works, within = works_of([states[job].samples for job in plain]), limits(plain)
            for job, work, front, each in zip(plain, works, fronts(works, within), within, strict=True):
                by_job[job] = JobBelief(states[job].samples, work, front, each)
        for job in new:
            if (belief := states[job].belief) is not None:
                each = limits([job])[0]
                by_job[job] = JobBelief(belief.samples, _NONE, Front.of_rows(*belief.frontier(each)), each, belief)
        if len(by_job) > 4 * len(states) + 64:
            self._by_job = {job: each for job, each in by_job.items() if job in states}
        return [self._by_job[job] for job in jobs]

    def forget(self) -> None:
        """Begin anew."""
        self._by_job.clear()


@dataclass(frozen=True, slots=True)
class Wish:
    """A plan that a job is to have, and why.

    `more`: cores that it takes beside those that it has; `predicted`: steps/s; `trial`: whether it is only tried.
    """

    job: int
    plan: Plan
    why: str
    more: float
    predicted: float
    trial: bool = False


def believed(works: Floats, plans: Sequence[Plan]) -> Floats:
    """Return the steps/s that are believed of plans, (J,), of jobs with works (J, 4)."""
    n, w, p, s = np.array([(q.n_workers, q.worker_cores, q.n_ps, q.ps_cores) for q in plans], np.float64).T
    c, u, t, hot = works.T
    most = np.array([max(cores for _, cores in q.extra) if q.extra else q.ps_cores for q in plans])
    evened = np.where(most > s, np.maximum(hot * s / most, 1.0), hot)  # as if the load were that much less
    return Work(c, u, t, evened).speed(n, worker_cores=w, n_ps=p, ps_cores=s)


def wishes(
    beliefs: Sequence[JobBelief], states: Sequence[JobState], *, jobs: Sequence[int], left: Floats, budget: float,
    rules: Rules, pause_s: float, wait: bool, root: float, fresh: Collection[int] = (),
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
    fresh : collection of int
        Jobs of which a belief is new: a plan may be tried.
    """
    if not beliefs:
        return []
    fronts_of = [each.front for each in beliefs]
    first = np.zeros(len(beliefs) + 1, np.int64)
    np.cumsum([len(front.cores) for front in fronts_of], out=first[1:])
    all_cores, speed = (
        np.concatenate(columns) for columns in zip(*((f.cores, f.speed) for f in fronts_of), strict=True)
    )
    gain = (speed / np.repeat(speed[first[1:] - 1], np.diff(first))) ** root
    least = float(all_cores[first[:-1]].sum())
    at = first[:-1] + np.maximum(chosen(all_cores, gain, first, max(budget, least)), 0)
    now, scale = _now(beliefs, states)
    predicted, frugal = speed[at] * scale, _frugal(speed, first, at)
    cores, entries = all_cores[frugal], frugal - first[:-1]
    held = np.array([state.plan.cores for state in states])
    special = np.array([bool(state.plan.extra or state.plan.beyond) for state in states])
    faster, fewer = _worth(now, predicted, cores, held, left, special, rules=rules, pause_s=pause_s, wait=wait)
    spare, told = budget - float(np.where(faster | fewer, cores, held).sum()), list[Wish]()
    for i in np.flatnonzero(faster | fewer).tolist():
        plan = beliefs[i].front.plan(int(entries[i]))
        told.append(_wish(jobs[i], plan, states[i], rules, predicted=float(predicted[i]), now=float(now[i])))
    for i in [i for i, job in enumerate(jobs) if job in fresh and not (faster[i] or fewer[i] or special[i])]:
        within = float(held[i]) + max(spare, 0.0)
        trial = _trial(jobs[i], beliefs[i], states[i], rules, left=float(left[i]), cores=within, pause_s=pause_s)
        if trial is not None:
            told.append(trial)
            spare -= max(trial.more, 0.0)
    return sorted(told, key=lambda wish: wish.job)


def _now(beliefs: Sequence[JobBelief], states: Sequence[JobState]) -> tuple[Floats, Floats]:
    """Return the steps/s of jobs as they are, and by what predictions are scaled, (J,) each: by what was measured."""
    now = believed(np.array([each.work for each in beliefs]), [state.plan for state in states])
    scale = np.ones(len(beliefs))
    for i, (each, state) in enumerate(zip(beliefs, states, strict=True)):
        last = state.samples[-1]
        if each.belief is not None:
            now[i] = each.speed(state.plan)
        elif last.plan is state.plan or last.plan == state.plan:
            scale[i] = last.speed / now[i]
    return now * scale, scale


def _wish(job: int, plan: Plan, state: JobState, rules: Rules, *, predicted: float, now: float) -> Wish:
    """Return a plan that is faster, or frees cores, as a wish."""
    why = _why(state, predicted, now)
    if predicted < (1 + rules.min_gain) * now:
        why += f": {FEWER if predicted >= (1 - rules.min_gain) * now else OTHERS}"
    why += f": {BACK}" if any(sample.plan == plan for sample in state.samples) else ""
    return Wish(job, plan, why, plan.cores - state.plan.cores, predicted)


def _trial(
    job: int, belief: JobBelief, state: JobState, rules: Rules, *, left: float, cores: float, pause_s: float
) -> Wish | None:  # fmt: skip
    """Return the plan that is worth trying for what it promises.

    It must pay for the way there and back, and the more often others were tried.
    """
    if belief.belief is None or state.n_trials >= rules.n_trials:
        return None
    now = belief.speed(state.plan)
    plan, gain, predicted = belief.belief.trial(belief.limits, now, cores=cores)
    saved_s = left / now * gain / (1 + gain)
    if gain < 2 * rules.min_gain or saved_s < (1 + state.n_trials) * rules.pays * (2 * pause_s + rules.gap_s):
        return None
    why = f"{_why(state, predicted, now)}: it is tried, as it promises {gain:.0%} more"
    return Wish(job, plan, why, plan.cores - state.plan.cores, predicted, trial=True)


def kept(state: JobState) -> str:
    """Return why a job of which a belief is new keeps its plan, with what was measured and had been predicted."""
    form = f"; speed {state.belief.form}" if state.belief is not None else ""
    return f"{compared(state.samples[-1].speed, state.expected)}{form}: it keeps its plan, as no other promises enough"


@kernel
def _frugal(speed: Floats, first: Ints, at: Ints) -> Ints:
    """Return the row with the fewest cores of those of a job that are hardly slower than its row `at` (J,)."""
    told = np.empty_like(at)
    for j in range(len(at)):
        mine = speed[first[j] : first[j + 1]]
        told[j] = first[j] + np.searchsorted(mine, (1 - NO_SLOWER) * speed[at[j]])
    return told


def _worth(
    now: Floats, predicted: Floats, cores: Floats, current_cores: Floats, left: Floats, special: Bools, *, rules: Rules,
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
    frees = (cores <= (1 - rules.frees) * current_cores) & (wait | (~special & (rules.min_gain * left_s >= pause_s)))
    return faster & pays, ~faster & frees


def _why(state: JobState, predicted: float, now: float) -> str:
    """Return the last measured and predicted speed of a job, and the prediction for another plan."""
    last = state.samples[-1]
    told = compared(last.speed, state.expected)
    told += f" with {last.worker_cores:.3g} + {last.ps_cores:.3g} cores in use" if last.has_use else ""
    form = f"; speed {state.belief.form}" if state.belief is not None else ""
    return f"{told}; {predicted:.3g} predicted, {now:.3g} as it is{form}"


def limits_of(
    max_workers: Ints, max_ps: Ints, *, total_cores: float, most_cores: float, unit: float, few: bool = False
) -> list[PlanLimits]:
    """Return the limits of jobs that differ in the tasks that are useful to them."""
    pairs = list(zip(max_workers.tolist(), max_ps.tolist(), strict=True))
    limits = {pair: PlanLimits(total_cores, *pair, most_cores, unit, few) for pair in set(pairs)}
    return [limits[pair] for pair in pairs]

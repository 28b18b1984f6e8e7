"""What is believed of one job whose measurements do not follow the bottleneck, whatever the form of its truth; pure.

Hypotheses are drawn: a form of speed (bottleneck, sum of times, saturated, falling with size) and its constants, with
the measured use of cores or without it. What a hypothesis leaves unexplained is a Gaussian process over plans: near a
plan that was measured the measurement counts more than any form, and a form counts where nothing was measured. Forms
are weighed by how well each predicts every measurement from those before it: the likelihood of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log
from typing import Final

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.front import PlanLimits, tables_of
from labkit.schedulers.dlrover.plan import FASTER, NO_SLOWER, Plan

N_DRAWN, N_AGAIN, N_PREDICTING = 1024, 256, 40
"""Hypotheses that are drawn, that are varied around the likely ones, and that predict."""
ROUNDS: Final = 3
"""Times that hypotheses are weighed, each time with the root of the likelihood."""
NOISE: Final = {0.06: 0.2, 0.17: 0.5, 0.6: 0.3}
UNEXPLAINED: Final = {0.05: 0.6, 0.2: 0.3, 0.6: 0.1}
"""Standard deviations of log speed that measurements have, and that forms leave unexplained; how likely each is."""
REACH: Final = 1.0
"""How far, in the logarithm of tasks and of cores, a measurement counts."""
CAREFUL: Final = 0.5
"""Standard deviations by which a plan is taken for slower than it is expected to be: how far a step may lead."""
LEAST: Final = 0.5
"""Part of the present speed that a plan must be expected to make to be tried."""
PLAIN, SPIN, SLOW = 0.5, 0.15, 0.1
"""How likely a job has the form of the paper, tasks use all cores that they have in any case, and a worker is slow."""
FALLS: Final = (0.55, 0.18, 0.12, 0.06, 0.09)
"""How likely speed falls with nothing, workers, pairs of tasks, cores, servers."""
STEP: Final = 1.5
"""From one number of tasks to the next one that is looked at first."""

_C, _U, _T, _HOT, _SOFT, _WIDTH, _FALL, _FALL_AT, _POWER, _CAP, _OF_PS, _SPIN_W, _SPIN_PS, _LOST, _DEPTH = range(15)
"""Columns of a hypothesis: core-seconds, seconds of the rest, load of the hottest server against the mean; exponent of
the minimum, 1 adds up times; cores that a worker can use; with what speed falls (1 workers, 2 pairs, 3 cores, 4
servers), from where on, and its power or `CLIFF`; steps/s at most, and whether of each server; whether workers and
servers spin; part of a worker that is lost because it is slow; what a cliff multiplies the time of a step by.
"""
CLIFF: Final = 0.0
"""In place of a power: speed is lower by a factor from a size on."""
N_BEFORE_CLIFFS, CLIFFS = 4, 0.15
"""Samples from which on cliffs are considered, as they would spoil first plans, and how likely they are then."""
_VARIES: Final = np.array([0.1, 0.1, 0.15, 0.02, 0, 0.15, 0, 0.2, 0, 0.15, 0, 0, 0, 0, 0.1])
"""By which part constants of a likely hypothesis are varied."""


@inner
def _eighth(x: float) -> float:
    """Return x to the power of 8."""
    x = x * x
    x = x * x
    return x * x


@kernel
def _log_speeds(h: Floats, x: Floats) -> Floats:
    """Return the logarithm of steps/s (M, P) that hypotheses (M, 15) expect of plans (P, 4)."""
    told = np.empty((len(h), len(x)))
    for m in range(len(h)):
        c, u, t, hot, soft = h[m, 0], h[m, 1], h[m, 2], h[m, 3], h[m, 4]
        for i in range(len(x)):
            n, w, p, s = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
            load = min(hot / p, 1.0) if p > 1 else 1.0
            a, b, d, e = c / (n * min(w, h[m, 5])), u * load / s, t / n, 1 / (h[m, 9] * (p if h[m, 10] > 0 else 1.0))
            if soft > 4:
                slow = _eighth(a) + _eighth(b) + _eighth(d) + _eighth(e)
            elif soft > 1:
                slow = a * a + b * b + d * d + e * e
                slow *= slow
                slow *= slow
            else:
                slow = _eighth(a + b + d + e)
            if h[m, 6] > 0:
                beyond = _beyond(h[m, 6], n, w, p, s, at=h[m, 7], power=h[m, 8])
                slow *= _eighth(1 + beyond if h[m, 8] > 0 else (h[m, 14] if beyond > 1 else 1.0))
            told[m, i] = log(1 - h[m, 13] / n) - log(slow) / 8
    return told


@inner
def _beyond(of: float, n: float, w: float, p: float, s: float, at: float, power: float) -> float:
    """Return the size with which speed falls, as a part of that from where on it does, to the power of 1, 2 or 4."""
    size = n if of == 1 else (n * p if of == 2 else (n * w + p * s if of == 3 else p))
    size /= at
    size *= size if power > 1 else 1.0
    return size * size if power > 2 else size


@kernel
def _improvement(mean: Floats, sd: Floats, kind: Ints, now: float) -> Floats:
    """Return by how many steps/s plans are expected to be better than `now`, counted as 0 where they are not, (P,)."""
    told = np.zeros(mean.shape[1])
    level = log(now)
    for m in range(len(mean)):
        for i in range(len(told)):
            s = max(sd[kind[m], i], 1e-3)
            z = (mean[m, i] - level) / s
            if z > -4:
                above, below = 1 / (1 + exp(-1.702 * (z + s))), 1 / (1 + exp(-1.702 * z))
                told[i] += max(exp(mean[m, i] + s * s / 2) * above - now * below, 0.0)
    return told / len(mean)


@dataclass(frozen=True, eq=False, slots=True)
class SampleTable:
    """Samples in columns (k,): plans (k, 4), steps/s, cores in use and given (2, k), hottest load against the mean."""

    plans: Floats
    speed: Floats
    used: Floats
    limits: Floats
    load: Floats

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> SampleTable:
        """Return samples as a table."""
        plans = rows_of([sample.plan for sample in samples])
        columns = np.array([(s.speed, s.worker_cores, s.ps_cores, s.hottest_load) for s in samples], np.float64).T
        limits = np.stack([plans[:, 0] * plans[:, 1], plans[:, 2] * plans[:, 3]])
        used = np.where(columns[1:3] > 0, columns[1:3], np.nan)
        return cls(plans, columns[0], used, limits, columns[3] * plans[:, 2])


def rows_of(plans: Sequence[Plan]) -> Floats:
    """Return plans as rows: workers, cores of each, servers, cores of each, (P, 4)."""
    return np.array([(q.n_workers, q.worker_cores, q.n_ps, q.ps_cores) for q in plans], np.float64).reshape(-1, 4)


def plan_of(row: Floats) -> Plan:
    """Return a row as a plan."""
    return Plan(int(row[0]), float(row[1]), int(row[2]), float(row[3]))


def cores_of(rows: Floats) -> Floats:
    """Return the cores in all of plans (P, 4)."""
    return np.asarray(rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3])


@dataclass(frozen=True, eq=False, slots=True)
class SpeedBelief:
    """Hypotheses that predict a job, after its measurements."""

    samples: tuple[Sample, ...]
    """The job's own, newest last, from which this follows; it may have learnt from jobs of its kind, too."""
    hypotheses: Floats
    """(M, 15) forms and constants."""
    measured: Floats
    """(k, 4) plans that were measured."""
    pull: Floats
    """(M, k) by how much what was measured at a plan moves each hypothesis near it."""
    kind: Ints
    """(M,) which noise and which process each hypothesis has."""
    inverse: Floats
    spread: Floats
    """`inverse` and `spread`: (kinds, k, k) inverse covariances, and (kinds,) standard deviations of what is
    unexplained."""

    @property
    def form(self) -> str:
        """The form that most hypotheses have, in words."""
        h = self.hypotheses
        names = np.select(
            [h[:, _FALL] > 0, np.isfinite(h[:, _CAP]), h[:, _SOFT] < 2],
            ["falls with size", "saturates", "adds up times"],
            "has a bottleneck",
        )
        found, count = np.unique(names, return_counts=True)
        return str(found[np.argmax(count)])

    def log_speeds(self, plans: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of log speed, (M, P) and (kinds, P), of plans (P, 4)."""
        near = _alike(self.measured, plans)
        mean = _log_speeds(self.hypotheses, plans) + self.pull @ near
        explained = np.stack([((inverse @ near) * near).sum(axis=0) for inverse in self.inverse])
        return mean, self.spread[:, None] * np.sqrt(np.maximum(1 - self.spread[:, None] ** 2 * explained, 0.0))

    def speeds(self, plans: Floats) -> Floats:
        """Return the steps/s that are carefully expected of plans (P, 4): the less is known, the less is expected."""
        mean, sd = self.log_speeds(plans)
        part = np.bincount(self.kind, minlength=len(sd)) / len(mean)
        return np.asarray(np.exp(mean.mean(axis=0) - CAREFUL * np.sqrt(part @ sd**2 + mean.var(axis=0))))

    def speed(self, plan: Plan) -> float:
        """Return the steps/s that are carefully expected of a plan."""
        return float(self.speeds(rows_of([plan]))[0])

    def frontier(self, limits: PlanLimits) -> tuple[Floats, Floats]:
        """Return plans that are faster than all with no more cores, (F, 4) by cores in all, and their steps/s (F,)."""
        rows = candidates(limits)
        speed = self.speeds(rows)
        near = _near(rows[np.argmax(speed)], limits)
        rows, speed = np.concatenate([rows, near]), np.concatenate([speed, self.speeds(near)])
        cores = cores_of(rows)
        if limits.few:
            speed = speed * (1 - NO_SLOWER * (rows[:, 0] + rows[:, 2]))
        order = np.lexsort((-speed, cores))
        rises = np.diff(np.maximum.accumulate(speed[order]), prepend=0.0) > FASTER * speed.max()
        return rows[order[rises]], speed[order[rises]]

    def trial(self, limits: PlanLimits, now: float, *, cores: float = inf) -> tuple[Plan, float, float]:
        """Return the plan that promises most above `now` steps/s, its expected gain as a part of that, and its steps/s.

        It has no more than some cores in all, or is the smallest one of all, and is expected to make `LEAST` of the
        present speed. A gain of 0: there is none.
        """
        rows = _within(candidates(limits), cores)
        rows = _within(_near(rows[np.argmax(self._gains(rows, now)[0])], limits), cores)
        gain, speed = self._gains(rows, now)
        best = int(np.argmax(gain))
        return plan_of(rows[best]), float(gain[best] / now), float(speed[best])

    def _gains(self, rows: Floats, now: float) -> tuple[Floats, Floats]:
        mean, sd = self.log_speeds(rows)
        speed = np.exp(mean.mean(axis=0))
        known = (rows[:, None] == self.measured).all(axis=2).any(axis=1)
        return np.where(known | (speed < LEAST * now), 0.0, _improvement(mean, sd, self.kind, now)), speed


def _alike(a: Floats, b: Floats) -> Floats:
    apart = np.log(a)[:, None] - np.log(b)[None]
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=2) / REACH**2))


def believe(samples: Sequence[Sample], others: Sequence[Sample] = ()) -> SpeedBelief:
    """Return the belief about a job after some samples, the same for the same samples.

    `others` are samples of jobs of its kind.
    """
    table, rng = SampleTable.of([*others, *samples]), np.random.default_rng(len(samples))
    h = _drawn(table, rng)
    likely = _likelihoods(h, table)
    for _ in range(ROUNDS - 1):
        h = _varied(h[_picked(np.logaddexp.reduce(likely, axis=0) / ROUNDS, N_AGAIN)], rng)
        likely = _likelihoods(h, table)
    once = likely - (1 - 1 / ROUNDS) * np.logaddexp.reduce(likely, axis=0)  # all rounds together count once
    kind, which = np.unravel_index(_picked(once.ravel(), N_PREDICTING), likely.shape)
    h = h[which]
    alike, wrong = _alike(table.plans, table.plans), np.log(table.speed) - _log_speeds(h, table.plans)
    grid = [(noise, spread) for noise in NOISE for spread in UNEXPLAINED]
    spread = np.array([each for _, each in grid])
    inverse = np.array([np.linalg.inv(b**2 * alike + a**2 * np.eye(len(alike))) for a, b in grid])
    pull = spread[kind][:, None] ** 2 * np.einsum("mij,mj->mi", inverse[kind], wrong)
    return SpeedBelief(tuple(samples), h, table.plans, pull, kind, inverse, spread)


def _picked(log_weight: Floats, n: int) -> Ints:
    """Return n rows, each as often as it is likely, without chance."""
    likely = np.cumsum(np.exp(log_weight - log_weight.max()))
    at: Ints = np.searchsorted(likely, (np.arange(n) + 0.5) / n * likely[-1])
    return at


def _drawn(table: SampleTable, rng: np.random.Generator) -> Floats:
    """Return hypotheses that could be before more than the constants are measured, (M, 15)."""
    n, speed = N_DRAWN, table.speed

    def between(low: float, high: float) -> Floats:
        return np.exp(rng.uniform(log(low), log(high), n))

    def some(part: float, other: Floats) -> Floats:
        return np.where(rng.random(n) < part, other, np.inf)

    spins, constants = rng.random((2, n)) < SPIN, []
    for used, limit, spin in zip(table.used, table.limits, spins, strict=True):
        free = (limit / speed).min() * between(0.003, 1.3)  # so that it is no limit, or hardly one, anywhere
        told = np.log((used / speed)[np.isfinite(used)])
        mine = np.exp(told.mean() + 0.1 * rng.standard_normal(n)) if len(told) else free
        constants.append(np.where(spin, free, mine))
    several = table.load[(table.plans[:, 2] > 1) & np.isfinite(table.load)]
    hot = np.maximum(np.median(several), 1.0) if len(several) else 1 + 0.4 * rng.random(n) * (rng.random(n) < 0.5)
    h = np.column_stack([
        *constants, (table.plans[:, 0] / speed).min() * between(0.003, 1.3), np.broadcast_to(hot, n),
        rng.choice([1.0, 2.0, 8.0], n, p=[0.2, 0.15, 0.65]), some(0.35, between(1, 32)),
        rng.choice(len(FALLS), n, p=FALLS), between(2, 300), rng.choice([1.0, 2.0, 4.0], n),
        some(0.35, speed.max() * between(0.7, 30)), rng.random(n) < 0.5, *spins,
        rng.uniform(0.3, 0.9, n) * (rng.random(n) < SLOW), np.ones(n),
    ])  # fmt: skip
    plain = np.flatnonzero(rng.random(n) < PLAIN)[:, None]
    h[plain, [_SOFT, _WIDTH, _FALL, _CAP]] = 8.0, np.inf, 0.0, np.inf
    if len(speed) >= N_BEFORE_CLIFFS:
        cliffs = np.flatnonzero(rng.random(n) < CLIFFS)
        h[cliffs, _FALL], h[cliffs, _POWER] = rng.integers(1, len(FALLS), len(cliffs)), CLIFF
        h[cliffs, _DEPTH] = between(1.2, 4)[cliffs]
    return h


def _varied(h: Floats, rng: np.random.Generator) -> Floats:
    told = h * np.exp(_VARIES * rng.standard_normal(h.shape))
    told[:, _HOT] = np.maximum(told[:, _HOT], 1.0)
    return told


def _likelihoods(h: Floats, table: SampleTable) -> Floats:
    """Return the log likelihood of each hypothesis (M,) with each noise and process, (kinds, M)."""
    k, alike = len(table.speed), _alike(table.plans, table.plans)
    wrong = (np.log(table.speed) - _log_speeds(h, table.plans)).T
    uses, n_uses = np.zeros(len(h)), 0
    for used, limit, constant, spins in zip(table.used, table.limits, (_C, _U), (_SPIN_W, _SPIN_PS), strict=True):
        there = np.isfinite(used)
        told = np.log(used[there] / table.speed[there])[:, None] - np.log(h[:, constant])
        spun = np.log(used[there] / limit[there])[:, None] ** 2
        uses += np.where(h[:, spins] > 0, spun, told**2 / 2).sum(axis=0)  # two are measured, each with its noise
        n_uses += int(there.sum())
    told = []
    for noise, a in NOISE.items():
        for spread, b in UNEXPLAINED.items():
            lower = np.linalg.cholesky(spread**2 * alike + noise**2 * np.eye(k))
            process = -0.5 * (np.linalg.solve(lower, wrong) ** 2).sum(axis=0) - np.log(np.diag(lower)).sum()
            told.append(process - 0.5 * uses / noise**2 - n_uses * log(noise) + log(a * b))
    return np.array(told)


@lru_cache(maxsize=64)
def _all(limits: PlanLimits) -> Floats:
    """Return all plans within limits, (P, 4), by cores in all."""
    workers, servers = (np.array(table, np.float64) for table in tables_of(limits).named)
    w, s = np.nonzero(workers.prod(axis=1)[:, None] + servers.prod(axis=1) <= limits.total_cores + 1e-6)
    rows = np.column_stack([workers[w], servers[s]])
    return rows[np.argsort(cores_of(rows), kind="stable")]


@lru_cache(maxsize=64)
def candidates(limits: PlanLimits) -> Floats:
    """Return plans that stand for all within limits, (P, 4), by cores in all: numbers of tasks rise by a half."""
    rows, numbers = _all(limits), [round(STEP**i) for i in range(18)]
    return rows[np.isin(rows[:, 0], [*numbers, limits.max_workers]) & np.isin(rows[:, 2], [*numbers, limits.max_ps])]


def _within(rows: Floats, cores: float) -> Floats:
    """Return the plans with no more than some cores of plans by cores; the first one where none has."""
    return rows[: max(int(np.searchsorted(cores_of(rows), cores + 1e-6, side="right")), 1)]


def _near(row: Floats, limits: PlanLimits) -> Floats:
    """Return all plans that are near one (4,)."""
    rows = _all(limits)
    return rows[(np.abs(np.log(rows / row)) < log(STEP) + 0.01).all(axis=1)]

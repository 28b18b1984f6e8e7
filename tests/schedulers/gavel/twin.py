"""Gavel's published simulator in plain Python, slow and literal: a second reading of its rules, to check the first.

Written from a description of `scheduler/scheduler.py` and `scheduler/policies/` at commit c4fa400 of Gavel's repository
alone (but for 10 and 11), without a look at labkit's mechanism or policies; no space sharing. Where it leaves a choice:

 1. With no active job a due reset still happens (the clock of resets starts anew, no allocation comes of it).
 2. "Forces a recompute" at an empty queue means `last_reset = 0`; a change must still be pending for one to follow.
 3. When nothing runs and nothing will arrive, time stands still for one more decision; if no job starts then either,
    the run ends with a RuntimeError.
 4. A new job adds dt/2 to its own time on every type, not to the type's time, which learns of it at the next reset; a
    finished job's time stays in the type's time until then.
 5. A failure's time counts for no job; 5 failures in a row count from the last success. The drop is another change.
 6. The time of a job's last micro-task is credited like any other.
 7. The order of types is shuffled from a fresh list in every decision, also where there are no jobs.
 8. A job that is not in the allocation sorts with an allocation of 0, after positive ones of equal priority.
 9. Shares are clipped to [0, 1], and not otherwise cleaned: tiny ones are positive, so that the job has a priority.
10. Aware FIFO: of the types with room the one with the most steps/s; a job that has 0 there is passed over and takes
    nothing, the first one without any room ends it (so it is in `fifo.py`).
11. Base FIFO: settled by a look at `fifo.py`, after the description did not give the published answers' cause away: the
    target is the last type that is still in the list, one that is drawn leaves the list when the target is full, a job
    that cannot have a finished one's place stays first in the queue, and one that cannot run on the target is left out.
12. Minimum duration halves the interval arithmetically; while nothing was feasible its upper end grows tenfold.
13. Finish-time fairness: 1/x as a second-order cone, as cvxpy writes it. A job with no steps left cannot be there.
14. Columns of linear programs in alphabetical order of the types (only rounding knows).
15. A generated job's steps may be fractions: n // SF is floored, and the last worker gets the rest.
16. The round start is what the last round's end was, also after an idle gap; the first one's is 0.
"""

from __future__ import annotations

import ast
import json
import random  # noqa: TID251  the published order of types comes from this generator
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TYPES = ("v100", "p100", "k80")
MIN_RESET_S = 1920.0
NAMES = {
    "isolated": "Isolated",
    "fifo": "FIFO",
    "fifo_perf": "FIFO_Perf",
    "max_min_fairness": "MaxMinFairness",
    "max_min_fairness_perf": "MaxMinFairness_Perf",
    "finish_time_fairness_perf": "FinishTimeFairness_Perf",
    "max_sum_throughput_perf": "ThroughputSumWithPerf",
    "min_total_duration_perf": "MinTotalDuration_Perf",
}


@dataclass
class Job:
    number: int
    kind: str
    total: float
    sf: int
    weight: float
    arrival: float
    done: float = 0.0
    failures: int = 0
    time: dict = field(default_factory=dict)  # seconds by type since the last reset, dt/2 more
    deficit: dict = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.total - self.done


def read_trace(path) -> list[tuple]:
    """(job type, total steps, scale factor, weight, arrival) of each line."""
    jobs = []
    for line in Path(path).read_text().splitlines():
        if line.strip():
            c = line.split("\t")
            jobs.append((c[0], int(c[5]), int(c[6]), float(c[7]), float(c[9])))
    return jobs


def read_throughputs(path) -> dict:
    """{type: {(job type, scale factor): steps/s alone}}."""
    raw = json.loads(Path(path).read_text())
    return {t: {ast.literal_eval(key): row["null"] for key, row in raw[t].items()} for t in TYPES if t in raw}


def run(trace, throughputs, cluster: dict, policy: str, *, seed: int = 0, round_s: float = 360.0, solver=None) -> dict:
    """Jobs' completion times by number (None: dropped), their mean, the makespan, and the first 50 rounds.

    `trace` is a path or a list of tuples as from `read_trace`; `throughputs` a path or as from `read_throughputs`.
    """
    jobs = trace if isinstance(trace, list) else read_trace(trace)
    table = throughputs if isinstance(throughputs, dict) else read_throughputs(throughputs)
    return Twin(jobs, table, cluster, policy, seed, round_s, solver).run()


class Twin:
    def __init__(self, jobs, table, cluster, policy, seed, dt, solver=None):
        self.queue = [Job(i, *row) for i, row in enumerate(jobs)]
        self.table, self.cluster, self.dt = table, {t: cluster[t] for t in TYPES if cluster.get(t)}, dt
        self.name = NAMES[policy]
        self.policy = Policy(policy, self.cluster, seed, solver)
        self.shuffler = random.Random(seed + 5)
        self.active: dict[int, Job] = {}
        self.alloc: dict[int, dict] = {}
        self.worker_time = dict.fromkeys(self.cluster, 0.0)
        self.need_update, self.last_reset = False, 0.0
        self.t, self.round_start, self.round_end = 0.0, 0.0, None
        self.running: list[tuple] = []  # (finish, job, type, steps)
        self.jct: dict[int, float | None] = {}
        self.rounds: list[dict] = []
        self.n_resets = 0

    def speed(self, job, w):
        return self.table[w].get((job.kind, job.sf), 0.0)

    def run(self):
        stuck = 0
        while self.queue or self.active:
            if not self.queue and not self.running:
                self.last_reset = 0.0
                stuck += 1
                if stuck > 2:
                    raise RuntimeError(f"jobs {sorted(self.active)} wait and never run")
            self.advance()
            self.complete()
            while self.queue and self.queue[0].arrival <= self.t:
                self.add(self.queue.pop(0))
            self.schedule()
            stuck = 0 if self.running else stuck
        done = [s for s in self.jct.values() if s is not None]
        mean = sum(done) / len(done) if done else float("nan")
        return {"jct": dict(sorted(self.jct.items())), "mean_jct_s": mean, "makespan_s": self.t, "rounds": self.rounds}

    # --- section 3: time

    def advance(self):
        if self.running:
            if self.round_end is not None:
                self.round_start = self.round_end
            self.t = self.round_end = max(finish for finish, *_ in self.running)
        elif self.queue:
            self.t = self.queue[0].arrival

    def add(self, job):
        job.time = dict.fromkeys(self.cluster, self.dt / 2)
        job.deficit = dict.fromkeys(self.cluster, 0.0)
        self.active[job.number] = job
        self.need_update = True

    def complete(self):
        for finish, job, w, n in sorted(self.running, key=lambda entry: -entry[0]):
            self.micro_task_done(job, w, n, finish, finish - self.round_start)
        self.running = []

    # --- section 5: the end of a micro-task

    def micro_task_done(self, job, w, n, finish, exec_time):
        share = n // job.sf
        shares = [share] * (job.sf - 1) + [n - share * (job.sf - 1)]
        if min(shares) <= 0 or exec_time <= 0:
            self.need_update = True
            job.failures += 1
            if job.failures == 5:
                self.jct[job.number] = None
                del self.active[job.number]
            return
        job.failures = 0
        job.done += n
        if job.left <= 0:
            self.jct[job.number] = finish - job.arrival
            del self.active[job.number]
            self.need_update = True
        job.time[w] += exec_time
        self.worker_time[w] += exec_time

    # --- section 4: a decision

    def schedule(self):
        if self.need_update and (self.t - self.last_reset >= MIN_RESET_S or self.last_reset == 0):
            self.reset()
        ran = {}
        for job, w in self.select():
            if job.number in self.alloc:
                speed = self.speed(job, w)
                n = min(int(speed * self.dt), job.left)
                self.running.append((self.t + n / speed, job, w, n))
                ran[job.number] = w
        if len(self.rounds) < 50:
            self.rounds.append(
                {"t": self.t, "runs": ran, "alloc": dict(self.alloc) if self.last_reset == self.t else {}}
            )

    def reset(self):
        for number, job in self.active.items():
            for w in self.cluster:
                received = job.time[w] - self.dt / 2
                deserved = self.alloc[number][w] * (self.t - self.last_reset) if number in self.alloc else 0.0
                job.deficit[w] += deserved - received
                job.time[w] = self.dt / 2
        for w in self.cluster:
            self.worker_time[w] = sum(job.time[w] for job in self.active.values())
        self.last_reset = self.t
        self.n_resets += 1
        columns = sorted(self.cluster)
        speeds = {number: {w: self.speed(job, w) for w in columns} for number, job in self.active.items()}
        self.alloc = self.policy.allocation(list(self.active.values()), speeds, self.t) if self.active else {}
        self.need_update = False

    def priority(self, job, w):
        if job.number not in self.alloc or self.speed(job, w) == 0:
            return 0.0
        alloc = self.alloc[job.number][w]
        fraction = job.time[w] / self.worker_time[w] if self.worker_time[w] else 0.0
        return alloc / fraction if fraction else alloc * 1e9

    def select(self) -> Iterable[tuple]:
        order = [w for w in TYPES if w in self.cluster]
        if "Perf" not in self.name and "Packing" not in self.name:
            self.shuffler.shuffle(order)
        chosen, taken = [], set()
        for w in order:
            free = self.cluster[w]
            ranked = sorted(self.active.values(), key=lambda job: self.rank(job, w), reverse=True)
            for job in ranked:
                if job.number in taken or job.sf > free or self.speed(job, w) <= 0:
                    continue
                if self.name.startswith("FIFO") and self.priority(job, w) <= 0:
                    continue
                free -= job.sf
                taken.add(job.number)
                chosen.append((job, w))
        return chosen

    def rank(self, job, w):
        alloc = self.alloc[job.number][w] if job.number in self.alloc else 0.0
        return self.priority(job, w), job.deficit[w], alloc


class Policy:
    """Section 7, by the formulas; columns in alphabetical order of the types."""

    def __init__(self, name, cluster, seed, solver=None):
        self.name, self.cluster = name, cluster
        self.columns = sorted(cluster)
        self.n = np.array([cluster[w] for w in self.columns], float)
        self.rng = random.Random(seed)
        self.kept: dict[int, str] = {}  # base FIFO: a job's type for life
        self.sf_of: dict[int, int] = {}
        self.so_far: dict[int, float] = {}  # finish-time fairness: seconds that the steps so far take in isolation
        self.last: dict[int, tuple] = {}  # steps left and isolated speed at the last call
        self.solve = solver or centre_by_clarabel

    def allocation(self, jobs: list[Job], speeds: dict, t: float) -> dict:
        T = np.array([[speeds[job.number][w] for w in self.columns] for job in jobs])
        s = np.array([job.sf for job in jobs], float)
        if self.name.startswith("fifo"):
            by_job = (self.fifo_perf if self.name == "fifo_perf" else self.fifo_base)(jobs, speeds)
            return {job.number: {w: float(by_job.get(job.number) == w) for w in self.columns} for job in jobs}
        x = getattr(self, self.name)(jobs, T, s, t)
        x = np.clip(x, 0.0, 1.0)
        return {
            job.number: dict(zip(self.columns, map(float, row), strict=True)) for job, row in zip(jobs, x, strict=True)
        }

    def isolated(self, jobs, T, s, t):
        x = self.n[None, :] / (len(jobs) * s[:, None])
        return x / np.maximum(x.sum(axis=1), 1.0)[:, None]

    def max_min_fairness_perf(self, jobs, T, s, t):
        weight = np.array([job.weight for job in jobs])
        proportional = T @ self.n / self.n.sum()
        return self.solve("max_min", T * (s / (weight * proportional))[:, None], s, self.n)

    def max_min_fairness(self, jobs, T, s, t):
        return self.max_min_fairness_perf(jobs, np.ones_like(T), s, t)

    def max_sum_throughput_perf(self, jobs, T, s, t):
        return self.solve("max_sum", T, s, self.n)

    def finish_time_fairness_perf(self, jobs, T, s, t):
        iso = (self.isolated(jobs, T, s, t) * T).sum(axis=1)
        for job, speed in zip(jobs, iso, strict=True):
            before = self.last.get(job.number, (job.left, 1.0))
            self.so_far[job.number] = self.so_far.get(job.number, 0.0) + (before[0] - job.left) / before[1]
            self.last[job.number] = (job.left, speed)
        left = np.array([job.left for job in jobs], float)
        age = np.array([t - job.arrival for job in jobs])
        alone = np.array([self.so_far[job.number] for job in jobs]) + left / iso
        x = self.solve("min_ratio", T, s, self.n, age=age, left=left, alone=alone)
        return self.isolated(jobs, T, s, t) if x is None else x

    def min_total_duration_perf(self, jobs, T, s, t):
        left = np.array([job.left for job in jobs], float)
        low, high, top, best = 100.0, 1e6, 1e6, None
        while best is None or high / low > 1.05:
            middle = (low + high) / 2
            x = self.solve("floors", T, s, self.n, floor=left / middle)
            if x is None:
                low = middle
            else:
                best, high = x, middle
            if best is None and high / low <= 1.05:
                top *= 10
                high = top
        return best

    def fifo_perf(self, jobs, speeds):
        free, where = dict(self.cluster), {}
        for job in sorted(jobs, key=lambda job: job.number):
            room = [w for w in self.columns if free[w] >= job.sf]
            if not room:
                break
            best = max(room, key=lambda w: speeds[job.number][w])  # max: the first of equal ones
            if speeds[job.number][best] > 0:
                where[job.number] = best
                free[best] -= job.sf
        return where

    def fifo_base(self, jobs, speeds):
        there, free = {job.number: job for job in jobs}, dict(self.cluster)
        queue = [number for number in sorted(there) if number not in self.kept]
        for number in sorted(self.kept):
            w = self.kept[number]
            if number in there:
                free[w] -= there[number].sf
                continue
            heir = queue[0] if queue else None
            if heir is not None and there[heir].sf <= free[w] and speeds[heir][w] > 0:
                queue.pop(0)
                self.kept[heir] = w
                free[w] -= there[heir].sf
            del self.kept[number]
        types = [w for w in self.columns if free[w] > 0]
        while queue and types:
            number = queue.pop(0)
            room = [w for w in types if free[w] >= there[number].sf]
            if not room:
                break
            drawn, target = room[self.rng.randrange(len(room))], types[-1]
            if speeds[number][target] <= 0:
                continue
            self.kept[number] = target
            free[target] -= there[number].sf
            if free[target] == 0:
                types.remove(drawn)
        return dict(self.kept)


def centre_by_clarabel(goal, T, s, n, *, age=None, left=None, alone=None, floor=None):  # noqa: C901  literal
    """The point at which clarabel stops, (m, W), or None if infeasible; one dense row at a time.

    max_min: max min_j T_j x_j; max_sum: max sum T x; floors: T_j x_j >= floor_j;
    min_ratio: min max_j (age_j + left_j / (T_j x_j)) / alone_j.
    """
    m, k = T.shape
    # variables: x, row by row; the least level or greatest ratio; for each job 1/(T x)
    rows, h, cost = [], [], np.zeros(m * k + 1 + m)
    level, inverse = m * k, m * k + 1 + np.arange(m)
    mine = [slice(j * k, (j + 1) * k) for j in range(m)]

    def row(limit, *entries):
        rows.append(np.zeros(len(cost)))
        h.append(limit)
        for where, entry in entries:
            rows[-1][where] = entry

    for i in range(m * k):
        row(0.0, (i, -1.0))
    for w in range(k):
        row(n[w], (slice(w, m * k, k), s))
    for j in range(m):
        row(1.0, (mine[j], 1.0))
    cones = 0
    if goal == "max_sum":
        cost[: m * k] = -T.ravel()
    elif goal == "max_min":
        cost[level] = -1.0
        for j in range(m):
            row(0.0, (mine[j], -T[j]), (level, 1.0))
    elif goal == "floors":
        for j in range(m):
            row(-floor[j], (mine[j], -T[j]))
    else:
        cost[level] = 1.0
        for j in range(m):
            row(-age[j] / alone[j], (level, -1.0), (inverse[j], left[j] / alone[j]))
        for j in range(m):  # u T x >= 1: |(T x - u, 2)| <= T x + u
            row(0.0, (mine[j], -T[j]), (inverse[j], -1.0))
            row(0.0, (mine[j], -T[j]), (inverse[j], 1.0))
            row(2.0)
        cones = m
    used = np.abs(rows).any(axis=0)
    found = _clarabel(np.array(rows)[:, used], np.array(h), cost[used], cones)
    return None if found is None else found[: m * k].reshape(m, k)


def _clarabel(rows, h, cost, cones):
    import clarabel
    from scipy import sparse

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    kinds = [clarabel.NonnegativeConeT(len(h) - 3 * cones)] + [clarabel.SecondOrderConeT(3)] * cones
    nothing = sparse.csc_matrix((len(cost), len(cost)))
    found = clarabel.DefaultSolver(nothing, cost, sparse.csc_matrix(rows), h, kinds, settings).solve()
    return np.array(found.x) if "Solved" in str(found.status) else None

"""Watching a policy: whether what it gives out is finite, a job starves, or its fallback would have done better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from labkit.core.events import Doubt
from labkit.core.jobs import Jobs
from labkit.core.life import Rehearse
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.schedulers.base import capacity
from labkit.schedulers.marginal_gain import kinds_of
from labkit.speed.optimus import OnlineSpeedFit

FEWEST: Final = 5
"""Jobs of a window; with fewer, nothing is said about it."""


@dataclass(eq=False, slots=True)
class Believed:
    """Speeds by counts, as they are believed."""

    grid: Floats
    """(K, P, W) steps per second with p parameter servers and w workers; all-reduce counts as one server."""
    kind: Ints
    """(N,) which of the K tables is that of a job."""
    reduces: Bools
    """(N,) True for jobs without servers."""
    may_run: Bools
    """(N, T) which jobs run on which types."""
    local: bool = True

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        job, n_ps, n_workers = running.job, running.n_ps, running.n_workers
        _, most_ps, most_workers = self.grid.shape
        ps = np.where(self.reduces[job], 1, np.minimum(n_ps, most_ps - 1))
        found: Floats = self.grid[self.kind[job], ps, np.minimum(n_workers, most_workers - 1)]
        return found

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        return self.may_run

    def durations_s(self) -> Floats:
        """Return NaN, not known, (N,)."""
        return np.full(len(self.kind), np.nan)


@dataclass(eq=False)
class Monitor:
    """Doubts a policy. The same snapshot gives the same doubts."""

    slot_s: float
    """Seconds of a slot."""
    patience: int
    window: int
    """`patience` and `window`: slots after which a job that gets nothing starves, and slots that are looked back on."""
    margin: float
    """A policy is worse if the jobs of a window would have taken longer than under the fallback by this fraction."""
    rivals: Callable[[], tuple[Scheduler, ...]]
    """Returns the policy and its fallbacks, fresh, to be rehearsed; asked once per window."""
    rehearse: Rehearse | None = None
    """Of the run; None: they are not compared."""
    grows: bool = False
    """The first window is as long as `patience`, each later one twice as long as the one before, up to `window`."""
    best: int = field(default=0, init=False)
    """Which fallback was the best in the last window."""
    ratios: list[tuple[float, float]] = field(default_factory=list)
    """Of each window: when it ended in seconds, and mean JCT of the policy over that of the best fallback."""
    _table: Jobs | None = field(default=None, init=False, repr=False)

    def begin(self, table: Jobs) -> None:
        """Forget what was seen of other jobs."""
        first, self._kind = kinds_of(table)
        self._table = table
        self._empty_since_s = np.full(len(table), np.inf)
        self._fit = OnlineSpeedFit(
            len(first), max_ps=int(max(table.max_ps.max(), 1)), max_workers=int(table.max_workers.max()),
            sync=table.sync[first],
        )  # fmt: skip
        self._last_s = self._began_s = -np.inf
        self._left = np.zeros(len(table))  # steps left when the window began; NaN: it was not there
        self._is_worse, self._tries_s = False, -np.inf
        self.best, self._length = 0, min(self.patience, self.window) if self.grows else self.window
        self.ratios.clear()

    def doubts(self, snapshot: Snapshot, n_tasks: Ints, *, sound: bool) -> list[Doubt]:
        """Return why what a policy gives to the active jobs, (J, 2) workers and servers, should not be carried out."""
        if self._table is not snapshot.table or snapshot.now_s < self._last_s:
            self.begin(snapshot.table)
        if snapshot.now_s > self._last_s:
            self._observe(snapshot)
        starved, tries = self._starved(snapshot, n_tasks), self._tries_s == snapshot.now_s
        found = {
            Doubt.NOT_FINITE: not sound, Doubt.STARVED: starved, Doubt.WORSE: self._is_worse and not tries,
            Doubt.UNTRIED: not self._is_worse and tries,
        }  # fmt: skip
        return [doubt for doubt, holds in found.items() if holds]

    # --- starving

    def _starved(self, snapshot: Snapshot, n_tasks: Ints) -> bool:
        """Return whether some job would have got nothing for too long, while room for it could be made."""
        number = snapshot.jobs.number
        could = (n_tasks.sum(axis=1) == 0) & _finds_room(snapshot, n_tasks)
        since_s = np.where(could, np.minimum(self._empty_since_s[number], snapshot.now_s), np.inf)
        self._empty_since_s[number] = since_s
        return bool((snapshot.now_s - since_s >= self.patience * self.slot_s - 1e-6).any())

    # --- worse than the fallback

    def _observe(self, snapshot: Snapshot) -> None:
        """Take in what is seen as a slot begins, and look back where a window ends."""
        jobs, self._last_s = snapshot.jobs, snapshot.now_s
        known = jobs.running & (jobs.speed > 0)
        if known.any():
            self._fit.observe(
                self._kind[jobs.number[known]], n_ps=np.maximum(jobs.n_ps[known], 1),
                n_workers=jobs.n_workers[known], speed=jobs.speed[known],
            )  # fmt: skip
        if self._began_s == -np.inf:
            self._open(snapshot)
        new = jobs.number[np.isnan(self._left[jobs.number])]
        self._left[new] = snapshot.table.total_steps[new]
        if snapshot.now_s - self._began_s >= self._length * self.slot_s - 1e-6:
            self._look_back(snapshot)

    def _open(self, snapshot: Snapshot) -> None:
        self._began_s = snapshot.now_s
        self._left[:] = np.nan
        self._left[snapshot.jobs.number] = snapshot.jobs.remaining_steps

    def _look_back(self, snapshot: Snapshot) -> None:
        """Compare the policy with its fallbacks over the window, and begin another.

        Speeds of gangs that no job had are guesses. So before, a policy that was replaced gets one slot, to show
        its own, and its fallback gets one where the policy has shown next to none.
        """
        there = np.flatnonzero(~np.isnan(self._left)).astype(np.int32)
        there = there[[self._fit.n_gangs(int(kind)) > 0 for kind in self._kind[there]]]
        if self.rehearse is not None and len(there) >= FEWEST and snapshot.up.all():
            if self._tries_s < self._began_s and (self._is_worse or self._shows_little(snapshot.table, there)):
                self._tries_s = snapshot.now_s
                return
            self._compare(snapshot, there, self.rehearse)
        self._length = min(2 * self._length, self.window)
        self._open(snapshot)

    def _compare(self, snapshot: Snapshot, there: Ints, rehearse: Rehearse) -> None:
        """Rehearse a window under the policy and its fallbacks, with the speeds that were observed so far."""
        table, left = snapshot.table, self._left[there]
        fraction = left / table.total_steps[there]
        jobs = table.as_if_true().take(there).with_columns(  # type: ignore[attr-defined]
            arrival_s=np.maximum(table.arrival_s[there] - self._began_s, 0.0), total_steps=left, true_steps=left,
            duration_s=table.duration_s[there] * fraction,
        )  # fmt: skip
        order = np.argsort(np.maximum(table.arrival_s[there] - self._began_s, 0.0), kind="stable")
        speed = self._believed(snapshot, there[order])
        mine, *others = (rehearse(jobs, rival, speed=speed, slot_s=self.slot_s) for rival in self.rivals())
        self.best = int(np.argmin(others))
        self.ratios.append((snapshot.now_s, mine / others[self.best]))
        self._is_worse = mine > (1 + self.margin) * others[self.best]

    def _shows_little(self, table: Jobs, jobs: Ints) -> bool:
        """Return whether most of the jobs that may grow are of kinds of which but one gang was seen, and a small one.

        Small is less than a quarter of the largest.
        """
        grows = jobs[table.malleable[jobs]]
        few = 0
        for job in grows:
            ps, workers = np.nonzero(self._fit.n[self._kind[job]])
            most = table.max_ps[job] + table.max_workers[job]
            few += len(ps) == 1 and 4 * (ps[0] + workers[0]) < most
        return 2 * few > len(grows)

    def _believed(self, snapshot: Snapshot, jobs: Ints) -> Believed:
        kinds, kind = np.unique(self._kind[jobs], return_inverse=True)
        grid = np.stack([self._fit.table(int(k)) for k in kinds])
        grid[:, 0], grid[:, :, 0] = 0.0, 0.0
        return Believed(grid, kind.astype(np.int32), snapshot.table.max_ps[jobs] == 0, snapshot.runs_on[jobs])


def _finds_room(snapshot: Snapshot, n_tasks: Ints) -> Bools:
    """Return for which jobs, (J,), a first gang fits, in sums, into what is free and what others have beyond theirs."""
    jobs = snapshot.jobs
    first = np.where(
        jobs.malleable[:, None],
        np.column_stack([np.ones(len(jobs), np.int32), np.minimum(jobs.max_ps, 1)]),
        np.column_stack([jobs.requested_workers, jobs.requested_ps]),
    )
    needed = first[:, :1] * jobs.worker_demand + first[:, 1:] * jobs.ps_demand  # (J, R)
    least = np.minimum(n_tasks, first)
    held = least[:, 0] @ jobs.worker_demand + least[:, 1] @ jobs.ps_demand
    return np.asarray((needed <= capacity(snapshot) - held + SLACK).all(axis=1))

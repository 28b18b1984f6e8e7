"""What can be estimated of jobs: steps per second of each gang, and steps left; shared by those that size gangs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from labkit.core.errors import InputError, ProfileError
from labkit.core.jobs import Jobs
from labkit.core.life import Context
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.marginal_gain import every_gang, kinds_of
from labkit.speed.convergence import Convergence
from labkit.speed.optimus import PINCH, OnlineSpeedFit, pre_runs

MIN_LOSSES: Final = 8
"""Losses that a job must have reported before its end is predicted from them."""

MOST_WRONG: Final = 4.0
"""Predicted steps are kept between the declared ones divided and multiplied by this."""


@dataclass(eq=False)
class Estimates:
    """Speeds fitted to a few gangs before a run and to what is observed during it, and steps left from losses [1]_.

    Attributes
    ----------
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    scheduler : str
        Whose they are, for errors.

    Raises
    ------
    InputError
        If no gang is to be measured.

    References
    ----------
    .. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018.
    """

    n_pre_runs: int = 10
    oracle: bool = False
    scheduler: str = "optimus"
    fit: OnlineSpeedFit | None = field(default=None, init=False, repr=False)
    _table: Jobs | None = field(default=None, init=False, repr=False)
    _kind: Ints = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)
    _true: Floats | None = field(default=None, init=False, repr=False)
    _predicted: dict[int, tuple[int, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_pre_runs < 1:
            raise InputError(f"{self.scheduler}: n_pre_runs is {self.n_pre_runs}; expected a number of gangs >= 1.")

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run, as Optimus does; all of them for an oracle."""
        jobs, fit = context.jobs, self._forget(context.jobs)
        if not jobs.malleable.any():  # no job grows, so no speed is needed
            return
        true = np.zeros_like(fit.mean)
        for kind in range(len(fit.mean)):
            alike = np.flatnonzero(self._kind == kind)
            ps, workers = self._gangs_to_measure(jobs, alike)
            speeds = context.measure(int(alike[0]), np.where(jobs.max_ps[alike[0]] > 0, ps, 0), workers)
            fit.observe(np.full(len(ps), kind), n_ps=ps, n_workers=workers, speed=np.maximum(speeds, 0))
            true[kind, ps, workers] = speeds
        if self.oracle:
            self._true = true

    def _gangs_to_measure(self, jobs: Jobs, alike: Ints) -> tuple[Ints, Ints]:
        """Return PSs and workers of the gangs to measure for jobs of one kind; all-reduce counts as one PS."""
        alike = alike[jobs.malleable[alike]] if jobs.malleable[alike].any() else alike
        if not jobs.malleable[alike[0]]:
            asked = np.unique(np.stack([np.maximum(jobs.n_ps[alike], 1), jobs.n_workers[alike]]), axis=1)
            return asked[0], asked[1]
        if self.oracle:
            return every_gang(jobs, alike)
        most_ps, most_workers = max(int(jobs.max_ps[alike].max()), 1), int(jobs.max_workers[alike].max())
        return pre_runs(max_ps=most_ps, max_workers=most_workers, n=self.n_pre_runs)

    def _forget(self, jobs: Jobs) -> OnlineSpeedFit:
        """Forget what was learnt from other jobs."""
        first, kind = kinds_of(jobs)
        self._table, self._kind, self._true = jobs, kind, None
        self._predicted = {}
        self.fit = OnlineSpeedFit(
            len(first),
            max_ps=int(max(jobs.max_ps.max(), 1)),
            max_workers=int(jobs.max_workers.max()),
            sync=jobs.sync[first],
        )
        return self.fit

    def of(self, snapshot: Snapshot) -> tuple[Ints, Floats, Floats]:
        """Learn from what a snapshot shows, and return what is believed of its active jobs.

        Returns
        -------
        kind, left : array
            (J,) the kind of each job and the steps that it has left: until its loss converges where that can be
            predicted, else as declared.
        seconds : array
            (K, P, W) per step of each kind with each gang; NaN for a kind that was never measured. Where no job of the
            run is malleable, nothing is measured: all jobs are of one kind then.
        """
        jobs, table = snapshot.jobs, snapshot.table
        fit = self.fit if self._table is table and self.fit is not None else self._forget(table)
        if not table.malleable.any():
            return np.zeros(len(jobs), np.int32), jobs.remaining_steps, np.full((1, 2, 2), np.nan)
        kind = self._kind[jobs.number]
        self.learn(snapshot, fit, kind)
        return kind, self.left_steps(snapshot), self.seconds_per_step(fit, np.unique(kind))

    def left_steps(self, snapshot: Snapshot) -> Floats:
        """Return the steps left of each job: until its loss converges where that can be predicted, else as declared."""
        jobs, target = snapshot.jobs, snapshot.table.loss_delta
        left = jobs.remaining_steps.copy()
        for j in np.flatnonzero(~np.isnan(target[jobs.number])):
            done_at = self.converged_at(snapshot, int(jobs.number[j]))
            left[j] = max(done_at - jobs.steps[j], snapshot.table.steps_per_epoch[jobs.number[j]])
        return left

    def converged_at(self, snapshot: Snapshot, job: int) -> float:
        """Return the step at which a job will have converged; fitted again when it has a fifth more losses."""
        n_fitted, done_at = self._predicted.get(job, (0, float(snapshot.table.total_steps[job])))
        n_losses = snapshot.n_losses(job)
        if n_losses < max(MIN_LOSSES, 1.2 * n_fitted):
            return done_at
        per_epoch = float(snapshot.table.steps_per_epoch[job])
        points = snapshot.losses(job)
        points = points[np.append(np.diff(points[:, 0]) > 0, True)]  # a job that stood still reports one step twice
        try:
            curve = Convergence.fit(points[:, 0], points[:, 1])
            done_at = curve.steps_to(delta=float(snapshot.table.loss_delta[job]), steps_per_epoch=per_epoch)
        except ProfileError:
            pass
        declared = float(snapshot.table.total_steps[job])
        self._predicted[job] = n_losses, float(np.clip(done_at, declared / MOST_WRONG, declared * MOST_WRONG))
        return self._predicted[job][1]

    def learn(self, snapshot: Snapshot, fit: OnlineSpeedFit, kind: Ints) -> None:
        """Take the speeds of running jobs into account."""
        jobs = snapshot.jobs
        seen = jobs.running & (jobs.speed > 0)
        if seen.any():
            fit.observe(
                kind[seen], n_ps=np.maximum(jobs.n_ps[seen], 1), n_workers=jobs.n_workers[seen], speed=jobs.speed[seen]
            )

    def seconds_per_step(self, fit: OnlineSpeedFit, kinds: Ints) -> Floats:
        """Return believed seconds per step of every gang, (K, P, W); NaN for a kind that was never measured."""
        seconds = np.full(fit.mean.shape, np.nan)
        for k in kinds:
            if self._true is None and not fit.n_gangs(int(k)):
                continue
            speed = fit.table(int(k)) if self._true is None else self._true[k]
            seconds[k] = 1 / np.maximum(speed, PINCH * max(float(speed.max()), 1e-300))
        return seconds

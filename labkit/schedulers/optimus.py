"""Optimus: speed functions and convergence fitted online, workers and servers by marginal gain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, ProfileError
from labkit.core.jobs import Jobs
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, dl2_simulator, place
from labkit.schedulers.marginal_gain import allocate, by_urgency, every_gang, kinds_of, penalties, refuse_unknown_gain
from labkit.speed.convergence import Convergence
from labkit.speed.optimus import PINCH, OnlineSpeedFit, pre_runs

YOUNG: Final = 0.1
"""A job is young during this fraction of its steps."""

MIN_LOSSES: Final = 8
"""Losses that a job must have reported before its end is predicted from them."""

MOST_WRONG: Final = 4.0
"""Predicted steps are kept between the declared ones divided and multiplied by this."""


@dataclass(eq=False)
class Optimus:
    """Give the task that shortens some job most for what it takes, again and again [1]_.

    Every job first gets one worker and one parameter server (a rigid job its whole gang), the one with the least work
    left first. Then a job's next tasks are worth

        (Q / f(p, w) - Q / f(p + dp, w + dw)) / (dominant share of a server x dp + that of a worker x dw)

    with Q steps left, and the best one is carried out until nothing fits or gains. Speeds f are fitted to what was
    measured, before the run (`begin`) and while it goes on, Q to the reported losses where there are any.

    Attributes
    ----------
    placer : Placer
        Where gangs go; even placement is Optimus' own, for machines that share a network.
    gain : str
        "time" is the published rule; "speed" counts by which factor a job gets faster, as `lookahead(gain="speed")`.
    look_ahead : int
        Most tasks in one move; 1 is the published rule, more steps over gangs that are no faster than a smaller one.
    young_factor : float
        Gain of a job in the first tenth of its steps, whose predictions are unsure, is multiplied by this.
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    published : bool
        Follow DL2's simulator instead, an oracle that needs `speeds`: see `reproductions.dl2_simulator`.
    max_move : tuple of (str, int, int)
        Most workers and servers by which a job of a model may grow or shrink in one decision, for each model that is
        bounded: `(("wide-deep", 4, 2), ("xdeepfm", 1, 1))` with `quantum_s=180` is the variant that DLRover compares
        with [2]_.
    speeds : array, optional
        True steps/s of each model of the jobs by gang, such as `labkit.speed.MeasuredSpeed.grid`; with
        `published=True` up to one task beyond the largest gang.
    quantum_s : float
        A session decides at least this often; Optimus' interval is 10 minutes.

    References
    ----------
    .. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018.
    .. [2] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", sec. 6.3.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    gain: str = "time"
    look_ahead: int = 6
    young_factor: float = 0.95
    n_pre_runs: int = 10
    oracle: bool = False
    published: bool = False
    max_move: tuple[tuple[str, int, int], ...] = ()
    speeds: Floats | None = field(default=None, repr=False)
    quantum_s: float = 600.0
    _table: Jobs | None = field(default=None, init=False, repr=False)
    _kind: Ints = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)
    _fit: OnlineSpeedFit | None = field(default=None, init=False, repr=False)
    _true: Floats | None = field(default=None, init=False, repr=False)
    _predicted: dict[int, tuple[int, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_unknown_gain("optimus", self.gain)
        if self.look_ahead < 1:
            raise InputError(f"optimus: look_ahead is {self.look_ahead}; expected a number of tasks >= 1.")
        if self.n_pre_runs < 1:
            raise InputError(f"optimus: n_pre_runs is {self.n_pre_runs}; expected a number of gangs >= 1.")
        for model, *move in self.max_move:
            if len(move) != 2 or min(move) < 1:
                raise InputError(
                    f"optimus: max_move of {model} is {tuple(move)}; expected workers and servers >= 1, e.g. (4, 2)."
                )
        if not 0 < self.young_factor < np.inf:
            raise InputError(f"optimus: young_factor is {self.young_factor}; expected a factor > 0, 1 for none.")
        if self.speeds is not None and np.ndim(self.speeds) != 3:
            raise InputError(
                f"optimus: speeds has {np.ndim(self.speeds)} axes; expected 3: model, PSs, workers, as model.grid has."
            )

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run, as Optimus does; all of them for an oracle."""
        jobs, fit = context.jobs, self._begin(context.jobs)
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

    def _begin(self, jobs: Jobs) -> OnlineSpeedFit:
        """Forget what was learnt from other jobs."""
        first, kind = kinds_of(jobs)
        self._table, self._kind, self._true = jobs, kind, None
        self._predicted = {}
        self._fit = OnlineSpeedFit(
            len(first),
            max_ps=int(max(jobs.max_ps.max(), 1)),
            max_workers=int(jobs.max_workers.max()),
            sync=jobs.sync[first],
        )
        return self._fit

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        if self.published:
            if self.speeds is None:
                raise InputError("optimus(published=True) is an oracle; give it the true speeds: speeds=model.grid.")
            return dl2_simulator().optimus(snapshot, self.speeds)
        fit = self._fit if self._table is snapshot.table and self._fit is not None else self._begin(snapshot.table)
        jobs, table = snapshot.jobs, snapshot.table
        if not table.malleable.any() and _all_have_theirs(snapshot):
            return Placement.nothing()
        if table.malleable.any():
            kind = self._kind[jobs.number]
            self._learn(snapshot, fit, kind)
            left, seconds = self._left_steps(snapshot), self._seconds_per_step(fit, np.unique(kind))
        else:
            kind = np.zeros(len(jobs), np.int32)
            left, seconds = jobs.remaining_steps, np.full((1, 2, 2), np.nan)
        penalty, weight = penalties(self.gain, seconds, left)
        least, most = self._bounds(snapshot)
        n_workers, n_ps = allocate(
            by_urgency(snapshot, left, seconds[kind]), jobs.number, kind,
            np.where(jobs.steps < YOUNG * jobs.total_steps, self.young_factor, 1.0) * weight, penalty, self.look_ahead,
            table.worker_demand, table.ps_demand, table.n_workers, table.n_ps, most[0], most[1], table.malleable,
            capacity(snapshot),
        )  # fmt: skip
        n_workers, n_ps = np.maximum(n_workers, least[0]), np.maximum(n_ps, least[1])
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))

    def _bounds(self, snapshot: Snapshot) -> tuple[Ints, Ints]:
        """Return the fewest workers and servers of each active job, (2, J), and the most of each job, (2, N)."""
        jobs, table = snapshot.jobs, snapshot.table
        held, most = np.stack([jobs.n_workers, jobs.n_ps]), np.stack([table.max_workers, table.max_ps])
        least = np.zeros_like(held)
        for model, *move in self.max_move:
            if model not in table.models:
                continue
            mine = (table.model[jobs.number] == table.models.index(model)) & table.malleable[jobs.number]
            step = np.array(move, np.int32)[:, None]
            least[:, mine] = np.where(held[:, mine] > 0, held[:, mine] - step, 0)
            number = jobs.number[mine]
            most[:, number] = np.minimum(most[:, number], np.maximum(held[:, mine], 1) + step)
        return least, most

    def _left_steps(self, snapshot: Snapshot) -> Floats:
        """Return the steps left of each job: until its loss converges where that can be predicted, else as declared."""
        jobs, target = snapshot.jobs, snapshot.table.loss_delta
        left = jobs.remaining_steps.copy()
        for j in np.flatnonzero(~np.isnan(target[jobs.number])):
            done_at = self._converged_at(snapshot, int(jobs.number[j]))
            left[j] = max(done_at - jobs.steps[j], snapshot.table.steps_per_epoch[jobs.number[j]])
        return left

    def _converged_at(self, snapshot: Snapshot, job: int) -> float:
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

    def _learn(self, snapshot: Snapshot, fit: OnlineSpeedFit, kind: Ints) -> None:
        jobs = snapshot.jobs
        seen = jobs.running & (jobs.speed > 0)
        if seen.any():
            fit.observe(
                kind[seen], n_ps=np.maximum(jobs.n_ps[seen], 1), n_workers=jobs.n_workers[seen], speed=jobs.speed[seen]
            )

    def _seconds_per_step(self, fit: OnlineSpeedFit, kinds: Ints) -> Floats:
        """Return believed seconds per step of every gang, (K, P, W); NaN for a kind that was never measured."""
        seconds = np.full(fit.mean.shape, np.nan)
        for k in kinds:
            if self._true is None and not fit.n_gangs(int(k)):
                continue
            speed = fit.table(int(k)) if self._true is None else self._true[k]
            seconds[k] = 1 / np.maximum(speed, PINCH * max(float(speed.max()), 1e-300))
        return seconds


def _all_have_theirs(snapshot: Snapshot) -> bool:
    """Return whether every active job holds the gang that it asked for; rigid ones can have no other."""
    jobs = snapshot.jobs
    if snapshot.n_running < len(jobs):
        return False
    return bool((jobs.n_workers == jobs.asked_workers).all() and (jobs.n_ps == jobs.asked_ps).all())

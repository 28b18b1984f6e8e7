"""Optimus: speed functions and convergence fitted online, workers and servers by marginal gain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, dl2_simulator, place
from labkit.schedulers.estimates import Estimates
from labkit.schedulers.marginal_gain import allocate, by_urgency, penalties, refuse_unknown_gain

YOUNG: Final = 0.1
"""A job is young during this fraction of its steps."""


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
    _estimates: Estimates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_unknown_gain("optimus", self.gain)
        if self.look_ahead < 1:
            raise InputError(f"optimus: look_ahead is {self.look_ahead}; expected a number of tasks >= 1.")
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
        self._estimates = Estimates(self.n_pre_runs, self.oracle)

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run, as Optimus does; all of them for an oracle."""
        self._estimates.begin(context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        if self.published:
            if self.speeds is None:
                raise InputError("optimus(published=True) is an oracle; give it the true speeds: speeds=model.grid.")
            return dl2_simulator().optimus(snapshot, self.speeds)
        jobs, table = snapshot.jobs, snapshot.table
        if not table.malleable.any() and _every_job_has_its_gang(snapshot):
            return Placement.nothing()
        kind, left, seconds = self._estimates.of(snapshot)
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


def _every_job_has_its_gang(snapshot: Snapshot) -> bool:
    """Return whether every active job holds the gang that it asked for; rigid ones can have no other."""
    jobs = snapshot.jobs
    if snapshot.n_running < len(jobs):
        return False
    return bool((jobs.n_workers == jobs.requested_workers).all() and (jobs.n_ps == jobs.requested_ps).all())

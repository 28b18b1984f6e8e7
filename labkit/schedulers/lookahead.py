"""Marginal gain with true speeds, looking several tasks ahead: an oracle to measure others by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.marginal_gain import (
    NEVER_S,
    allocate,
    by_urgency,
    gang_speeds,
    penalties,
    refuse_unknown_gain,
)


@dataclass(eq=False)
class Lookahead:
    """Give the few tasks that shorten some job most for what they take, again and again, knowing all speeds: an oracle.

    Every job first gets one worker and one parameter server, a rigid job its whole gang. Then any p servers and w
    workers with p + w <= `steps` are worth

        (Q / f(P, W) - Q / f(P + p, W + w)) / (dominant share of a server x p + that of a worker x w)

    to a job with Q steps left that holds P and W, and the best addition to any job is carried out until nothing fits or
    gains. That is Optimus' rule [1]_, which has `steps` = 1 and fitted speeds; f here is measured for every gang before
    the run (`begin`), which no scheduler can afford. Steps left are the declared ones.

    `gain="speed"` asks by which factor a job gets faster, in place of how much sooner it ends: with F = the largest f,

        ((f(P + p, W + w) / F)^(1/4) - (f(P, W) / F)^(1/4)) / (the same cost)

    so that jobs with much work left do not draw most tasks. On DL2's jobs that is better wherever tasks are scarce.

    Attributes
    ----------
    steps : int
        Most tasks in one addition: 1 stops at gangs that are no faster than a smaller one, 16 steps over all of them.
    gain : str
        "time" or "speed".
    shortest_first : bool
        First gangs go to the jobs with the least time left in theirs; False: to those that arrived first.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.

    References
    ----------
    .. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018.
    """

    knows_types: ClassVar[bool] = False
    oracle: ClassVar[bool] = True

    steps: int = 6
    gain: str = "time"
    shortest_first: bool = True
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 600.0
    _kind: Ints = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)
    _seconds: Floats = field(default_factory=lambda: np.empty((0, 2, 2)), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"lookahead: steps is {self.steps}; expected a number of tasks >= 1.")
        refuse_unknown_gain("lookahead", self.gain)

    def begin(self, context: Context) -> None:
        """Measure every gang of each kind of job."""
        self._kind, speeds = gang_speeds(context)
        with np.errstate(divide="ignore"):
            self._seconds = np.where(speeds > 0, 1 / speeds, NEVER_S)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        if len(self._kind) != len(table):
            raise InputError(
                "lookahead: it has measured no speeds of these jobs; call its begin(context) before a run."
            )
        kind, left = self._kind[jobs.number], jobs.remaining_steps
        order = np.arange(len(jobs), dtype=np.int32)
        penalty, weight = penalties(self.gain, self._seconds, left)
        n_workers, n_ps = allocate(
            by_urgency(snapshot, left, self._seconds[kind]) if self.shortest_first else order, jobs.number, kind,
            weight, penalty, self.steps, table.worker_demand, table.ps_demand, table.n_workers,
            table.n_ps, table.max_workers, table.max_ps, table.malleable, capacity(snapshot),
        )  # fmt: skip
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))

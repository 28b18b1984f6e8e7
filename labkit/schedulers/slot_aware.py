"""Slot-aware marginal gain: tasks that cut most slots for what they take, knowing that the slot ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.estimates import Estimates
from labkit.schedulers.marginal_gain import allocate, by_urgency


@dataclass(eq=False)
class SlotAware:
    """Give the tasks that cut most slots for what they take, again and again; what ends within a slot frees nothing.

    Every job first gets one worker and one parameter server (a rigid job its whole gang), the one with the least time
    left in it first. Then up to `look_ahead` further tasks at a time, p servers and w workers, are worth

        (c(P, W) - c(P + p, W + w)) / (dominant share of a server x p + that of a worker x w)

    to a job that has P and W, and the best addition to any job is carried out until nothing fits or gains. c counts the
    slots until a job with Q steps left ends, if it does v = f(P, W) x slot of them in this slot and v* with its fastest
    gang:

        c = Q / v                        if it ends in this slot,
        c = 1 + stretch x (Q - v) / v*   otherwise.

    Decisions fall on slots, so a job that ends within one keeps its tasks to its end: ending it sooner helps that job
    alone, and by the time saved exactly. A step that is left for later costs `stretch` times what it takes the fastest
    gang, because jobs share the cluster then, too. Optimus counts Q / f in both cases, as if a job kept its gang until
    its end, and so gives most tasks to jobs with much work left. The rule is labkit's own, found in comparisons with
    `dl2`; nothing of it is trained.

    It knows what `optimus` does: declared steps, or the end that losses predict, and speeds f fitted to a few gangs
    measured before the run and to what is observed. `srtf` is told no speeds. Where decisions fall on events, too, a
    slot is `quantum_s`.

    Attributes
    ----------
    stretch : float
        At least 1: seconds that a second's work of the fastest gang takes later.
    look_ahead : int
        Most tasks in one addition; more than 1 steps over gangs that are no faster than a smaller one.
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often, where the run does not say when to decide.
    """

    knows_types: ClassVar[bool] = False

    stretch: float = 2.0
    look_ahead: int = 6
    n_pre_runs: int = 10
    oracle: bool = False
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 1200.0
    _estimates: Estimates = field(init=False, repr=False)
    _slot_s: float = field(default=np.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.stretch < np.inf:
            raise InputError(f"slot_aware: stretch is {self.stretch}; expected a factor >= 1, e.g. 2.")
        if self.look_ahead < 1:
            raise InputError(f"slot_aware: look_ahead is {self.look_ahead}; expected a number of tasks >= 1.")
        self._estimates = Estimates(self.n_pre_runs, self.oracle, scheduler="slot_aware")

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run; all of them for an oracle."""
        self._slot_s = context.slot_s
        self._estimates.begin(context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        kind, left, seconds = self._estimates.of(snapshot)
        slot_s = self._slot_s if np.isfinite(self._slot_s) else self.quantum_s
        mine = seconds[kind]
        n_workers, n_ps = allocate(
            by_urgency(snapshot, left, mine), jobs.number, np.arange(len(jobs), dtype=np.int32), np.ones(len(jobs)),
            slots_to_end(left, mine, slot_s=slot_s, stretch=self.stretch), self.look_ahead,
            table.worker_demand, table.ps_demand, table.n_workers, table.n_ps, table.max_workers, table.max_ps,
            table.malleable, capacity(snapshot),
        )  # fmt: skip
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))


def slots_to_end(left: Floats, seconds: Floats, *, slot_s: float, stretch: float) -> Floats:
    """Return how many slots each job needs by the gang that it has in this one, (J, P, W).

    Parameters
    ----------
    left, seconds : array
        (J,) steps left, (J, P, W) seconds per step by gang; NaN where it is not known.

    Examples
    --------
    Jobs of 150 and 300 steps in slots of 200 s, with gangs that need 1 and 2 s per step. 150 steps end in this slot or
    leave 50, a quarter of what the fastest gang does in a slot; 300 leave 100 or 200.

    >>> slots_to_end(np.array([150.0, 300.0]), np.array([[[1.0, 2.0]]] * 2), slot_s=200.0, stretch=2.0)
    array([[[0.75, 1.5 ]],
    <BLANKLINE>
           [[2.  , 3.  ]]])
    """
    done = slot_s / seconds  # steps in this slot
    fastest = np.fmax.reduce(done, axis=(1, 2), keepdims=True)
    rest = left[:, None, None] - done
    slots: Floats = np.where(rest <= 0, left[:, None, None] / done, 1 + stretch * rest / fastest)
    return slots

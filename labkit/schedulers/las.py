"""Least attained service, in queues as Tiresias has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import run_in_order
from labkit.schedulers.rule import BY_QUEUE, NEVER, Rule
from labkit.schedulers.tiresias import LATE, Queues

ORDERS = ("arrival", "start")
"""What jobs of one queue are ordered by."""
PUBLISHED_GPU_S = 3250.0, 7200.0
"""The thresholds of Tiresias' simulator."""


@dataclass(frozen=True, slots=True)
class Las:
    """Jobs that have held few GPU-seconds go before those that have held many, in queues by attained service.

    The discretised two-dimensional LAS of Tiresias [1]_: attained service is GPUs x time, and a job moves to the next
    queue when it reaches a threshold. By default there are two queues, and jobs of one queue keep their order of
    arrival, so that the one that came first preempts the others. In Tiresias' own simulator jobs that run stay ahead of
    those that wait in the same queue, so that equals do not preempt each other: that is `order="start"`. Neither is
    better on all traces; `promote` is Tiresias' PROMOTEKNOB.

    Attributes
    ----------
    threshold_gpu_s : float
        Attained service at which a job moves to the second queue.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often, so that jobs change queues in time. With `order="start"`, several
        thresholds or `promote` it decides when a job is to change queues, too.
    order : str
        "arrival"; or "start": jobs that run come first, those that wait behind them as they were.
    promote : float
        A job of a later queue that has waited so many times as long as it has run goes back to the first, with no
        attained service; inf: never.
    thresholds_gpu_s : tuple of float
        In the place of `threshold_gpu_s`, where there are more queues than two: one more than thresholds, which rise.
    published : bool
        Follow Tiresias' simulator: `order="start"`, thresholds of 3,250 and 7,200 GPU-seconds unless others are given,
        no `quantum_s`. It looks for jobs to move down when (threshold - seconds run) / GPUs have passed: gangs, which
        attain service faster than that, move late.
    moves : bool, optional
        As of `srtf`.

    References
    ----------
    .. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019.
    """

    knows_types: ClassVar[bool] = False

    threshold_gpu_s: float = 3600.0
    placer: Placer = ByNetwork()
    quantum_s: float = 600.0
    order: str = "arrival"
    promote: float = inf
    thresholds_gpu_s: tuple[float, ...] = ()
    published: bool = False
    moves: bool | None = None
    _queues: Queues = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.threshold_gpu_s > 0:
            raise InputError(f"las: threshold_gpu_s is {self.threshold_gpu_s}; expected GPU-seconds > 0.")
        rising = (0.0, *self.thresholds_gpu_s)
        if not all(a < b for a, b in pairwise(rising)):
            raise InputError(f"las: thresholds_gpu_s is {self.thresholds_gpu_s}; expected GPU-seconds > 0 that rise.")
        if self.order not in ORDERS:
            raise unknown("order of las", str(self.order), ORDERS)
        if not self.promote > 0:
            raise InputError(f"las: promote is {self.promote}; expected times what a job has run, > 0, or inf.")
        if self.published:
            object.__setattr__(self, "order", "start")
            object.__setattr__(self, "quantum_s", inf)
        thresholds = self.thresholds_gpu_s or (PUBLISHED_GPU_S if self.published else (self.threshold_gpu_s,))
        asks = LATE if self.published else ""
        queues = Queues(tuple(thresholds), promote=self.promote, order=self.order, asks=asks)
        object.__setattr__(self, "_queues", queues)

    @property
    def _plain(self) -> bool:
        """Whether there are two queues by arrival, and no way back."""
        return self.order == "arrival" and self.promote == inf and not self.thresholds_gpu_s and not self.published

    def rule(self) -> Rule | None:
        """Return how compiled code decides the same."""
        if not self._plain:
            return NEVER
        return Rule(BY_QUEUE, preempts=True, backfill=True, threshold_gpu_s=self.threshold_gpu_s, moves=self.moves)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop."""
        if not self._plain:
            return self._queues.schedule(snapshot, partial(run_in_order, placer=self.placer, moves=self.moves))
        jobs = snapshot.jobs
        second = jobs.attained_gpu_s >= self.threshold_gpu_s
        order = np.concatenate([jobs.number[~second], jobs.number[second]])
        return run_in_order(snapshot, order, self.placer, moves=self.moves)

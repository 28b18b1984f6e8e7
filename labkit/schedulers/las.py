"""Least attained service, in the two queues of Tiresias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import run_in_order
from labkit.schedulers.rule import BY_QUEUE, Rule


@dataclass(frozen=True, slots=True)
class Las:
    """Jobs that have held few GPU-seconds go before those that have held many; first come, first served in each queue.

    The discretised two-dimensional LAS of Tiresias [1]_ with two queues: attained service is GPUs x time, and within
    a queue jobs keep their order of arrival, so that similar jobs do not take turns.

    Attributes
    ----------
    threshold_gpu_s : float
        Attained service at which a job moves to the second queue.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often, so that jobs change queues in time.

    References
    ----------
    .. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019.
    """

    knows_types: ClassVar[bool] = False

    threshold_gpu_s: float = 3600.0
    placer: Placer = ByNetwork()
    quantum_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.threshold_gpu_s > 0:
            raise InputError(f"las: threshold_gpu_s is {self.threshold_gpu_s}; expected GPU-seconds > 0.")

    def rule(self) -> Rule:
        """Return how compiled code decides the same."""
        return Rule(BY_QUEUE, preempts=True, backfill=True, threshold_gpu_s=self.threshold_gpu_s)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop."""
        jobs = snapshot.jobs
        second = jobs.attained_gpu_s >= self.threshold_gpu_s
        order = np.concatenate([jobs.number[~second], jobs.number[second]])
        return run_in_order(snapshot, order, self.placer)

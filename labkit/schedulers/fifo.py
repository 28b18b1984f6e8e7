"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import dl2_simulator, start_in_order
from labkit.schedulers.rule import BY_ARRIVAL, NEVER, Rule


@dataclass(frozen=True, slots=True)
class Fifo:
    """Start jobs in order of arrival, with the gang that they asked for; preempt none.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    backfill : bool
        Pass over a job that does not fit now, instead of letting all others wait behind it.
    priority : bool
        Jobs of higher priority come first, and by arrival among equals.
    published : bool
        Follow DL2's simulator instead: see `reproductions.dl2_simulator`.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork()
    backfill: bool = False
    priority: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        if self.published and (self.backfill or self.priority):
            raise InputError("fifo: published=True goes alone, without backfill and priority, which DL2's has not.")

    def rule(self) -> Rule | None:
        """Return how compiled code decides the same."""
        return NEVER if self.published or self.priority else Rule(BY_ARRIVAL, preempts=False, backfill=self.backfill)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        if self.published:
            return dl2_simulator().in_order(snapshot, snapshot.jobs.number)
        waiting = snapshot.waiting
        if self.priority:
            waiting = waiting[np.argsort(-snapshot.table.priority[waiting], kind="stable")]
        return start_in_order(snapshot, waiting, self.placer, backfill=self.backfill)

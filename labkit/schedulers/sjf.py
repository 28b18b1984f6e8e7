"""Shortest job first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import start_in_order
from labkit.schedulers.rule import BY_DURATION, Rule


@dataclass(frozen=True, slots=True)
class Sjf:
    """Start the waiting job with the smallest declared duration; preempt none.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    backfill : bool
        Pass over a job that does not fit now.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    placer: Placer = ByNetwork()
    backfill: bool = False

    def rule(self) -> Rule:
        """Return how compiled code decides the same."""
        return Rule(BY_DURATION, preempts=False, backfill=self.backfill)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        shortest_first = snapshot.table.duration_s
        return start_in_order(snapshot, snapshot.waiting, self.placer, backfill=self.backfill, by=shortest_first)

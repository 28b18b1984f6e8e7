"""Shortest remaining time first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import dl2_simulator, run_in_order
from labkit.schedulers.rule import BY_REMAINING, NEVER, Rule


@dataclass(frozen=True, slots=True)
class Srtf:
    """Run the jobs with the least declared time left, and preempt the others.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    published : bool
        Follow DL2's simulator instead, where the key is the remaining *fraction*: see
        `reproductions.dl2_simulator`.
    moves : bool, optional
        Place running jobs anew, too, at each decision, the most urgent first; False: a job that goes on keeps its
        machines. By default they move where a cluster, or one of its partitions, mixes GPU types: there that is better
        even if a move costs minutes; among equal GPUs it gains little, and nothing where moves cost.
    service : bool
        Count the GPU-seconds that are left in the place of seconds: shortest remaining service first (SRSF).
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    placer: Placer = ByNetwork()
    published: bool = False
    moves: bool | None = None
    service: bool = False

    def rule(self) -> Rule | None:
        """Return how compiled code decides the same."""
        return (
            NEVER
            if self.published or self.service
            else Rule(BY_REMAINING, preempts=True, backfill=True, moves=self.moves)
        )

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop."""
        jobs = snapshot.jobs
        if self.published:
            remaining_fraction = 1 - jobs.steps / jobs.total_steps
            return dl2_simulator().in_order(snapshot, jobs.number[np.argsort(remaining_fraction, kind="stable")])
        left = jobs.remaining_s * snapshot.table.gpus[jobs.number] if self.service else jobs.remaining_s
        shortest_first = np.argsort(left, kind="stable")
        return run_in_order(snapshot, jobs.number[shortest_first], self.placer, moves=self.moves)

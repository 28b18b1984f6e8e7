"""Reports of workers on the progress of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.elastic.controller.barrier import WorkerBarrier
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.controller.shard_assignment import ShardAssignment


@dataclass(slots=True, eq=False)
class TrainingProgress:
    """Follows the steps of the workers.

    Parameters
    ----------
    job : ControllerState
        With workers and progress.
    out : CommandBuffer
        For events.
    requests, barrier, checkpoints, shards, leases, eras
        Parts of the controller that a step concerns.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    leases: DataLeases
    eras: EraStart

    def on_ready(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Handle the report that a worker has the parameters of a version."""
        member.ready = member.begun = True
        self.barrier.overdue.discard(member.name)
        member.version = int(columns["version"])
        if self.requests.awaits(member.name):
            self.requests.arrived(member.name)
        elif self.job.phase == "training" and self.job.n_ready() > 1 and member.version > 0:  # it joined later
            self.shards.deal()

    def on_behind(self, member: Member, columns: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Deal the logical shards of a worker that lacks the parameters of the step to the others."""
        member.ready = member.begun = False
        if self.job.phase == "training" and self.job.n_begun():
            self.shards.deal()
            self.checkpoints.end_when_done()  # the others may have completed the last step
        elif self.job.phase == "training":
            self.eras.go_back()

    def on_stepped(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Handle the report of a completed step: the job's (synchronous), or the worker's own (asynchronous)."""
        if self.leases.active:
            step_s = float(columns.get("compute_s", 0.0)) + float(columns.get("wait_s", 0.0))
            self.barrier.on_step(member.name, step_s)
            self.leases.on_stepped(member, columns)
            self.checkpoints.save_when_due()
            return
        member.version = int(columns["version"]) + 1
        self.job.progress = max(self.job.progress, member.version)
        may_deal = self.job.phase == "training" and self.requests.current is None
        self.shards.measured(member, columns, may_deal=may_deal)
        self.checkpoints.on_step()

    def on_done(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Handle the report that a worker has completed its last step."""
        member.version = int(columns["version"])
        self.checkpoints.end_when_done()

    def on_holds(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Handle the report that an asynchronous worker has paused."""
        self.barrier.on_paused(member.name, columns.get("number"))

    def on_held(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Record how long a worker has paused."""
        self.out.note("suspended", name=member.name, seconds=columns["seconds"])

"""Reports of workers on the progress of training."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.elastic.controller.barrier import WorkerBarrier
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.controller.shard_assignment import ShardAssignment
from labkit.elastic.protocol.messages.reports import Paused, Resumed, StepDone, TrainingBegun, TrainingDone, UpdateDone


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

    def on_begun(self, member: Member, report: TrainingBegun) -> None:
        """Handle the report that a worker has the parameters of a version."""
        member.ready = member.begun = True
        self.barrier.overdue.discard(member.name)
        member.version = report.version
        if self.requests.awaits(member.name):
            self.requests.arrived(member.name)
        elif self.job.phase == "training" and self.job.n_ready() > 1 and member.version > 0:  # it joined later
            self.shards.deal()

    def on_behind(self, member: Member) -> None:
        """Deal the logical shards of a worker that lacks the parameters of the step to the others."""
        member.ready = member.begun = False
        if self.job.phase == "training" and self.job.n_begun():
            self.shards.deal()
            self.checkpoints.end_when_done()  # the others may have completed the last step
        elif self.job.phase == "training":
            self.eras.go_back()

    def on_update(self, member: Member, report: UpdateDone) -> None:
        """Handle the report that an asynchronous worker has made an update."""
        self.barrier.on_step(member.name, report.compute_s + report.wait_s)
        self.leases.on_update(member, report)
        self.checkpoints.save_when_due()

    def on_step(self, member: Member, report: StepDone) -> None:
        """Handle the report that a synchronous worker has completed a step of the job."""
        member.version = report.version + 1
        self.job.progress = max(self.job.progress, member.version)
        may_deal = self.job.phase == "training" and self.requests.current is None
        self.shards.measured(member, report, may_deal=may_deal)
        self.checkpoints.on_step()

    def on_done(self, member: Member, report: TrainingDone) -> None:
        """Handle the report that a worker has completed its last step."""
        member.version = report.version
        self.checkpoints.end_when_done()

    def on_paused(self, member: Member, report: Paused) -> None:
        """Handle the report that a worker has paused."""
        self.barrier.on_paused(member.name, report.number)

    def on_resumed(self, member: Member, report: Resumed) -> None:
        """Record how long a worker has paused."""
        self.out.note("suspended", name=member.name, seconds=report.seconds)

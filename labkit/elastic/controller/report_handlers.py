"""The part of the controller that handles each report of a member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from labkit.elastic.controller.block_ownership import BlockOwnership
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule
from labkit.elastic.controller.controller_state import Member
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.member_loss import MemberLoss
from labkit.elastic.controller.outcome import JobOutcome
from labkit.elastic.controller.progress import TrainingProgress
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.controller.takeover import Takeover
from labkit.elastic.process.causes import cause_named
from labkit.elastic.protocol.messages.reports import (
    BlockCopied,
    BlockLoads,
    BlockReport,
    Connected,
    ConnectFailed,
    ConnectionBroken,
    CopyLate,
    Failed,
    FellBehind,
    GradientsReceived,
    HandedOver,
    HasReplica,
    LacksReplicas,
    LimitsSet,
    NotFinite,
    OutOfMemory,
    OwnsBlock,
    Paused,
    PeerRefused,
    ProcessReport,
    Raised,
    ReplicaFailed,
    Report,
    Resumed,
    ShardLosses,
    StateReported,
    StepDone,
    Stuck,
    TrainingBegun,
    TrainingDone,
    Transferring,
    TransferUnconfirmed,
    UpdateDone,
    VersionLost,
    WantsLease,
    WorkerReport,
)


@dataclass(slots=True, eq=False)
class ReportHandlers:
    """Passes reports on; mypy names a report that lacks a case.

    Parameters
    ----------
    requests, scaler, checkpoints, leases, ownership, member_loss, takeover, progress, outcome
        Parts of the controller that reports concern.
    """

    requests: ScalingQueue
    scaler: Scaler
    checkpoints: CheckpointSchedule
    leases: DataLeases
    ownership: BlockOwnership
    member_loss: MemberLoss
    takeover: Takeover
    progress: TrainingProgress
    outcome: JobOutcome

    def handle(self, member: Member, report: Report) -> None:
        """Pass a report to the part of the controller that it concerns."""
        if isinstance(report, WorkerReport):
            self._handle_training(member, report)
        elif isinstance(report, BlockReport):
            self._handle_blocks(member, report)
        else:
            self._handle_process(member, report)

    def _handle_training(self, member: Member, report: WorkerReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case TrainingBegun():
                self.progress.on_begun(member, report)
            case FellBehind():
                self.progress.on_behind(member)
            case StepDone():
                self.progress.on_step(member, report)
            case UpdateDone():
                self.progress.on_update(member, report)
            case TrainingDone():
                self.progress.on_done(member, report)
            case Paused():
                self.progress.on_paused(member, report)
            case Resumed():
                self.progress.on_resumed(member, report)
            case WantsLease():
                self.leases.on_wants(member)
            case ShardLosses() | NotFinite():
                pass  # only events of the job
            case _:
                assert_never(report)

    def _handle_blocks(self, member: Member, report: BlockReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case OwnsBlock():
                self.ownership.on_owns(member, report)
            case HandedOver():
                self.ownership.on_handed_over(member, report)
            case TransferUnconfirmed():
                self.takeover.on_unconfirmed(member, report)
            case Transferring():
                self.takeover.on_transferring(report)
            case HasReplica():
                self.ownership.on_replica(member, report)
            case ReplicaFailed():
                self.member_loss.on_replica_failed(report)
            case LacksReplicas():
                self.ownership.on_lacks(member, report)
            case BlockCopied():
                pass  # `CheckpointKeeper` counts them
            case CopyLate():
                self._on_late(report)
            case VersionLost():
                self.ownership.on_version_lost(report)
            case BlockLoads():
                self.scaler.on_loads(member, report)
            case GradientsReceived():
                pass  # only an event of the job
            case _:
                assert_never(report)

    def _handle_process(self, member: Member, report: ProcessReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case StateReported():
                self.takeover.on_state_reported(member, report)
            case Connected():
                self.requests.arrived(("met", member.name, report.server))
            case ConnectFailed():
                self.member_loss.on_connect_failed(member, report)
            case Stuck():
                self.member_loss.on_stuck(member, report)
            case Raised():
                self.member_loss.on_raised(member, report)
            case OutOfMemory():
                self.member_loss.on_out_of_memory(member, report)
            case Failed():
                self.outcome.end(f"{member.name}: {report.why}", cause=cause_named(report.cause))
            case ConnectionBroken() | PeerRefused() | LimitsSet():
                pass  # only events of the job
            case _:
                assert_never(report)

    def _on_late(self, report: CopyLate) -> None:
        """Handle the report that the order to copy came after the version that it named."""
        if self.checkpoints.saving == report.version:
            self.checkpoints.saving = None
            self.scaler.save_later(report.version)

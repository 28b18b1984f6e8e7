"""Reports of servers on the blocks that they have, hand over or lack."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.member_loss import MemberLoss
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.report_columns import columns_of
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.protocol.messages.orders import ForgetBlocks, TakeBack
from labkit.elastic.protocol.messages.reports import (
    HandedOver,
    HasReplica,
    LacksReplicas,
    OwnsBlock,
    TransferUnconfirmed,
    VersionLost,
)


@dataclass(slots=True, eq=False)
class BlockOwnership:
    """Keeps the block owners as servers report them, and settles blocks whose transfer failed.

    Parameters
    ----------
    job : ControllerState
        With the block owners.
    out : CommandBuffer
        For orders to servers.
    requests, scaler, replication, member_loss, eras
        Parts of the controller that such a report concerns.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    member_loss: MemberLoss
    eras: EraStart

    def on_owns(self, member: Member, report: OwnsBlock) -> None:
        """Enter a server as the owner of a block, unless a newer owner is known."""
        job, block, moves = self.job, report.block, report.moves
        job.claimed.add(block)
        if moves < job.moves.get(block, -1):
            return
        job.owner[block], job.moves[block] = member.name, moves
        self.replication.confirm_promotion(block, member.name)
        self.replication.owned_by(block, member.name)
        self.requests.arrived(("owns", block, member.name))
        if block in self.replication.pending:
            self.replication.order([block])

    def on_handed_over(self, member: Member, report: HandedOver) -> None:
        """Enter the new owner of a block, before it reports itself; if it has died since, the block may be lost."""
        job = self.job
        self.out.note("moved", **{"from": member.name, **columns_of(report)})
        block, owner, moves = report.block, report.owner, report.moves
        if moves <= job.moves.get(block, -1):
            return
        job.owner[block], job.moves[block] = owner, moves
        if owner not in job.members and job.phase == "training" and self.replication.promote({owner}) is None:
            self.eras.go_back()

    def on_replica(self, member: Member, report: HasReplica) -> None:
        """Handle the report that a server has a complete replica of a block."""
        self.replication.on_complete(member, report)
        self.requests.arrived(("follows", report.block, member.name))

    def on_lacks(self, member: Member, report: LacksReplicas) -> None:
        """Go back to a checkpoint if a promoted server has no replica of a block."""
        if self.job.phase == "training" and any(self.job.owner[b] == member.name for b in report.blocks):
            self.eras.go_back()

    def on_unconfirmed(self, member: Member, report: TransferUnconfirmed) -> None:
        """Settle the owner of a block that was sent to a server which has not confirmed it."""
        job, block, owner = self.job, report.block, report.owner
        if job.moves.get(block, -1) >= report.moves:  # it arrived, and may have moved further
            self.out.tell(member.name, ForgetBlocks([block]))
            return
        if owner in job.members:
            self.member_loss.cut_off(owner, report.why)  # it must not believe that it has the block
        if job.phase != "training":
            return
        self.out.tell(member.name, TakeBack([block]))
        self.requests.arrived(("owns", block, owner))
        self.scaler.redirect({block: member.name})  # orders that came while the block was under way had no effect

    def on_version_lost(self, report: VersionLost) -> None:
        """Go back to a checkpoint: a worker or server has parameters of a version that was lost with a server."""
        if self.job.phase == "training":
            self.out.note("amiss", block=report.block, version=report.version)
            self.eras.go_back()

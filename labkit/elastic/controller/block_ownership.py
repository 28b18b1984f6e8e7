"""Reports of servers on the blocks that they have, hand over or lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.member_loss import MemberLoss
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue


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

    def on_owns(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Enter a server as the owner of a block, unless a newer owner is known."""
        job, block, moves = self.job, int(columns["block"]), int(columns["moves"])
        job.claimed.add(block)
        if moves < job.moves.get(block, -1):
            return
        job.owner[block], job.moves[block] = member.name, moves
        self.replication.confirm_promotion(block, member.name)
        self.replication.owned_by(block, member.name)
        self.requests.arrived(("owns", block, member.name))
        if block in self.replication.pending:
            self.replication.order([block])

    def on_handed_over(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Enter the new owner of a block, before it reports itself; if it has died since, the block may be lost."""
        job = self.job
        self.out.note("moved", **{"from": member.name, **columns})
        block, owner, moves = int(columns["block"]), str(columns["owner"]), int(columns["moves"])
        if columns["era"] != job.era or moves <= job.moves.get(block, -1):
            return
        job.owner[block], job.moves[block] = owner, moves
        if owner not in job.members and job.phase == "training" and self.replication.promote({owner}) is None:
            self.eras.go_back()

    def on_shadows(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Handle the report that a server has a complete replica of a block."""
        self.replication.on_complete(member, columns)
        self.requests.arrived(("follows", int(columns["block"]), member.name))

    def on_lacks(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Go back to a checkpoint if a promoted server has no replica of a block."""
        if self.job.phase == "training" and any(self.job.owner[int(b)] == member.name for b in columns["blocks"]):
            self.eras.go_back()

    def on_unsure(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Settle the owner of a block that was sent to a server which has not confirmed it."""
        job, block, owner = self.job, int(columns["block"]), str(columns["owner"])
        if job.moves.get(block, -1) >= columns["moves"]:  # it arrived, and may have moved further
            self.out.tell(member.name, do="forget", blocks=[block])
            return
        if owner in job.members:
            self.member_loss.cut_off(owner, str(columns.get("why", "")))  # it must not believe that it has the block
        if job.phase != "training":
            return
        self.out.tell(member.name, do="take_back", blocks=[block])
        self.requests.arrived(("owns", block, owner))
        self.scaler.redirect({block: member.name})  # orders that came while the block was under way had no effect

    def on_amiss(self, _: Member, columns: Mapping[str, Any]) -> None:
        """Go back to a checkpoint: a worker or server has parameters of a version that was lost with a server."""
        if self.job.phase == "training":
            self.out.note("amiss", block=columns["block"], version=columns["version"])
            self.eras.go_back()

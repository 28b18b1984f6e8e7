"""Members that connect to the controller, for the first time or again."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.elastic.controller.checkpoint_schedule import MARGIN, CheckpointSchedule
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.member_loss import MemberLoss
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.protocol.messages.orders import BeginEra, ConnectTo, ReportState


@dataclass(slots=True, eq=False)
class Joining:
    """Introduces members that connect to the others, and repeats what reconnected members may have missed.

    Parameters
    ----------
    job : ControllerState
        With the members.
    out : CommandBuffer
        For messages to members.
    requests, scaler, replication, checkpoints, member_loss, eras
        Parts of the controller whose orders a member needs.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    checkpoints: CheckpointSchedule
    member_loss: MemberLoss
    eras: EraStart

    def on_joined(self, member: Member, address: str) -> None:
        """Handle the first connection of a member to this controller."""
        job, name = self.job, member.name
        if not member.ever_joined:
            self.member_loss.deaths.joined()
            self.member_loss.shortages.joined()
        member.joined, member.ever_joined, member.address = True, True, address
        if job.phase == "taking_over":
            self.out.tell(name, ReportState())
        self.out.note("joined", name=name, role=member.role)
        if member.role == "server" and job.phase != "taking_over":
            self.out.tell(name, BeginEra(job.era))
        self._introduce(member)
        if member.role == "worker" and job.phase == "training":
            self.eras.begin_worker(name, job.progress + MARGIN, (0, 0))
        elif self.requests.awaits(name):
            self._await_connections(member)

    def _introduce(self, member: Member) -> None:
        """Let a new member and the servers connect, before anything depends on it."""
        for other in self.job.members.values():
            if other is not member and other.joined:
                if member.role == "server":
                    self.out.tell(other.name, ConnectTo(member.name, member.address))
                if other.role == "server":
                    self.out.tell(member.name, ConnectTo(other.name, other.address))

    def _await_connections(self, member: Member) -> None:
        """Let the current request wait until a new server is connected to all other members, in both directions."""
        self.requests.arrived(member.name)
        for other in self.job.members.values():
            if other.joined and not other.leaving and other is not member:
                self.requests.awaiting(("met", other.name, member.name))
                if other.role == "server":  # its report shows that it has heard of the era
                    self.requests.awaiting(("met", member.name, other.name))

    def on_rejoined(self, member: Member) -> None:
        """Handle another connection of a member: repeat what it may have missed, and ask what it has."""
        phase = self.job.phase
        self.out.note("rejoined", name=member.name, role=member.role)
        self._introduce(member)
        if phase == "loading" and member.role == "server":
            self.eras.go_back()  # it is unknown which blocks arrived
        elif phase in ("training", "taking_over"):
            self.out.tell(member.name, ReportState())
            if phase == "training" and member.role == "server":
                self._remind(member)

    def _remind(self, server: Member) -> None:
        """Repeat the orders to a server; those that it has carried out have no effect."""
        self.checkpoints.remind(server.name)
        mine = [block for block in self.replication.pending if self.job.owner[block] == server.name]
        self.replication.order(mine)
        self.scaler.remind(server.name)

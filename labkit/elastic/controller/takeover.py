"""A controller that takes over from one that died: it restores the state, and members report what they have."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from labkit.elastic.controller.checkpoint_schedule import MARGIN, CheckpointSchedule, WorkerBarrier
from labkit.elastic.controller.controller_state import (
    CommandBuffer,
    ControllerState,
    JobPhase,
    Member,
    SavedMachine,
    SavedMember,
)
from labkit.elastic.controller.data_assignment import DataLeases, ShardAssignment
from labkit.elastic.controller.membership import EraStart, MemberLoss
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue
from labkit.elastic.protocol.messages import reports
from labkit.elastic.protocol.messages.orders import BeginEra, ForgetBlocks, Resume, SetOwners, TakeBack
from labkit.elastic.shards import Record

RESTORED: Final[dict[JobPhase, JobPhase]] = {"training": "taking_over", "starting": "starting"}
"""Phase of a controller that takes over, by that of the one that died; else it is "restoring"."""


@dataclass(slots=True, eq=False)
class Takeover:
    """Saves and restores the state of the controller, and resumes training once all members have reported."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    leases: DataLeases
    ownership: BlockOwnership
    member_loss: MemberLoss
    eras: EraStart
    outcome: JobOutcome
    _unsettled: list[tuple[str, reports.TransferUnconfirmed]] = field(default_factory=list)
    """Reports of unconfirmed transfers, settled when all members have reported: (server, report)."""
    _outdated: bool = False
    """Whether a member is in a later era than the restored state, so that the state is too old."""

    # --- the state between controllers

    def state(self) -> SavedMachine:
        """Return the state for `restore`; members report the progress of training themselves."""
        job = self.job
        blocks = sorted(job.owner)
        return SavedMachine(
            phase=job.phase,
            era=job.era,
            saved=self.checkpoints.saved,
            members=tuple([_saved(member) for member in job.members.values()]),
            next_server=job.numbers["server"],
            next_worker=job.numbers["worker"],
            lost=tuple(sorted(job.lost)),
            owners=tuple([job.owner[block] for block in blocks]),
            moves=tuple([job.moves[block] for block in blocks]),
            load=None if job.load is None else tuple(job.load),
            deaths=self.member_loss.deaths.state(),
            shortages=self.member_loss.shortages.state(),
            failure=self.outcome.failure,
            cause=self.outcome.cause,
            requests=self.requests.state(),
            replicas=self.replication.state(),
        )

    def restore(
        self, state: SavedMachine, *, names: Iterable[str], records: Iterable[Record], heard: Collection[int],
        now_s: float,
    ) -> None:  # fmt: skip
        """Restore the state of the controller that died; see `Controller.take_over`."""
        job = self.job
        self._restore_job(state)
        job.reserve(names)
        if state.phase == "over":
            self.outcome.end(state.failure, cause=state.cause)
            return
        for member in job.members.values():
            if member.leaving:  # it has nothing any more that the job needs
                self.out.end(member.name, kill=True)
        job.phase = RESTORED.get(state.phase, "restoring")
        self.out.note("taken_over", era=job.era, phase=state.phase)
        if job.phase == "taking_over" and not job.terms.sync:
            self.leases.replay(records, heard=heard, now_s=now_s)
        self.requests.take_over(state.requests)

    def _restore_job(self, state: SavedMachine) -> None:
        job = self.job
        for one in state.members:
            job.members[one.name] = Member(
                one.name, one.role, one.address, leaving=one.leaving, site=one.site, ever_joined=one.ever_joined
            )
        job.lost = set(state.lost)
        job.owner, job.moves = dict(enumerate(state.owners)), dict(enumerate(state.moves))
        job.era, job.load = state.era, None if state.load is None else list(state.load)
        job.numbers = {"server": state.next_server, "worker": state.next_worker}
        self.checkpoints.saved = state.saved
        self.member_loss.deaths.take_over(state.deaths)
        self.member_loss.shortages.take_over(state.shortages)
        self.replication.take_over(state.replicas)
        self.requests.n_asked = state.requests.n_asked

    # --- reports of members

    def on_state_reported(self, member: Member, report: reports.StateReported) -> None:
        """Handle the end of a member's report on what it has, after it was disconnected or the controller restarted."""
        job = self.job
        if job.phase == "taking_over" and report.has > job.era:
            job.era, self._outdated = report.has, True
        current = report.has == job.era
        member.reported, member.version = True, report.version if current else 0
        member.ready = member.begun = current and report.training
        if job.terms.sync:
            job.progress = max(job.progress, member.version)
        if job.phase != "training":
            return
        if member.ready:
            self.requests.arrived(member.name)
        if member.role == "worker":
            self._include(member)
            self.shards.deal()
            self.checkpoints.end_when_done()
        elif not current:
            self._bring_up_to_date(member)

    def on_transferring(self, report: reports.Transferring) -> None:
        """Note a block that is being transferred to a live server, which will report its arrival."""
        if report.owner in self.job.members:
            self.job.claimed.add(report.block)

    def on_unconfirmed(self, member: Member, report: reports.TransferUnconfirmed) -> None:
        """Settle an unconfirmed transfer; during a takeover later, since another server may report the block."""
        if self.job.phase == "taking_over":
            self._unsettled.append((member.name, report))
        else:
            self.ownership.on_unconfirmed(member, report)

    # --- training goes on

    def resume(self) -> None:
        """Resume training once all members have reported: workers have not paused, unless blocks were lost."""
        job = self.job
        job.phase = "training"
        behind = [m for m in job.of("server") if not m.ready]
        self.replication.forget_dead(alive=[m.name for m in job.of("server") if m.ready])
        absent = set(job.owner.values()) - (set(job.members) - {m.name for m in behind})
        if (
            self._is_lost(absent)
            or (absent and self.replication.promote(absent) is None)
            or (job.terms.sync and not job.n_begun())
        ):
            self.eras.go_back()
            return
        for server in behind:
            self._bring_up_to_date(server)
        self.checkpoints.order_last()
        for worker in job.of("worker"):
            self._include(worker)
        self._settle()
        self.shards.deal()
        self.replication.order(self.replication.pending)
        self.scaler.place_replicas()
        self.out.note("resumed", era=job.era, version=job.progress)

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        for name, report in unsettled:
            if name in self.job.members:
                self.ownership.on_unconfirmed(self.job.members[name], report)

    def _is_lost(self, absent: Collection[str]) -> bool:
        """Return whether the state is too old, or a present server owns a block that no server has reported."""
        claimed = self.job.claimed | {report.block for _, report in self._unsettled}
        owner = self.job.owner
        return self._outdated or any(b not in claimed for b, name in owner.items() if name not in absent)

    def _include(self, worker: Member) -> None:
        """Send the block owners to a worker that was disconnected; start it anew if it lacks this era's parameters."""
        job = self.job
        if not worker.ready:
            self.eras.begin_worker(worker.name, job.progress + MARGIN, (0, 0))
            return
        self.out.tell(worker.name, SetOwners(job.era, job.owned_blocks()))
        self.leases.tell_worker(worker.name)
        self.replication.tell_workers(to=worker.name)
        scaling = self.requests.current
        if self.barrier.pause is None and (scaling is None or scaling.strategy == "handover"):
            self.out.tell(worker.name, Resume())

    def _bring_up_to_date(self, server: Member) -> None:
        """Begin the current era on a server that missed it; the blocks that it should have of that era are lost."""
        if server.name in self.job.owner.values():
            self.eras.go_back()
        else:
            self.out.tell(server.name, BeginEra(self.job.era))


def _saved(member: Member) -> SavedMember:
    return SavedMember(member.name, member.role, member.address, member.leaving, member.site, member.ever_joined)


@dataclass(slots=True, eq=False)
class BlockOwnership:
    """Keeps the block owners as servers report them, and settles blocks whose transfer failed."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    member_loss: MemberLoss
    eras: EraStart

    def on_owns(self, member: Member, report: reports.OwnsBlock) -> None:
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

    def on_handed_over(self, member: Member, report: reports.HandedOver) -> None:
        """Enter the new owner of a block, before it reports itself; if it has died since, the block may be lost."""
        job = self.job
        self.out.note("moved", **{"from": member.name, **reports.columns_of(report)})
        block, owner, moves = report.block, report.owner, report.moves
        if moves <= job.moves.get(block, -1):
            return
        job.owner[block], job.moves[block] = owner, moves
        if owner not in job.members and job.phase == "training" and self.replication.promote({owner}) is None:
            self.eras.go_back()

    def on_replica(self, member: Member, report: reports.HasReplica) -> None:
        """Handle the report that a server has a complete replica of a block."""
        self.replication.on_complete(member, report)
        self.requests.arrived(("follows", report.block, member.name))

    def on_lacks(self, member: Member, report: reports.LacksReplicas) -> None:
        """Go back to a checkpoint if a promoted server has no replica of a block."""
        if self.job.phase == "training" and any(self.job.owner[b] == member.name for b in report.blocks):
            self.eras.go_back()

    def on_unconfirmed(self, member: Member, report: reports.TransferUnconfirmed) -> None:
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

    def on_version_lost(self, report: reports.VersionLost) -> None:
        """Go back to a checkpoint: a worker or server has parameters of a version that was lost with a server."""
        if self.job.phase == "training":
            self.out.note("amiss", block=report.block, version=report.version)
            self.eras.go_back()

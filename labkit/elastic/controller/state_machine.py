"""The controller as a state machine: events in, commands out; it has no socket, clock, process or thread.

It is off the path of a step: workers and servers go on without it, and report to the next controller what they have.

The parts share `ControllerState` and `CommandBuffer`. A part is constructed with the parts that it calls, so that calls
go in one direction, from the last in this list to the first: `ScalingQueue`, `JobOutcome`, `Replication`,
`ShardAssignment`, `WorkerBarrier`, `DataLeases`, `CheckpointSchedule`, `Scaler`, `EraStart`, `MemberLoss`; then
`HostLoss`, `BlockOwnership`, `Joining` and `Takeover`; then `ReportHandlers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule, WorkerBarrier
from labkit.elastic.controller.controller_state import (
    Command,
    CommandBuffer,
    ControllerState,
    JobTerms,
    Keep,
    Member,
    Reassign,
    SavedMachine,
    Tell,
    checked_strategy,
)
from labkit.elastic.controller.data_assignment import DataLeases, ShardAssignment
from labkit.elastic.controller.membership import EraStart, HostLoss, Joining, MemberLoss
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue, ScalingRequest
from labkit.elastic.controller.takeover import BlockOwnership, Takeover
from labkit.elastic.process.causes import cause_named
from labkit.elastic.protocol.messages import reports
from labkit.elastic.protocol.messages.orders import Stop
from labkit.elastic.protocol.sites import first_members
from labkit.elastic.shards import Journal, Record, SavedShards


class Controller:
    """Decides all that happens to the members, blocks and checkpoints of a job.

    Every method handles one event and returns the commands that follow from it, in their order. `reassign`: see
    `Reassign`; with no owners at all it makes the first assignment. `journal`: takes each record of the shard service
    before it has any effect (asynchronous training).
    """

    def __init__(self, terms: JobTerms, *, reassign: Reassign, journal: Journal | None = None) -> None:
        self.job = job = ControllerState(terms)
        self._out = out = CommandBuffer(job)
        self.requests = requests = ScalingQueue(job, out)
        self._outcome = outcome = JobOutcome(job, out, requests)
        self.replication = replication = Replication(job, out)
        self._shards = shards = ShardAssignment(job, out)
        self._barrier = barrier = WorkerBarrier(job, out)
        self._leases = leases = DataLeases(job, out, outcome, journal=journal)
        # checkpoints that are being saved, and that are safe
        self.checkpoints = checkpoints = CheckpointSchedule(job, out, requests, barrier, leases, outcome)
        self._scaler = scaler = Scaler(job, out, requests, replication, barrier, checkpoints, shards, outcome, reassign)
        self._eras = eras = EraStart(
            job, out, requests, scaler, replication, barrier, checkpoints, shards, leases, reassign
        )
        self._member_loss = loss = MemberLoss(
            job, out, requests, scaler, replication, shards, barrier, checkpoints, leases, eras, outcome
        )
        self._host_loss = HostLoss(job, out, requests, replication, barrier, loss, eras, outcome)
        self._ownership = ownership = BlockOwnership(job, out, requests, scaler, replication, loss, eras)
        self._joining = Joining(job, out, requests, scaler, replication, checkpoints, loss, eras)
        self._takeover = takeover = Takeover(
            job, out, requests, scaler, replication, barrier, checkpoints, shards, leases, ownership, loss, eras,
            outcome,
        )  # fmt: skip
        self._reports = ReportHandlers(
            job, out, requests, barrier, checkpoints, shards, leases, scaler, eras, loss, ownership, takeover, outcome
        )

    # --- the beginning, of the job or of this controller

    def start(
        self, *, servers: int = 0, workers: int = 0, place: Mapping[str, Sequence[int]] | None = None
    ) -> list[Command]:
        """Start so many servers and workers, or those of a placement.

        Raise InputError if a role has no member, there are more servers than blocks, or a site is unknown. `servers`
        and `workers`: on the first site. `place`: workers and servers by site, instead of `servers` and `workers`.
        """
        terms = self.job.terms
        if place is None:
            place = {next(iter(terms.sites)): (workers, servers)}
        for role, site in first_members(place, sites=terms.sites, n_blocks=len(terms.sizes)):
            self._out.launch(role, site)
        return self._out.take()

    def state(self) -> SavedMachine:
        """Return the state for a controller that takes over; members report the progress themselves."""
        return self._takeover.state()

    def take_over(
        self,
        state: SavedMachine,
        *,
        names: Iterable[str] = (),  # names that processes have had, which no new member may get
        records: Iterable[Record] = (),  # journal of the shard service
        # versions whose losses are among the events: workers report those of the latest updates once more
        heard: Collection[int] = (),
        now_s: float = 0.0,
    ) -> list[Command]:
        """Take over from a controller that died: members connect again and report what they have.

        A scaling that was under way is given up: blocks that have moved stay where they are, new members stay. A
        request for a placement begins anew, since it means the same as before. The state may be old, if the last one
        could not be written: then training goes back to a checkpoint.
        """
        self._takeover.restore(state, names=names, records=records, heard=heard, now_s=now_s)
        return self._out.take()

    # --- members

    def joined(self, name: str, *, address: str = "") -> list[Command]:
        """Handle the connection of a process; one that is unknown is told to stop."""
        member = self.job.members.get(name)
        if member is None:
            return [Tell(name, Stop())]
        if not member.joined:
            self._joining.on_joined(member, address)
        elif member.leaving:
            self._out.note("rejoined", name=name, role=member.role)
            self._out.end(name)
            return self._out.take()
        else:
            self._joining.on_rejoined(member)
        return self._proceed()

    def left(
        self,
        name: str,
        *,
        reason: str = "",
        by_itself: bool = False,
        cause: Cause = Cause.UNKNOWN,
        code: int | None = None,
    ) -> list[Command]:
        """Handle the end of a process; `by_itself`: it ended with an error, and was not killed."""
        if name not in self.job.members:
            return self._out.take()
        self._member_loss.on_left(name, reason=reason, by_itself=by_itself, cause=cause, code=code)
        return self._proceed()

    def unable(self, name: str, *, why: str) -> list[Command]:
        """Handle the failure of a new member to start: the request that it was started for is dropped."""
        if name not in self.job.members:
            return self._out.take()
        self._member_loss.unable(name, why)
        return self._proceed()

    def reported(self, name: str, report: reports.Report) -> list[Command]:
        """Handle a report of a member; one of an earlier era has no effect."""
        member = self.job.members.get(name)
        if member is not None and report.era in (None, self.job.era):
            self._reports.handle(member, report)
            self._member_loss.deaths.reached(self.job.progress)
            self._member_loss.shortages.reached(self.job.progress)
        return self._proceed()

    # --- hosts

    def host_lost(self, host: str, *, why: str = "") -> list[Command]:
        """Handle the loss of a host and its members; if all of them were leaving, it does not count as lost."""
        self._host_loss.on_lost(host, why)
        return self._proceed()

    def host_back(self, host: str) -> list[Command]:
        """Handle the return of a host; its former members have ended."""
        self._host_loss.on_back(host)
        return self._out.take()

    # --- requests

    def scale(
        self,
        *,
        servers: int = 0,
        workers: int = 0,
        replace: Sequence[str] = (),
        # workers and servers of each site, instead; sites that it does not name are to have none
        place: Mapping[str, Sequence[int]] | None = None,
        strategy: str,  # one of `STRATEGIES`
    ) -> list[Command]:
        """Queue a request to add, remove or replace members, or for a placement.

        Raise InputError if a role would have no member, there would be more servers than blocks, or a site is unknown
        or lost; nothing has changed then. `servers` and `workers`: how many more; below 0: fewer.
        """
        self.requests.scale(ScalingRequest(servers, workers, tuple(replace), checked_strategy(strategy)), place)
        return self._proceed()

    def balance(self, *, strategy: str) -> list[Command]:
        """Queue a request to move blocks so that the present servers receive equal gradient traffic.

        Raise InputError if there is no such strategy, or none by which blocks alone can move.
        """
        chosen = checked_strategy(strategy)
        if chosen == "checkpoint":
            raise InputError(
                "strategy 'checkpoint' to balance servers; expected handover or suspend: no process restarts."
            )
        self.requests.add(ScalingRequest(strategy=chosen, by_load=True))
        return self._proceed()

    def stop(self, *, save: bool = False) -> list[Command]:
        """End the job before its last step; `save`: after a checkpoint, from which it can go on later."""
        if not save or self.job.phase not in ("training", "taking_over"):
            return self.give_up("")
        self.requests.add(ScalingRequest(strategy="checkpoint", last=True), first=True)
        return self._proceed()

    def give_up(self, why: str) -> list[Command]:
        """End the job because it cannot go on."""
        self._outcome.end(why)
        return self._out.take()

    def forgive_shortages(self) -> None:
        """Note that members may have more memory than those that ran out of it: earlier shortages no longer count."""
        self._member_loss.shortages.forgive()

    # --- checkpoints

    def loaded(self, version: int, *, queue: SavedShards | None = None) -> list[Command]:
        """Handle the arrival of all blocks of a checkpoint at their owners; `queue`: its state of the shard service."""
        self._eras.on_loaded(version, queue)
        return self._proceed() if self.job.phase == "training" else self._out.take()

    def unloaded(self) -> list[Command]:
        """Handle the damage of a checkpoint while its blocks are sent to servers: these get those of another one."""
        self._eras.go_back()
        return self._proceed()

    def copied(self, version: int) -> list[Command]:
        """Handle that all blocks were copied at a version: the copies are written to disk."""
        if self._leases.active and version != self.checkpoints.saving:
            return self._out.take()
        self._out.add(Keep(version, self._leases.state()))
        scaling = self.requests.current
        if self._barrier.pause is not None and (scaling is None or scaling.phase != "saving"):
            self._barrier.release()
        return self._proceed()

    def saved_at(self, version: int) -> list[Command]:
        """Handle the completion of a checkpoint on disk."""
        self.checkpoints.complete(version)
        self.requests.arrived(("saved", version))
        self.checkpoints.end_when_done()
        if self._leases.active and self.requests.current is None:
            self.checkpoints.save_when_due()
        return self._proceed()

    def unsaved(self, version: int, why: str) -> list[Command]:
        """Handle the failure to write a checkpoint: training goes on and tries again later, unless it was the last."""
        self.checkpoints.failed(version, why)
        if version == self.job.terms.n_steps:
            self._outcome.end(f"the last state could not be saved: {why}")
        else:
            self._scaler.save_failed(version, why)
        return self._proceed()

    def copies_lost(self, version: int, why: str) -> list[Command]:
        """Handle the loss of copies before they were written: blocks are copied again, if none has changed since.

        In synchronous training servers with blocks that are past the version report that it is too late. In
        asynchronous training they cannot tell, so a later checkpoint is saved unless all workers stand still.
        """
        if self.job.phase != "training":
            return self._out.take()  # another checkpoint is loaded, or the copies are ordered when training goes on
        if not self._leases.active or self._leases.done or self._barrier.pause is not None:
            self.checkpoints.copy_again(version)
        elif version == self.checkpoints.saving:
            self.checkpoints.failed(version, why)
            self._scaler.save_later(version)
        return self._proceed()

    # --- time

    def tick(self, alive: Iterable[str], *, now_s: float) -> list[Command]:
        """Renew the leases of live workers, take back expired ones, and give up a pause that takes too long."""
        self.job.now_s = now_s
        if self._leases.active:
            self._leases.tick(alive, now_s=now_s)
            self.checkpoints.give_up_pause(now_s)
        return self._out.take()

    def _proceed(self) -> list[Command]:
        """Do what the event has made possible, and return all commands."""
        job = self.job
        members = job.members.values()
        if job.phase in ("starting", "restoring") and all(m.joined and not m.leaving for m in members):
            self._eras.load()
        elif job.phase == "taking_over" and all(m.reported for m in members if m.ever_joined and not m.leaving):
            self._takeover.resume()
        if job.phase == "training":
            self._scaler.proceed()
        return self._out.take()


@dataclass(slots=True, eq=False)
class ReportHandlers:
    """Handles reports, or passes them on; mypy names a report that lacks a case."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    leases: DataLeases
    scaler: Scaler
    eras: EraStart
    member_loss: MemberLoss
    ownership: BlockOwnership
    takeover: Takeover
    outcome: JobOutcome

    def handle(self, member: Member, report: reports.Report) -> None:
        """Pass a report to the part of the controller that it concerns."""
        if isinstance(report, reports.WorkerReport):
            self._handle_training(member, report)
        elif isinstance(report, reports.BlockReport):
            self._handle_blocks(member, report)
        else:
            self._handle_process(member, report)

    def _handle_training(self, member: Member, report: reports.WorkerReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case reports.TrainingBegun():
                self._on_training_started(member, report)
            case reports.FellBehind():
                self._on_behind(member)
            case reports.StepDone():
                self._on_step(member, report)
            case reports.UpdateDone():
                self._on_update(member, report)
            case reports.TrainingDone():
                self._on_done(member, report)
            case reports.Paused():
                self._on_paused(member, report)
            case reports.Resumed():
                self._on_resumed(member, report)
            case reports.WantsLease():
                self.leases.on_wants(member)
            case reports.ShardLosses() | reports.NotFinite():
                pass  # only events of the job
            case _:
                assert_never(report)

    def _handle_blocks(self, member: Member, report: reports.BlockReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case reports.OwnsBlock():
                self.ownership.on_owns(member, report)
            case reports.HandedOver():
                self.ownership.on_handed_over(member, report)
            case reports.TransferUnconfirmed():
                self.takeover.on_unconfirmed(member, report)
            case reports.Transferring():
                self.takeover.on_transferring(report)
            case reports.HasReplica():
                self.ownership.on_replica(member, report)
            case reports.ReplicaFailed():
                self.member_loss.on_replica_failed(report)
            case reports.LacksReplicas():
                self.ownership.on_lacks(member, report)
            case reports.BlockCopied():
                pass  # `CheckpointKeeper` counts them
            case reports.CopyLate():
                self._on_late(report)
            case reports.VersionLost():
                self.ownership.on_version_lost(report)
            case reports.BlockLoads():
                self.scaler.on_loads(member, report)
            case reports.GradientsReceived():
                pass  # only an event of the job
            case _:
                assert_never(report)

    def _handle_process(self, member: Member, report: reports.ProcessReport) -> None:  # noqa: C901 - a case for each report
        match report:
            case reports.StateReported():
                self.takeover.on_state_reported(member, report)
            case reports.Connected():
                self.requests.arrived(("met", member.name, report.server))
            case reports.ConnectFailed():
                self.member_loss.on_connect_failed(member, report)
            case reports.Stuck():
                self.member_loss.on_stuck(member, report)
            case reports.Raised():
                self.member_loss.on_raised(member, report)
            case reports.OutOfMemory():
                self.member_loss.on_out_of_memory(member, report)
            case reports.Failed():
                self.outcome.end(f"{member.name}: {report.why}", cause=cause_named(report.cause))
            case reports.ConnectionBroken() | reports.PeerRefused() | reports.LimitsSet():
                pass  # only events of the job
            case _:
                assert_never(report)

    def _on_late(self, report: reports.CopyLate) -> None:
        """Handle the report that the order to copy came after the version that it named."""
        if self.checkpoints.saving == report.version:
            self.checkpoints.saving = None
            self.scaler.save_later(report.version)

    # --- steps of the workers

    def _on_training_started(self, member: Member, report: reports.TrainingBegun) -> None:
        member.ready = member.begun = True
        self.barrier.overdue.discard(member.name)
        member.version = report.version
        if self.requests.awaits(member.name):
            self.requests.arrived(member.name)
        elif self.job.phase == "training" and self.job.n_ready() > 1 and member.version > 0:  # it joined later
            self.shards.deal()

    def _on_behind(self, member: Member) -> None:
        """Deal the logical shards of a worker that lacks the parameters of the step to the others."""
        member.ready = member.begun = False
        if self.job.phase == "training" and self.job.n_begun():
            self.shards.deal()
            self.checkpoints.end_when_done()  # the others may have completed the last step
        elif self.job.phase == "training":
            self.eras.go_back()

    def _on_update(self, member: Member, report: reports.UpdateDone) -> None:
        self.barrier.on_step(member.name, report.compute_s + report.wait_s)
        self.leases.on_update(member, report)
        self.checkpoints.save_when_due()

    def _on_step(self, member: Member, report: reports.StepDone) -> None:
        """Handle the report that a synchronous worker has completed a step of the job."""
        member.version = report.version + 1
        self.job.progress = max(self.job.progress, member.version)
        may_deal = self.job.phase == "training" and self.requests.current is None
        self.shards.measured(member, report, may_deal=may_deal)
        self.checkpoints.on_step()

    def _on_done(self, member: Member, report: reports.TrainingDone) -> None:
        member.version = report.version
        self.checkpoints.end_when_done()

    def _on_paused(self, member: Member, report: reports.Paused) -> None:
        self.barrier.on_paused(member.name, report.number)

    def _on_resumed(self, member: Member, report: reports.Resumed) -> None:
        """Record how long a worker has paused."""
        self.out.note("suspended", name=member.name, seconds=report.seconds)

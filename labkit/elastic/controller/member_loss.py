"""The loss of members: what replaces a process that died or is unreachable, and when the job is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.core.events import Cause
from labkit.elastic.controller.barrier import WorkerBarrier
from labkit.elastic.controller.checkpoint_schedule import CheckpointSchedule
from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member, leave_columns
from labkit.elastic.controller.data_leases import DataLeases
from labkit.elastic.controller.deaths import Deaths, shortages
from labkit.elastic.controller.era_start import EraStart
from labkit.elastic.controller.outcome import JobOutcome
from labkit.elastic.controller.replication import Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import ScalingQueue
from labkit.elastic.controller.shard_assignment import ShardAssignment
from labkit.elastic.protocol.messages.orders import SetOwners
from labkit.elastic.protocol.messages.reports import ConnectFailed, OutOfMemory, Raised, ReplicaFailed, Stuck


@dataclass(slots=True, eq=False)
class MemberLoss:
    """Handles the end of members, ordered or not, and ends those that the job must do without.

    Parameters
    ----------
    job : ControllerState
        With the members.
    out : CommandBuffer
        For all commands.
    requests, scaler, replication, shards, barrier, checkpoints, leases, eras, outcome
        Parts of the controller that a loss concerns.

    Attributes
    ----------
    deaths : Deaths
        Processes that died of late.
    shortages : Deaths
        Processes that ran out of memory of late, which do not count as deaths.
    """

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    shards: ShardAssignment
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    leases: DataLeases
    eras: EraStart
    outcome: JobOutcome
    deaths: Deaths = field(init=False)
    shortages: Deaths = field(init=False)
    _stuck: set[tuple[int, int]] = field(default_factory=set)
    """Places in the training at which a worker was stuck."""
    _raised: set[tuple[tuple[int, int], str]] = field(default_factory=set)
    """Places, and errors that were raised there."""

    def __post_init__(self) -> None:
        terms = self.job.terms
        self.deaths = Deaths(restarts=terms.restarts, within_s=terms.restarts_within_s)
        self.shortages = shortages(terms.restarts_within_s)

    # --- the end of a process

    def on_left(self, name: str, *, reason: str, by_itself: bool, cause: Cause, code: int | None) -> None:
        """Handle the end of a process; see `Controller.left`."""
        job = self.job
        member = job.members.pop(name, None)
        if member is None:
            return
        expected = member.leaving or job.phase == "over"
        self.forget(name, died=not expected)
        self.out.note("left", **leave_columns(member, expected=expected, reason=reason, cause=cause, code=code))
        if by_itself and not member.joined and job.phase == "starting":  # the next process would end in the same way
            self.outcome.end(f"{name} ended before it had begun, {reason}", cause=cause)
        elif not expected:
            self._on_death(member, reason, cause=cause)
        elif member.role == "server":
            self.replication.forget_dead()
        self.requests.forget(member)
        self.tell_owners([member])

    def tell_owners(self, gone: Sequence[Member]) -> None:
        """Tell the workers the block owners if servers are gone: what these sent last may be lost."""
        if self.job.phase == "training" and any(member.role == "server" for member in gone):
            self.out.tell_workers(SetOwners(self.job.era, self.job.owned_blocks()))

    def forget(self, name: str, *, died: bool = False) -> None:
        """Remove what is known of a process that is gone, and take back its leases; see `DataLeases.forget`."""
        self.barrier.forget(name)
        self.leases.forget(name, died=died)

    def cut_off(self, name: str, why: str, *, cause: Cause = Cause.UNREACHABLE) -> None:
        """Kill a member that cannot be reached, or cannot reach others, and go on without it."""
        self.out.end(name, kill=True)
        member = self.job.members.pop(name)
        self.forget(name)
        reason = why if cause == Cause.OUT_OF_MEMORY else f"cut off: {why}"
        self.out.note("left", **leave_columns(member, expected=False, reason=reason, cause=cause))
        self._on_death(member, why, cause=cause)
        self.tell_owners([member])

    def _on_death(self, member: Member, why: str, *, cause: Cause) -> None:
        job = self.job
        if job.phase == "over":
            return
        deaths = self.shortages if cause == Cause.OUT_OF_MEMORY else self.deaths
        too_many = deaths.note(f"{member.name} ({why})", now_s=job.now_s, joined=member.ever_joined)
        if too_many:
            self.outcome.end(too_many, cause=cause)
            return
        scaling = self.requests.current
        leaving = scaling is not None and member.name in scaling.going
        self.requests.forget(member)
        if member.role == "worker":
            self.out.launch("worker", member.site)
            self.on_workers_dead()
        elif scaling is not None and self._is_stranded(member):
            self.scaler.drop_stranded(f"{member.name} died: {why}")
        else:
            self._on_server_dead(member, leaving=leaving)

    def _is_stranded(self, dead: Member) -> bool:
        """Tell whether all servers that remain are to leave, and the dead one had no blocks."""
        going = [] if self.requests.current is None else self.requests.current.going
        lost_nothing = self.job.phase == "training" and dead.name not in self.job.owner.values()
        return lost_nothing and all(m.name in going for m in self.job.of("server"))

    def _on_server_dead(self, member: Member, *, leaving: bool) -> None:
        job, owned = self.job, member.name in self.job.owner.values()
        if job.terms.standby and job.phase in ("training", "taking_over"):
            self.survive({member.name}, repair=() if leaving else (member.site,))
        elif job.phase == "training" and not owned:
            if not leaving:
                self.requests.repair((member.site,))  # the new server gets a share of the blocks
        else:
            self.out.launch("server", member.site)
            if job.phase in ("training", "loading") and owned:
                self.eras.go_back()

    def survive(self, gone: set[str], *, repair: tuple[str, ...]) -> None:
        """Go on with the replicas of dead servers' blocks, or go back to a checkpoint; see `Scaler.survive`."""
        if not self.scaler.survive(gone, repair=repair):
            self.eras.go_back()
        elif self.job.phase == "training":
            self.checkpoints.order_last()
            self.checkpoints.save_again()

    def on_workers_dead(self) -> None:
        """Deal the logical shards of dead workers to others; without any, go back to a checkpoint."""
        job = self.job
        if job.phase == "training" and (job.n_begun() or not job.terms.sync):
            self.shards.deal()
        elif job.phase == "training":
            self.eras.go_back()  # the parameters of the step died with the workers
        self.checkpoints.end_when_done()

    # --- members that cannot do their part

    def unable(self, name: str, why: str) -> None:
        """Handle the failure of a new member to start; see `Controller.unable`."""
        member = self.job.members.get(name)
        if member is not None:
            member.joined = True
            self.out.note("unable", name=name, why=why)
            self._do_without(member, f"{name} {why}")

    def _do_without(self, newcomer: Member, why: str) -> None:
        """Drop the request that a new member was started for; a job that has just begun ends; else replace it."""
        job, scaling = self.job, self.requests.current
        if job.phase == "over":
            return
        if scaling is not None and scaling.phase == "registration" and newcomer.name in scaling.new:
            self.requests.drop(why)
        elif job.phase == "starting" or job.is_new():
            self.outcome.end(why)
        else:
            self.cut_off(newcomer.name, why)

    def on_connect_failed(self, member: Member, report: ConnectFailed) -> None:
        """Go on without the newer of two members that cannot reach each other, unless one of them leaves anyway."""
        other = self.job.members.get(report.server)
        if other is None or other.leaving or member.leaving:
            return
        newer = max(member, other, key=list(self.job.members.values()).index)
        self._do_without(newer, f"{member.name} cannot reach {other.name}: {report.why}")

    def on_replica_failed(self, report: ReplicaFailed) -> None:
        """End a server that an owner could not send a replica to: workers would wait for it."""
        name, pending = report.follower, self.replication.pending.get(report.block)
        if pending == (name, report.turn) and name in self.job.members:
            self.cut_off(name, report.why)

    def on_stuck(self, member: Member, report: Stuck) -> None:
        """Replace a worker that makes no progress; at the same place twice, end the job: another would not help."""
        if report.place in self._stuck:
            self.outcome.end(f"{member.name}: {report.why}.", cause=Cause.STALLED)
            return
        self._stuck.add(report.place)
        self.cut_off(member.name, report.why, cause=Cause.STALLED)

    def on_raised(self, member: Member, report: Raised) -> None:
        """Replace a worker whose program raised an error; the same error at the same place again ends the job."""
        key = report.place, report.why
        if member.leaving:
            return
        if key in self._raised:
            self.outcome.end(f"{member.name}: {report.why} It is the second time", cause=Cause.ERROR)
            return
        self._raised.add(key)
        self.cut_off(member.name, report.why, cause=Cause.ERROR)

    def on_out_of_memory(self, member: Member, report: OutOfMemory) -> None:
        """Replace a server that reports that it ran out of memory, before its process ends."""
        self.cut_off(member.name, report.why, cause=Cause.OUT_OF_MEMORY)

"""Members that join and that are lost, with their hosts, and the era that begins after a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.core.events import Cause
from labkit.elastic.controller.block_assignment import by_tensor
from labkit.elastic.controller.checkpoint_schedule import MARGIN, CheckpointSchedule, WorkerBarrier
from labkit.elastic.controller.controller_state import (
    CommandBuffer,
    ControllerState,
    Deaths,
    Load,
    Member,
    Reassign,
    leave_columns,
    shortages,
)
from labkit.elastic.controller.data_assignment import DataLeases, ShardAssignment
from labkit.elastic.controller.replication import LEAST_SERVERS, Replication
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue, ScalingRequest
from labkit.elastic.protocol.messages.orders import BeginEra, BeginTraining, ConnectTo, Halt, ReportState, SetOwners
from labkit.elastic.protocol.messages.reports import ConnectFailed, OutOfMemory, Raised, ReplicaFailed, Stuck
from labkit.elastic.protocol.messages.struct import Role
from labkit.elastic.protocol.sites import ROLES
from labkit.elastic.shards import SavedShards


@dataclass(slots=True, eq=False)
class EraStart:
    """Loads the blocks of a checkpoint into servers, and starts the workers; goes back to a checkpoint."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    scaler: Scaler
    replication: Replication
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    leases: DataLeases
    reassign: Reassign

    def load(self) -> None:
        """Assign the blocks to the servers, and order to load the newest checkpoint: at first, the initial state."""
        job = self.job
        missing = [role for role in ROLES if not job.of(role)]
        if missing:  # members that were to stay have died, or were dropped
            for role in missing:
                self.out.launch(role, job.site_for(role))
            return
        job.era += 1
        job.phase = "loading"
        servers = job.limited_to_blocks(m.name for m in job.of("server"))
        job.owner = self._first_owners(servers)
        job.moves = dict.fromkeys(job.owner, 0)
        self.replication.clear()
        for server in servers:
            self.out.tell(server, BeginEra(job.era))
        self.out.add(Load(job.era, dict(job.owner)))

    def _first_owners(self, servers: Sequence[str]) -> dict[int, str]:
        """Return the server of each block: by measured load if there is one, by whole parameters, or by bytes."""
        terms, load = self.job.terms, self.job.load
        if load is None and terms.tensors:
            return dict(enumerate(servers[s] for s in by_tensor(terms.sizes, terms.tensors, len(servers))))
        return self.reassign({}, terms.sizes, servers, load=load)

    def on_loaded(self, version: int, queue: SavedShards | None) -> None:
        """Begin training: all blocks of a checkpoint are with their owners.

        `queue`: what it has kept of the leases of samples.
        """
        job = self.job
        if not any(m.joined for m in job.of("worker")):
            job.phase = "restoring"  # all workers died meanwhile: wait for new ones
            return
        job.phase, job.progress, self.checkpoints.saving = "training", version, None
        self.leases.open(queue)
        self.checkpoints.order_last()
        for name, leaves in self.shards.ranges().items():
            self.begin_worker(name, version, leaves)
            job.members[name].begun = True
        self.out.note("began", era=job.era, version=version)
        self.scaler.place_replicas()
        self.scaler.on_loaded()

    def begin_worker(self, name: str, version: int, leaves: tuple[int, int]) -> None:
        """Order a worker to fetch the parameters of a version and to compute logical shards [first, last)."""
        owners, replicas = self.job.owned_blocks(), self.replication.rows()
        self.out.tell(name, BeginTraining(self.job.era, version, leaves, self.barrier.number, owners, replicas))

    def go_back(self) -> None:
        """Give up all updates since the last checkpoint: a block, or the parameters of all workers, are lost."""
        job = self.job
        job.phase = "restoring"
        job.era += 1
        self.out.note("goes_back", era=job.era)
        repairs = self.requests.roll_back()
        self.checkpoints.saving = self.barrier.pause = None
        for site in repairs:
            self.out.launch("server", job.site_for("server", preferred=site))
        for worker in job.of("worker"):
            worker.ready = worker.begun = False
        self.out.tell_workers(Halt(job.era))
        for name in [m.name for m in job.members.values() if m.role == "worker" and m.leaving]:
            self.out.end(name)  # it was to complete its step first, which is given up


@dataclass(slots=True, eq=False)
class Joining:
    """Introduces members that connect to the others, and repeats what reconnected members may have missed."""

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
        """Connect a new member and the servers, before anything depends on it."""
        for other in self.job.members.values():
            if other is not member and other.joined:
                if member.role == "server":
                    self.out.tell(other.name, ConnectTo(member.name, member.address))
                if other.role == "server":
                    self.out.tell(member.name, ConnectTo(other.name, other.address))

    def _await_connections(self, member: Member) -> None:
        """Hold the current request until a new server is connected to all other members, in both directions."""
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


@dataclass(slots=True, eq=False)
class MemberLoss:
    """Handles the end of members, ordered or not, and ends those that the job must do without."""

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
    """Processes that died of late."""
    shortages: Deaths = field(init=False)
    """Processes that ran out of memory of late, which do not count as deaths."""
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

    def tell_owners(self, lost: Sequence[Member]) -> None:
        """Send the block owners to workers after servers are lost: their last messages may be lost, too."""
        if self.job.phase == "training" and any(member.role == "server" for member in lost):
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
        """Return whether all servers that remain are to leave, and the dead one had no blocks."""
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

    def survive(self, lost: set[str], *, repair: tuple[str, ...]) -> None:
        """Go on with the replicas of dead servers' blocks, or go back to a checkpoint; see `Scaler.survive`."""
        if not self.scaler.survive(lost, repair=repair):
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


@dataclass(slots=True, eq=False)
class HostLoss:
    """Handles the loss of a host, and its return."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    replication: Replication
    barrier: WorkerBarrier
    member_loss: MemberLoss
    eras: EraStart
    outcome: JobOutcome

    def on_back(self, host: str) -> None:
        """Note that a host is back; its former members have ended."""
        if host in self.job.lost:
            self.job.lost.discard(host)
            self.out.note("host_back", host=host)

    def on_lost(self, host: str, why: str) -> None:
        """Drop the members of a lost host, fail scalings that need it, restart what the job cannot do without."""
        job = self.job
        lost = [m for m in job.members.values() if job.terms.sites[m.site] == host]
        unexpected = [m for m in lost if not m.leaving]
        if unexpected:
            job.lost.add(host)
            self.out.note("lost_host", host=host, members=[m.name for m in lost], why=why)
        for member in lost:
            self._remove(member, host)
        if unexpected and job.phase != "over":
            self._drop_requests(host)
            self._replace(unexpected, host)
        if job.phase != "over":
            self.replication.forget_dead()
        self.member_loss.tell_owners(lost)

    def _remove(self, member: Member, host: str) -> None:
        del self.job.members[member.name]
        self.member_loss.forget(member.name)
        if member.leaving:
            self.requests.forget(member)
        expected = member.leaving or self.job.phase == "over"
        reason = f"host {host} is lost"
        self.out.note("left", **leave_columns(member, expected=expected, reason=reason, cause=Cause.HOST_LOST))

    def _drop_requests(self, host: str) -> None:
        """Drop requests that need the host; repairs that wait will start their servers on other hosts."""
        why = f"host {host} is lost"
        for request in [request for request in self.requests.waiting if self._needs(request, host)]:
            self.requests.drop_waiting(request, why)
        now = self.requests.current
        if now is None:
            return
        alive = [name for name in now.new if name in self.job.members]
        short, now.new = len(alive) < len(now.new), alive
        if now.phase in ("asked", "registration", "saving") and (short or self._needs(now, host)):
            if now.phase == "saving":
                self.barrier.release()
            self.requests.drop(why)

    def _needs(self, request: ScalingRequest, host: str) -> bool:
        place = {} if request.place is None else request.place
        return any(any(n) and self.job.terms.sites[site] == host for site, n in place.items())

    def _replace(self, lost: Sequence[Member], host: str) -> None:
        """Go on without members that died together, which counts as one death, and start what is missing."""
        job = self.job
        joined = any(member.ever_joined for member in lost)
        too_many = self.member_loss.deaths.note(f"all on host {host}", now_s=job.now_s, joined=joined)
        if too_many:
            self.outcome.end(too_many, cause=Cause.HOST_LOST)
            return
        if not job.members:
            self.outcome.end(f"host {host} is lost, and the job has no member on another host.", cause=Cause.HOST_LOST)
            return
        for member in lost:
            self.requests.forget(member)
        self._keep_a_member_of_each_role()
        self._without_servers({m.name for m in lost if m.role == "server"})
        if any(m.role == "worker" for m in lost):
            self.member_loss.on_workers_dead()
        for role in ROLES:
            self._fill_up(role)

    def _keep_a_member_of_each_role(self) -> None:
        """Cancel planned removals that would leave a role empty."""
        scaling = self.requests.current
        if scaling is None:
            return
        for role in ROLES:
            if not any(m.name not in scaling.going for m in self.job.of(role)):
                scaling.going = [name for name in scaling.going if self.job.members[name].role != role]

    def _without_servers(self, lost: set[str]) -> None:
        if not lost:
            return
        if self.job.terms.standby and self.job.phase in ("training", "taking_over"):
            self.member_loss.survive(lost, repair=())
        elif self.job.phase in ("training", "loading") and lost & set(self.job.owner.values()):
            self.eras.go_back()

    def _fill_up(self, role: Role) -> None:
        """Start as many members of a role as the job cannot do without; its scheduler decides on more."""
        job = self.job
        least = LEAST_SERVERS if role == "server" and job.terms.standby else 1
        sites = [m.site for m in job.members.values() if not m.leaving]
        missing = least - len(job.of(role))
        if missing < 1 or not sites or job.phase == "over":
            return
        if role == "server" and job.phase == "training":
            self.requests.repair(sites[:1] * missing)
            return
        for _ in range(missing):
            self.out.launch(role, sites[0])

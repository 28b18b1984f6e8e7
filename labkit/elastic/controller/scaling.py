"""The steps of a scaling while training goes on: registration, assignment, migration, update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.core.errors import InputError
from labkit.elastic.controller.checkpoint_schedule import MARGIN, CheckpointSchedule, WorkerBarrier
from labkit.elastic.controller.controller_state import CommandBuffer, ControllerState, Member, Reassign
from labkit.elastic.controller.data_assignment import ShardAssignment
from labkit.elastic.controller.replication import LEAST_SERVERS, Replication
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue, ScalingRequest
from labkit.elastic.protocol.messages.orders import BlockMove, FinishStep, HandOver, MeasureLoads, PauseAtVersion
from labkit.elastic.protocol.messages.reports import BlockLoads
from labkit.elastic.protocol.messages.struct import Role
from labkit.elastic.protocol.sites import ROLES, MembershipChange, by_numbers, checked, to_place


@dataclass(slots=True, eq=False)
class Scaler:
    """Carries out the current scaling request, step by step."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    replication: Replication
    barrier: WorkerBarrier
    checkpoints: CheckpointSchedule
    shards: ShardAssignment
    outcome: JobOutcome
    reassign: Reassign
    _loads: dict[int, float] = field(default_factory=dict)
    """Measured load of each block, as far as servers have reported it."""
    _restarting: ScalingRequest | None = None
    """A scaling by checkpoint that is complete once the checkpoint is loaded."""

    def proceed(self) -> None:
        """Do all that is due of the current request; begin the next one if there is none."""
        self.barrier.proceed()
        scaling = self.requests.begin_next()
        if scaling is not None:
            self._advance(scaling)

    def _advance(self, scaling: ScalingRequest) -> None:
        steps = {
            "asked": self._register,
            "registration": self._assign,
            "saving": self._restart,
            "assignment": self._migrate,
            "migration": self._replicate,
            "following": self._finish,
        }
        while self.requests.current is scaling and not scaling.waiting and scaling.phase in steps:
            if self.barrier.pause is not None and scaling.phase in ("asked", "registration"):
                return  # a checkpoint is being copied: blocks must stay where they are
            steps[scaling.phase](scaling)

    def _enter(self, scaling: ScalingRequest, phase: str, **columns: Any) -> None:
        scaling.phase = phase
        self.out.note(phase, scaling=scaling.number, strategy=scaling.strategy, **columns)

    # --- registration

    def _register(self, scaling: ScalingRequest) -> None:
        """Start new members and wait until they are connected; workers also fetch the parameters."""
        job = self.job
        change, sitting = self._change(scaling), job.placements()
        net = {f"{role}s": change.net(role, sitting) for role in ROLES}
        self._enter(scaling, "registration", **net)
        try:
            self._check_change(scaling, change)
        except InputError as error:  # members died or a host was lost since the request came in
            self.requests.drop(str(error))
            return
        if scaling.strategy == "checkpoint":
            self.save_for(scaling)
            return
        scaling.going = change.going
        scaling.new = [self.out.launch(role, site) for role, site in change.starts]
        starting = [m.name for m in job.of("server") if not m.joined]  # started by a controller that died
        scaling.waiting = {*scaling.new, *starting}
        if scaling.by_load:
            self._request_loads(scaling)

    def _change(self, scaling: ScalingRequest) -> MembershipChange:
        """Return which members start at which sites, and which ones leave."""
        job = self.job
        if scaling.place is not None:
            return to_place(scaling.place, job.placements())
        if scaling.repair:
            return MembershipChange([("server", job.site_for("server", preferred=site)) for site in scaling.at], [])
        more: dict[Role, int] = {"server": scaling.servers, "worker": scaling.workers}
        return by_numbers(more, job.placements(), replace=scaling.replace, sites=job.sites())

    def _check_change(self, scaling: ScalingRequest, change: MembershipChange) -> None:
        """Raise InputError if a role would have no member, or a member would start on a host that is lost."""
        job = self.job
        if scaling.place is not None:
            checked(scaling.place, sites=job.terms.sites, lost=job.lost)
        if not scaling.repair:
            sitting = job.placements()
            self.requests.check_numbers({role: len(job.of(role)) + change.net(role, sitting) for role in ROLES})

    def _request_loads(self, scaling: ScalingRequest) -> None:
        self._loads.clear()
        for server in self.job.of("server"):
            if server.joined:
                self.out.tell(server.name, MeasureLoads(scaling.number))
                scaling.waiting.add(("loads", server.name))

    def on_loads(self, member: Member, report: BlockLoads) -> None:
        """Handle a server's report of the gradient traffic of its blocks."""
        scaling = self.requests.current
        if scaling is None or scaling.number != report.number:
            return
        self._loads.update(report.loads)
        if report.last:
            scaling.waiting.discard(("loads", member.name))

    # --- strategy "checkpoint": save, and restart from there

    def save_for(self, scaling: ScalingRequest) -> None:
        """Pause training and save a checkpoint, from which other members begin."""
        if not self.job.terms.sync:
            self._enter(scaling, "saving")
            scaling.waiting = {"still"}
            self.checkpoints.save_paused(lambda: self._save_paused(scaling), needed=True)
            return
        version = self.job.progress + MARGIN
        self._enter(scaling, "saving", version=version)
        if version >= self.job.terms.n_steps:
            self.requests.drop("training is about to end")
            return
        scaling.waiting = {("saved", version)}
        self.out.tell_workers(PauseAtVersion(version))
        self.checkpoints.save(version)

    def _save_paused(self, scaling: ScalingRequest) -> None:
        scaling.waiting = {("saved", self.job.progress)}
        self.checkpoints.save(self.job.progress)

    def save_later(self, version: int) -> None:
        """Choose a later version for a checkpoint that a scaling waits for: the order came too late for this one."""
        scaling = self.requests.current
        if scaling is not None and ("saved", version) in scaling.waiting:
            scaling.waiting.clear()
            self.save_for(scaling)

    def save_failed(self, version: int, why: str) -> None:
        """Drop a scaling whose checkpoint could not be written; if it was to end the job, the job ends without it."""
        scaling = self.requests.current
        if scaling is None or ("saved", version) not in scaling.waiting:
            return
        self.barrier.release()
        if scaling.last:
            self.outcome.end("")
        else:
            self.requests.drop(why)

    def _restart(self, scaling: ScalingRequest) -> None:
        """End all members, and start those of the new placement from the checkpoint."""
        if scaling.last:
            self.requests.current = None
            self.outcome.end("")
            return
        self.barrier.pause = None
        change = self._change(scaling)
        seats = [(m.role, m.site) for m in self.job.placements() if m.name not in change.going]
        for member in list(self.job.members.values()):
            member.leaving = True
            self.out.end(member.name)
        for role, site in sorted((*seats, *change.starts), key=lambda seat: seat[0]):
            self.out.launch(role, site)
        self._enter(scaling, "update")
        self.job.phase, self.requests.current, self._restarting = "starting", None, scaling

    def on_loaded(self) -> None:
        """Note that a checkpoint is loaded: a scaling by checkpoint is complete."""
        if self._restarting is not None:
            scaling, self._restarting = self._restarting, None
            self.out.note("scaled", scaling=scaling.number, strategy=scaling.strategy)

    # --- assignment

    def _assign(self, scaling: ScalingRequest) -> None:
        job = self.job
        stay = [m.name for m in job.of("server") if m.joined and m.name not in scaling.going]
        servers = job.limited_to_blocks(stay)
        if not servers:
            self.drop_stranded("all servers that were to stay have died")
            return
        shares: dict[str, Any] = {}
        if scaling.by_load:
            if not sum(self._loads.values()):
                self.requests.drop("the servers have received no gradients yet, so that their load is unknown")
                return
            job.load = [self._loads.get(block, 0.0) for block in range(len(job.terms.sizes))]
            shares["before"] = self._shares(job.owner)
        after = self.reassign(job.owner, job.terms.sizes, servers, load=job.load)
        if scaling.by_load:
            shares["after"] = self._shares(after)
        scaling.moves = {block: name for block, name in after.items() if job.owner[block] != name}
        moved = sum(job.terms.sizes[block] for block in scaling.moves)
        columns = {"blocks": len(scaling.moves), "parameters": moved, "new": scaling.new, "going": scaling.going}
        self._enter(scaling, "assignment", **columns, **shares)

    def _shares(self, owner: Mapping[int, str]) -> dict[str, float]:
        load, total = self.job.load or [], sum(self.job.load or []) or 1.0
        names = sorted(set(owner.values()))
        return {name: round(sum(load[b] for b, its in owner.items() if its == name) / total, 4) for name in names}

    def drop_stranded(self, why: str) -> None:
        """Drop the request because no server would be left: the servers that were to leave stay."""
        scaling = self.requests.current
        if scaling is None:
            return
        if scaling.hold is not None or self.barrier.pause is not None:
            self.barrier.release()
        self.requests.drop(why)
        self.replication.forget_dead()
        self.place_replicas()

    # --- migration

    def _migrate(self, scaling: ScalingRequest) -> None:
        """Move the blocks; with strategy "suspend", while workers pause."""
        suspends = scaling.strategy == "suspend" and bool(scaling.moves)
        sync, version = self.job.terms.sync, scaling.hold
        if version is None and suspends and sync:
            version = self.job.progress + MARGIN
        self._enter(scaling, "migration", version=version)
        if suspends and not sync:
            scaling.waiting = {"still"}
            self.barrier.begin(lambda: self._move(scaling, None))
            return
        if version is not None:
            if version >= self.job.terms.n_steps:
                self.requests.drop("training is about to end")
                return
            scaling.hold = version
            self.out.tell_workers(PauseAtVersion(version))
        self._move(scaling, version)

    def _move(self, scaling: ScalingRequest, version: int | None) -> None:
        scaling.waiting.discard("still")
        sources: dict[str, dict[int, str]] = {}
        for block, name in scaling.moves.items():
            sources.setdefault(self.job.owner[block], {})[block] = name
            scaling.waiting.add(("owns", block, name))
        for turn, (source, moves) in enumerate(sources.items()):
            to = [BlockMove(block, name) for block, name in moves.items()]
            self.out.tell(source, HandOver(to, version, (turn, len(sources))))

    def remind(self, server: str) -> None:
        """Repeat to a server the orders to hand blocks over that it may have missed."""
        scaling = self.requests.current
        if scaling is None or scaling.phase != "migration":
            return
        due = {b: to for b, to in scaling.moves.items() if ("owns", b, to) in scaling.waiting}
        moves = [BlockMove(b, to) for b, to in due.items() if self.job.owner[b] == server]
        self.out.tell(server, HandOver(moves, None))

    def redirect(self, owners: Mapping[int, str]) -> None:
        """Move blocks that were on their way from or to a dead server from their present owners."""
        scaling = self.requests.current
        if scaling is None:
            return
        for block, owner in owners.items():
            for waited in [w for w in scaling.waiting if w[0] == "owns" and w[1] == block]:
                if waited[2] == owner:
                    scaling.waiting.discard(waited)
                else:
                    self.out.tell(owner, HandOver([BlockMove(block, waited[2])], scaling.hold))

    # --- replicas

    def _replicate(self, scaling: ScalingRequest) -> None:
        """Place replicas for the new owners, before any server leaves."""
        if not self.job.terms.standby:
            self._finish(scaling)
            return
        if scaling.hold is not None:
            scaling.hold = None
            self.barrier.release()
        self._enter(scaling, "following")
        self.place_replicas()
        scaling.waiting = self._incomplete_replicas()

    def _incomplete_replicas(self) -> set[Any]:
        return {("follows", block, name) for block, (name, _) in self.replication.pending.items()}

    def place_replicas(self) -> None:
        """Place replicas on the servers that stay and are connected to all others."""
        self.replication.place(self._replica_servers())

    def _replica_servers(self) -> list[str]:
        excluded: list[str] = []
        scaling = self.requests.current
        if scaling is not None:
            excluded = [*scaling.going, *(scaling.new if scaling.phase in ("asked", "registration") else [])]
        return [m.name for m in self.job.of("server") if m.joined and m.name not in excluded]

    def survive(self, lost: Collection[str], *, repair: Sequence[str]) -> bool:
        """Continue without dead servers: replicas of their blocks are promoted; False if a block is lost.

        `repair` are the sites at which new servers are to replace them.
        """
        self.replication.forget_dead()
        if repair:
            self.requests.repair(repair)
        if self.job.phase != "training":
            return True
        promoted = self.replication.promote(lost)
        if promoted is None:
            return False
        self.redirect(promoted)
        self.place_replicas()
        scaling = self.requests.current
        if scaling is not None and scaling.phase == "following":
            scaling.waiting = self._incomplete_replicas()
        return True

    # --- update

    def _finish(self, scaling: ScalingRequest) -> None:
        """Finish the scaling, or assign blocks again if a failure gave a leaving server a block or a replica."""
        late = self._late_workers(scaling)
        if self._is_needed(scaling.going):
            self._assign(scaling)
        elif late:
            scaling.waiting = set(late)
        else:
            self._update(scaling)

    def _is_needed(self, names: Sequence[str]) -> bool:
        """Return whether one of these servers has a block, or a replica that another server could have."""
        replicas = self.replication.replicas.values() if len(self._replica_servers()) >= LEAST_SERVERS else ()
        return any(name in names for name in (*self.job.owner.values(), *(server for server, _ in replicas)))

    def _late_workers(self, scaling: ScalingRequest) -> list[str]:
        """Return workers that stay and lack parameters, if others are about to leave with the only copies."""
        stay = [m for m in self.job.of("worker") if m.name not in scaling.going]
        leaves = len(stay) < len(self.job.of("worker"))
        none_ready = not any(m.ready for m in stay)
        return [m.name for m in stay] if self.job.terms.sync and leaves and none_ready else []

    def _update(self, scaling: ScalingRequest) -> None:
        """Resume workers with the new owners, and end the members that leave."""
        members = self.job.members
        self._enter(scaling, "update")
        if scaling.strategy == "suspend" and scaling.moves:
            self.barrier.release()
        for name in scaling.going:
            if name in members:
                members[name].leaving = True
        self.replication.forget_dead()
        if any(members[n].role == "worker" for n in (*scaling.new, *scaling.going) if n in members):
            self.shards.deal()
        for name in scaling.going:
            if name in members and members[name].role == "worker":
                self.out.tell(name, FinishStep())  # it completes its step, and ends
            elif name in members:
                self.out.end(name)
        event = "repaired" if scaling.repair else "scaled"
        self.out.note(event, scaling=scaling.number, strategy=scaling.strategy)
        self.requests.current = None
        self.proceed()

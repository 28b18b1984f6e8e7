"""The controller as a state machine: events in, commands out; no socket, clock, process or thread.

It is off the path of a step: workers and servers go on without it, and tell it where they are when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from labkit.core.errors import InputError, unknown
from labkit.elastic.shards import deal

Role = Literal["server", "worker"]
STRATEGIES = ("handover", "suspend", "checkpoint")
MARGIN = 2
"""Versions from now at which something is to happen that everybody must hear of first."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job is, as far as the controller needs to know.

    Attributes
    ----------
    sizes : sequence of int
        Parameters of each block.
    n_shards : int
        V, logical shards of a batch.
    n_steps : int
        Of the whole training.
    save_every : int
        Steps between two checkpoints; 0: none but the last state.
    restarts : int
        Processes that may die and be replaced before the job is given up.
    """

    sizes: Sequence[int]
    n_shards: int
    n_steps: int
    save_every: int = 0
    restarts: int = 10


@dataclass(slots=True)
class Member:
    """A process of the job."""

    name: str
    role: Role
    address: str = ""
    joined: bool = False
    ready: bool = False
    leaving: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class End:
    """See to it that a process is gone: ask it to stop, or kill it."""

    name: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a member something."""

    to: str
    what: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Send the blocks of the newest good checkpoint to their owners, and say which version it is."""

    era: int
    owner: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Note:
    """Write down that something has happened."""

    event: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Over:
    """The job has ended; why, if not as it should."""

    failure: str = ""


Command = Start | End | Tell | Load | Note | Over


@dataclass(slots=True)
class Scaling:
    """One request: how many more or fewer, who goes, and how.

    `phase` runs through the published steps: registration, assignment, migration, update.
    """

    servers: int = 0
    workers: int = 0
    replace: tuple[str, ...] = ()
    strategy: str = "handover"
    phase: str = "asked"
    new: list[str] = field(default_factory=list)
    going: list[str] = field(default_factory=list)
    moves: dict[int, str] = field(default_factory=dict)
    waiting: set[Any] = field(default_factory=set)
    number: int = 0


Reassign = Callable[[Mapping[int, str], Sequence[int], Sequence[str]], dict[int, str]]
"""From owners, sizes and the servers there will be to owners: as few bytes as possible move."""


class Controller:
    """Who is there, who has which block, and what is under way.

    Parameters
    ----------
    terms : Terms
        Of the job.
    reassign : callable
        See `Reassign`; with no owners at all it makes the first assignment.
    """

    def __init__(self, terms: Terms, *, reassign: Reassign) -> None:
        self.terms, self._reassign = terms, reassign
        self.members: dict[str, Member] = {}
        self.owner: dict[int, str] = {}
        self.moves: dict[int, int] = {}
        self.era = 0
        self.phase = "starting"
        self.progress = 0
        self.scaling: Scaling | None = None
        self.queue: list[Scaling] = []
        self.saving: int | None = None
        self.saved = 0
        self.n_deaths = 0
        self._numbers = {"server": 0, "worker": 0}
        self._n_scalings = 0
        self._restarted: Scaling | None = None
        self._out: list[Command] = []

    # --- in and out

    def start(self, *, servers: int, workers: int) -> list[Command]:
        """Begin with so many of each."""
        for role, n in (("server", servers), ("worker", workers)):
            if n < 1:
                raise InputError(f"a job with {n} {role}s; expected at least one.")
        if servers > len(self.terms.sizes):
            raise InputError(f"{servers} servers for {len(self.terms.sizes)} blocks; expected at most one per block.")
        for _ in range(servers):
            self._launch("server")
        for _ in range(workers):
            self._launch("worker")
        return self._taken()

    def state(self) -> dict[str, Any]:
        """Return what another controller must know to take over, as JSON has it; progress is told by who is there."""
        return {
            "members": [[m.name, m.role, m.address, m.leaving] for m in self.members.values()],
            "owner": sorted(self.owner.items()), "moves": sorted(self.moves.items()), "era": self.era,
            "phase": self.phase, "saved": self.saved, "n_deaths": self.n_deaths, "numbers": self._numbers,
            "n_scalings": self._n_scalings,
            "scaling": [s.number for s in (self.scaling, *self.queue) if s is not None],
        }  # fmt: skip

    def take_over(self, state: Mapping[str, Any]) -> list[Command]:
        """Begin where another controller was: wait for its processes to come back, each with what it has.

        A scaling that was under way is given up: blocks that have moved stay where they are, newcomers stay.
        """
        for name, role, address, leaving in state["members"]:
            self.members[name] = Member(name, role, address, leaving=leaving)
        self.owner, self.moves = dict(state["owner"]), dict(state["moves"])
        self.era, self.saved, self.n_deaths = state["era"], state["saved"], state["n_deaths"]
        self._numbers, self._n_scalings = dict(state["numbers"]), state["n_scalings"]
        self.phase = "taking_over" if state["phase"] == "training" else "restoring"
        self._out.append(Note("taken_over", {"era": self.era, "phase": state["phase"]}))
        for number in state["scaling"]:
            self._out.append(Note("dropped", {"scaling": number, "why": "the controller died"}))
        return self._taken()

    def _on_here(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Note that a process of the controller before this one has told all that it has."""
        member.ready, member.version = True, int(columns["version"])
        self.progress = max(self.progress, member.version)

    def _resume(self) -> None:
        """Go on with training once everybody has told: unless blocks were lost, nobody stood still meanwhile."""
        self.phase = "training"
        lost = [block for block, name in self.owner.items() if name not in self.members]
        if lost:
            self._go_back()
            return
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=self.terms.n_steps)
        for member in self.members.values():
            if member.leaving:
                self._out.append(End(member.name))
        self._tell_workers(do="go_on")
        self._deal()
        self._out.append(Note("resumed", {"era": self.era, "version": self.progress}))

    def joined(self, name: str, *, address: str = "") -> list[Command]:
        """Take in a process that has connected."""
        member = self.members.get(name)
        if member is None or member.joined:
            return [Tell(name, {"do": "stop"})]
        member.joined, member.address = True, address
        if self.phase in ("taking_over", "restoring") and self.era:
            self._tell(name, do="tell")
        self._out.append(Note("joined", {"name": name, "role": member.role}))
        self._introduce(member)
        if member.role == "server" and self.phase != "taking_over":
            self._tell(name, do="era", era=self.era)
        if member.role == "worker" and self.phase == "training":
            self._begin(name, self.progress + MARGIN, (0, 0))
        elif self.scaling is not None and name in self.scaling.waiting:
            self.scaling.waiting.discard(name)
            self.scaling.waiting |= {
                ("met", m.name, name) for m in self.members.values() if m.joined and m is not member
            }
        self._go_on()
        return self._taken()

    def left(self, name: str, *, reason: str = "") -> list[Command]:
        """Note that a process is gone."""
        member = self.members.pop(name, None)
        if member is None:
            return self._taken()
        expected = member.leaving or self.phase == "over"
        self._out.append(Note("left", {"name": name, "role": member.role, "expected": expected, "reason": reason}))
        if not expected:
            self._died(member)
        self._go_on()
        return self._taken()

    def reported(self, name: str, event: str, columns: Mapping[str, Any]) -> list[Command]:
        """Take note of what a member says has happened."""
        take = getattr(self, f"_on_{event}", None)
        if take is not None and name in self.members:
            take(self.members[name], columns)
        self._go_on()
        return self._taken()

    def scale(self, *, servers: int = 0, workers: int = 0, replace: Sequence[str] = (), strategy: str) -> list[Command]:
        """Add (or remove, below 0) servers and workers, and replace some; one request after the other.

        Raises
        ------
        InputError
            If nobody would be left, or there would be more servers than blocks; nothing has changed then.
        """
        if strategy not in STRATEGIES:
            raise unknown("strategy", strategy, STRATEGIES)
        self._check_numbers(servers, workers, replace)
        self._n_scalings += 1
        self.queue.append(Scaling(servers, workers, tuple(replace), strategy, number=self._n_scalings))
        self._go_on()
        return self._taken()

    def stop(self) -> list[Command]:
        """End the job before its last step."""
        self._end("")
        return self._taken()

    def _taken(self) -> list[Command]:
        out, self._out = self._out, []
        return out

    # --- who is there

    def of(self, role: Role) -> list[Member]:
        """Return the members of a role that stay, oldest first."""
        return [m for m in self.members.values() if m.role == role and not m.leaving]

    def _check_numbers(self, servers: int, workers: int, replace: Sequence[str]) -> None:
        asked = {"server": servers, "worker": workers}
        roles: tuple[Role, ...] = ("server", "worker")
        for role in roles:
            planned = len(self.of(role)) + asked[role]
            planned += sum(s.servers if role == "server" else s.workers for s in self.queue)
            if planned < 1:
                raise InputError(f"the job would be left with {planned} {role}s; expected at least one.")
            if role == "server" and planned > len(self.terms.sizes):
                raise InputError(
                    f"{planned} servers for {len(self.terms.sizes)} blocks; expected at most one per block."
                )
        for name in replace:
            if name not in self.members:
                raise unknown("member", name, tuple(self.members))

    def _launch(self, role: Role) -> str:
        name = f"{'ps' if role == 'server' else 'worker'}-{self._numbers[role]}"
        self._numbers[role] += 1
        self.members[name] = Member(name, role)
        self._out.append(Start(name, role))
        return name

    def _introduce(self, member: Member) -> None:
        """Let a newcomer and the servers connect, before anything depends on it."""
        for other in self.members.values():
            if other is not member and other.joined:
                if member.role == "server":
                    self._tell(other.name, do="meet", name=member.name, address=member.address)
                if other.role == "server":
                    self._tell(member.name, do="meet", name=other.name, address=other.address)

    def _on_met(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self.scaling is not None:
            self.scaling.waiting.discard(("met", member.name, columns["name"]))

    def _tell(self, to: str, **what: Any) -> None:
        self._out.append(Tell(to, what))

    def _tell_workers(self, **what: Any) -> None:
        for worker in self.members.values():
            if worker.role == "worker" and worker.joined:
                self._tell(worker.name, **what)

    # --- what goes on

    def _go_on(self) -> None:
        """Do the next thing that is due."""
        if self.phase in ("starting", "restoring") and all(m.joined and not m.leaving for m in self.members.values()):
            self._restore()
        elif self.phase == "taking_over" and all(m.ready for m in self.members.values() if not m.leaving):
            self._resume()
        if self.phase == "training":
            if self.scaling is None and self.queue:
                self.scaling = self.queue.pop(0)
            if self.scaling is not None:
                self._scale_on(self.scaling)

    def _restore(self) -> None:
        """Give out the blocks of a checkpoint, at first those of the beginning."""
        self.era += 1
        self.phase = "loading"
        servers = [m.name for m in self.of("server")]
        self.owner = self._reassign({}, self.terms.sizes, servers)
        self.moves = dict.fromkeys(self.owner, 0)
        for server in servers:
            self._tell(server, do="era", era=self.era)
        self._out.append(Load(self.era, dict(self.owner)))

    def loaded(self, version: int) -> list[Command]:
        """All blocks of a checkpoint are with their owners."""
        self.phase, self.progress, self.saving = "training", version, None
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=self.terms.n_steps)
        ranges = self._ranges()
        for name, leaves in ranges.items():
            self._begin(name, version, leaves)
        self._out.append(Note("began", {"era": self.era, "version": version}))
        if self._restarted is not None:
            scaling, self._restarted = self._restarted, None
            self._out.append(Note("scaled", {"scaling": scaling.number, "strategy": scaling.strategy}))
        self._go_on()
        return self._taken()

    def _begin(self, name: str, version: int, leaves: tuple[int, int]) -> None:
        known = [[block, owner, self.moves[block]] for block, owner in self.owner.items()]
        self._tell(name, do="begin", era=self.era, version=version, leaves=leaves, map=known)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Return the logical shards of each worker."""
        return self._dealt([m.name for m in self.of("worker") if m.joined])

    def _dealt(self, workers: Sequence[str]) -> dict[str, tuple[int, int]]:
        if not workers:
            return {}
        ranges = deal(self.terms.n_shards, dict.fromkeys(workers, 1.0))
        return {str(name): (leaves.start, leaves.stop) for name, leaves in ranges.items()}

    def _deal(self, *, only_ready: bool = True) -> None:
        """Deal the logical shards anew; workers that are not ready yet get theirs later."""
        workers = [m.name for m in self.of("worker") if m.joined and (m.ready or not only_ready)]
        for member in self.members.values():
            if member.role == "worker" and member.joined and member.name not in workers:
                self._tell(member.name, do="deal", leaves=(0, 0))
        for name, leaves in self._dealt(workers).items():
            self._tell(name, do="deal", leaves=leaves)

    # --- what members report

    def _on_ready(self, member: Member, columns: Mapping[str, Any]) -> None:
        member.ready, member.version = True, int(columns["version"])
        scaling = self.scaling
        if scaling is not None and member.name in scaling.waiting:
            scaling.waiting.discard(member.name)
        elif self.phase == "training" and self._n_ready() > 1 and self._late(member):
            self._deal()

    def _late(self, member: Member) -> bool:
        """Tell whether a worker joined training that was under way."""
        return member.version > 0

    def _n_ready(self) -> int:
        return sum(m.ready for m in self.of("worker"))

    def _on_stepped(self, member: Member, columns: Mapping[str, Any]) -> None:
        member.version = int(columns["version"]) + 1
        self.progress = max(self.progress, member.version)
        every = self.terms.save_every
        settled = self.scaling is None or self.scaling.phase == "registration"
        if every and self.saving is None and settled and self.progress < self.terms.n_steps:
            due = max(self.saved + every, self.progress + MARGIN)
            if self.progress >= due - MARGIN and due < self.terms.n_steps:
                self._save(due)

    def _save(self, version: int) -> None:
        self.saving = version
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=version)

    def saved_at(self, version: int) -> list[Command]:
        """Note that a checkpoint is complete and safe."""
        self.saving, self.saved = None, max(self.saved, version)
        self._out.append(Note("saved", {"version": version}))
        scaling = self.scaling
        if scaling is not None and ("saved", version) in scaling.waiting:
            scaling.waiting.discard(("saved", version))
        self._end_when_done()
        self._go_on()
        return self._taken()

    def unsaved(self, version: int, why: str) -> list[Command]:
        """Note that a checkpoint could not be written: training goes on, and tries again later."""
        self._out.append(Note("unsaved", {"version": version, "why": why}))
        self.saving = None
        if version == self.terms.n_steps:
            self._end(f"the last state could not be saved: {why}")
        elif self.scaling is not None and ("saved", version) in self.scaling.waiting:
            self._tell_workers(do="go_on")
            self._drop(self.scaling, why)
        self._go_on()
        return self._taken()

    def _on_done(self, member: Member, columns: Mapping[str, Any]) -> None:
        member.version = int(columns["version"])
        self._end_when_done()

    def _end_when_done(self) -> None:
        """End the job once its last state is safe and all workers have told of their last step."""
        last = self.terms.n_steps
        if self.saved == last and all(m.version == last for m in self.of("worker") if m.ready):
            self._end("")

    def _on_late(self, _: Member, columns: Mapping[str, Any]) -> None:
        """Try a later version: a copy came too late."""
        if self.saving == columns["version"]:
            self.saving = None
            scaling = self.scaling
            if scaling is not None and ("saved", columns["version"]) in scaling.waiting:
                scaling.waiting.clear()
                self._copy_for(scaling)

    def _on_owns(self, member: Member, columns: Mapping[str, Any]) -> None:
        block, moves = int(columns["block"]), int(columns["moves"])
        if moves >= self.moves.get(block, -1):
            self.owner[block], self.moves[block] = member.name, moves
        if self.scaling is not None:
            self.scaling.waiting.discard(("owns", block, member.name))

    def _on_handed_over(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._out.append(Note("moved", {"from": member.name, **columns}))

    def _on_unsure(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Settle who has a block that was streamed to somebody who did not say that it is there."""
        block, owner = int(columns["block"]), str(columns["owner"])
        if self.owner.get(block) == owner:
            return
        if owner in self.members:
            self._out.append(End(owner, kill=True))  # it cannot be reached: nobody may believe that it has the block
            self._fall(owner)
        self._tell(member.name, do="take_back", blocks=[block])
        scaling = self.scaling
        if scaling is not None:
            scaling.waiting.discard(("owns", block, owner))

    def _fall(self, name: str) -> None:
        member = self.members.pop(name)
        self._out.append(Note("left", {"name": name, "role": member.role, "expected": False, "reason": "cut off"}))
        self._died(member)

    def _on_holds(self, member: Member, columns: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.scaling is not None:
            self.scaling.waiting.discard(("holds", member.name))

    def _on_held(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._out.append(Note("suspended", {"name": member.name, "seconds": columns["seconds"]}))

    def _on_failed(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._end(f"{member.name}: {columns['why']}")

    # --- deaths

    def _died(self, member: Member) -> None:
        self.n_deaths += 1
        if self.n_deaths > self.terms.restarts:
            self._end(
                f"{self.n_deaths} processes died, the last of them {member.name}; more than {self.terms.restarts}."
            )
            return
        if self.scaling is not None:
            self._mourn(self.scaling, member)
        if member.role == "worker":
            if self.phase == "training":
                self._deal()
            self._launch("worker")
            self._end_when_done()
            return
        self._launch("server")
        if self.phase in ("training", "loading") and member.name in self.owner.values():
            self._go_back()

    def _go_back(self) -> None:
        """Give up what was done since the last checkpoint: somebody died who had blocks."""
        self.phase = "restoring"
        self.era += 1
        self._out.append(Note("goes_back", {"era": self.era}))
        if self.scaling is not None:
            self._out.append(Note("dropped", {"scaling": self.scaling.number, "why": "a server died"}))
            self.scaling = None
        self.saving = None
        for worker in self.of("worker"):
            worker.ready = False
        self._tell_workers(do="halt", era=self.era)

    def _mourn(self, scaling: Scaling, member: Member) -> None:
        """Wait no longer for somebody who is gone."""
        scaling.waiting = {w for w in scaling.waiting if member.name not in (w if isinstance(w, tuple) else (w,))}
        scaling.new = [name for name in scaling.new if name != member.name]
        scaling.going = [name for name in scaling.going if name != member.name]

    def _end(self, failure: str) -> None:
        if self.phase == "over":
            return
        self.phase = "over"
        for scaling in (*([self.scaling] if self.scaling is not None else []), *self.queue):
            self._out.append(Note("dropped", {"scaling": scaling.number, "why": "training has ended"}))
        for member in self.members.values():
            member.leaving = True
            self._out.append(End(member.name))
        self._out.append(Over(failure))

    # --- scaling

    def _scale_on(self, scaling: Scaling) -> None:
        """Do the next step of a scaling as soon as the last one is complete."""
        steps = {
            "asked": self._register,
            "registration": self._assign,
            "saving": self._restart,
            "assignment": self._migrate,
            "migration": self._update,
        }
        while self.scaling is scaling and not scaling.waiting and scaling.phase in steps:
            steps[scaling.phase](scaling)

    def _phase(self, scaling: Scaling, phase: str, **columns: Any) -> None:
        scaling.phase = phase
        self._out.append(Note(phase, {"scaling": scaling.number, "strategy": scaling.strategy, **columns}))

    def _register(self, scaling: Scaling) -> None:
        """Start newcomers and wait until they are connected; workers also fetch the parameters."""
        again = [self.members[name] for name in scaling.replace if name in self.members]
        replaced = {"server": 0, "worker": 0}
        for member in again:
            replaced[member.role] += 1
        scaling.going = [member.name for member in again]
        self._phase(scaling, "registration", servers=scaling.servers, workers=scaling.workers)
        if scaling.strategy == "checkpoint":
            self._copy_for(scaling)
            return
        for role, n in (("server", scaling.servers), ("worker", scaling.workers)):
            for _ in range(max(n, 0) + replaced[role]):
                scaling.new.append(self._launch(role))  # type: ignore[arg-type]
            stay = [m.name for m in self.of(role) if m.name not in scaling.going]  # type: ignore[arg-type]
            scaling.going += [name for name in stay if name not in scaling.new][n:] if n < 0 else []
        scaling.waiting = set(scaling.new)

    def _copy_for(self, scaling: Scaling) -> None:
        scaling.phase = "saving"
        version = self.progress + MARGIN
        if version >= self.terms.n_steps:
            self._drop(scaling, "training is about to end")
            return
        scaling.waiting = {("saved", version)}
        self._tell_workers(do="hold", version=version)
        self._save(version)

    def _drop(self, scaling: Scaling, why: str) -> None:
        self._out.append(Note("dropped", {"scaling": scaling.number, "why": why}))
        for name in scaling.new:
            if name in self.members:
                self.members[name].leaving = True
                self._out.append(End(name))
        self.scaling = None

    def _restart(self, scaling: Scaling) -> None:
        """Stop everybody, and begin again with others from the checkpoint."""
        counts = {"server": len(self.of("server")), "worker": len(self.of("worker"))}
        for member in list(self.members.values()):
            member.leaving = True
            self._out.append(End(member.name))
        for role, more in (("server", scaling.servers), ("worker", scaling.workers)):
            for _ in range(counts[role] + more):
                self._launch(role)  # type: ignore[arg-type]
        self._phase(scaling, "update")
        self.phase, self.scaling, self._restarted = "starting", None, scaling

    def _assign(self, scaling: Scaling) -> None:
        """Find out which blocks move where."""
        servers = [m.name for m in self.of("server") if m.name not in scaling.going]
        after = self._reassign(self.owner, self.terms.sizes, servers)
        scaling.moves = {block: name for block, name in after.items() if self.owner[block] != name}
        moved = sum(self.terms.sizes[block] for block in scaling.moves)
        self._phase(scaling, "assignment", blocks=len(scaling.moves), parameters=moved)

    def _migrate(self, scaling: Scaling) -> None:
        """Let the blocks move; those who suspend do it while workers stand still."""
        self._phase(scaling, "migration")
        version = None
        if scaling.strategy == "suspend" and scaling.moves:
            version = self.progress + MARGIN
            if version >= self.terms.n_steps:
                self._drop(scaling, "training is about to end")
                return
            self._tell_workers(do="hold", version=version)
        sources: dict[str, dict[int, str]] = {}
        for block, name in scaling.moves.items():
            sources.setdefault(self.owner[block], {})[block] = name
            scaling.waiting.add(("owns", block, name))
        for source, moves in sources.items():
            self._tell(source, do="hand_over", moves=[[b, n] for b, n in moves.items()], version=version)

    def _update(self, scaling: Scaling) -> None:
        """Let workers go on with the new owners, and those go who are to go."""
        self._phase(scaling, "update")
        if scaling.strategy == "suspend" and scaling.moves:
            self._tell_workers(do="go_on")
        for name in scaling.going:
            if name in self.members:
                self.members[name].leaving = True
        if any(self.members[n].role == "worker" for n in (*scaling.new, *scaling.going) if n in self.members):
            self._deal()
        for name in scaling.going:
            if name in self.members:
                self._out.append(End(name))
        self._out.append(Note("scaled", {"scaling": scaling.number, "strategy": scaling.strategy}))
        self.scaling = None
        self._go_on()

"""Servers and workers come and go while training goes on: the steps of a scaling, one request after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.core.errors import InputError, unknown
from labkit.elastic.commands import Command, End, Note, Role
from labkit.elastic.crew import Crew, Member, Reassign, Terms

STRATEGIES = ("handover", "suspend", "checkpoint")
MARGIN = 2
"""Versions from now at which something is to happen that everybody must hear of first."""


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


class Scaler(Crew):
    """Requests to scale, and the steps of the one that is under way."""

    def __init__(self, terms: Terms, *, reassign: Reassign) -> None:
        super().__init__(terms, reassign=reassign)
        self.scaling: Scaling | None = None
        self.queue: list[Scaling] = []
        self.saving: int | None = None
        self._n_scalings = 0
        self._restarted: Scaling | None = None

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

    def _next_scaling(self) -> None:
        """Begin the next request when there is none under way, and do what is due of it."""
        if self.scaling is None and self.queue:
            self.scaling = self.queue.pop(0)
        if self.scaling is not None:
            self._scale_on(self.scaling)

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
        version = self.progress + MARGIN
        self._phase(scaling, "saving", version=version)
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
        self._phase(
            scaling, "assignment", blocks=len(scaling.moves), parameters=moved, new=scaling.new, going=scaling.going
        )

    def _migrate(self, scaling: Scaling) -> None:
        """Let the blocks move; those who suspend do it while workers stand still."""
        suspends = scaling.strategy == "suspend" and bool(scaling.moves)
        version = self.progress + MARGIN if suspends else None
        self._phase(scaling, "migration", version=version)
        if version is not None:
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

    def _save(self, version: int) -> None:
        self.saving = version
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=version)

    def _on_met(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self.scaling is not None:
            self.scaling.waiting.discard(("met", member.name, columns["name"]))

    def _mourn(self, scaling: Scaling, member: Member) -> None:
        """Wait no longer for somebody who is gone."""
        scaling.waiting = {w for w in scaling.waiting if member.name not in (w if isinstance(w, tuple) else (w,))}
        scaling.new = [name for name in scaling.new if name != member.name]
        scaling.going = [name for name in scaling.going if name != member.name]

    def _on_holds(self, member: Member, columns: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.scaling is not None:
            self.scaling.waiting.discard(("holds", member.name))

    def _on_held(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._out.append(Note("suspended", {"name": member.name, "seconds": columns["seconds"]}))

"""Servers and workers come and go while training goes on: the steps of a scaling, one request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.core.errors import InputError, unknown
from labkit.elastic.commands import Command, End, Note, Role
from labkit.elastic.crew import Member, Reassign, Terms
from labkit.elastic.following import LEAST_SERVERS
from labkit.elastic.standby import Standby

STRATEGIES = ("handover", "suspend", "checkpoint")
MARGIN = 2
"""Versions from now at which something is to happen that everybody must hear of first."""


@dataclass(slots=True)
class Scaling:
    """One request: how many more or fewer, who goes, and how.

    `phase` runs through the published steps: registration, assignment, migration, update. `repair` tells that nobody
    asked for it: a server died that others followed. `hold` is the version at which workers stand still.
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
    repair: bool = False
    hold: int | None = None


@dataclass(slots=True)
class Standstill:
    """Workers finish what they are at and stand still; then something is done.

    Attributes
    ----------
    number : int
        Of the standstill, from 1.
    waiting : set of str
        Workers that do not stand still yet.
    then : callable
        What is done.
    """

    number: int
    waiting: set[str]
    then: Callable[[], None]
    begun: bool = False


class Scaler(Standby):
    """Requests to scale, and the steps of the one that is under way."""

    def __init__(self, terms: Terms, *, reassign: Reassign) -> None:
        super().__init__(terms, reassign=reassign)
        self.scaling: Scaling | None = None
        self.queue: list[Scaling] = []
        self.saving: int | None = None
        self._n_scalings = 0
        self._restarted: Scaling | None = None
        self._still: Standstill | None = None
        self._n_stills = 0

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
            if role == "server" and self.terms.standby and planned < LEAST_SERVERS:
                raise InputError(
                    f"the job would be left with {planned} server; expected at least {LEAST_SERVERS} with standby=True."
                )
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
            "migration": self._follow_up,
            "following": self._finish,
        }
        while self.scaling is scaling and not scaling.waiting and scaling.phase in steps:
            if self._still is not None and scaling.phase in ("asked", "registration"):
                return  # a checkpoint is under way that needs all blocks to stay where they are
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
        if not self.terms.sync:
            self._phase(scaling, "saving")
            scaling.waiting = {"still"}
            self._save_still()
            return
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
        self._still = None
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
        version = scaling.hold
        if version is None and suspends and self.terms.sync:
            version = self.progress + MARGIN
        self._phase(scaling, "migration", version=version)
        if suspends and not self.terms.sync:
            scaling.waiting = {"still"}
            self._stand_still(lambda: self._move(scaling, None))
            return
        if version is not None:
            if version >= self.terms.n_steps:
                self._drop(scaling, "training is about to end")
                return
            scaling.hold = version
            self._tell_workers(do="hold", version=version)
        self._move(scaling, version)

    def _move(self, scaling: Scaling, version: int | None) -> None:
        """Tell the owners of blocks to hand them over."""
        scaling.waiting.discard("still")
        sources: dict[str, dict[int, str]] = {}
        for block, name in scaling.moves.items():
            sources.setdefault(self.owner[block], {})[block] = name
            scaling.waiting.add(("owns", block, name))
        for turn, (source, moves) in enumerate(sources.items()):
            to = [[block, name] for block, name in moves.items()]
            self._tell(source, do="hand_over", moves=to, version=version, turn=(turn, len(sources)))

    def _follow_up(self, scaling: Scaling) -> None:
        """Let the blocks be followed where they are now, before those go who are to go."""
        if not self.terms.standby:
            self._finish(scaling)
            return
        if scaling.hold is not None:
            scaling.hold = None
            self._walk_on()
        self._phase(scaling, "following")
        self._follow(self._followers_to_be())
        scaling.waiting = self._not_followed()

    def _not_followed(self) -> set[Any]:
        return {("follows", block, name) for block, (name, _) in self.coming.items()}

    def _needed(self, names: Sequence[str]) -> bool:
        """Tell whether somebody has blocks, or follows some that another could follow."""
        followed = self.shadow.values() if len(self._followers_to_be()) >= LEAST_SERVERS else ()
        return any(name in names for name in (*self.owner.values(), *(follower for follower, _ in followed)))

    def _followers_to_be(self) -> list[str]:
        """Return the servers that stay and are connected to all."""
        away: list[str] = []
        if self.scaling is not None:
            away = [*self.scaling.going, *(self.scaling.new if self.scaling.phase in ("asked", "registration") else [])]
        return [m.name for m in self.of("server") if m.joined and m.name not in away]

    def _on_shadows(self, member: Member, columns: Mapping[str, Any]) -> None:
        super()._on_shadows(member, columns)
        if self.scaling is not None:
            self.scaling.waiting.discard(("follows", int(columns["block"]), member.name))

    def _outlive(self, member: Member, *, going: bool) -> bool:
        """Go on without a server, whose blocks others own from now on; False if some are lost."""
        self._bury()
        if not going:
            self._repair(1)
        if self.phase != "training":
            return True
        promoted = self._promote({member.name})
        if promoted is None:
            return False
        if self.scaling is not None:
            self._move_on(self.scaling, promoted)
        self._follow(self._followers_to_be())
        if self.scaling is not None and self.scaling.phase == "following":
            self.scaling.waiting = self._not_followed()
        return True

    def _repair(self, servers: int) -> None:
        """Let so many servers come, and share the blocks, before anything else that was asked for."""
        self._n_scalings += 1
        self.queue.insert(0, Scaling(servers, number=self._n_scalings, repair=True))

    def _move_on(self, scaling: Scaling, promoted: Mapping[int, str]) -> None:
        """Let blocks that were on their way from a dead server start from where they are now."""
        for block, owner in promoted.items():
            for waited in [w for w in scaling.waiting if w[0] == "owns" and w[1] == block]:
                if waited[2] == owner:
                    scaling.waiting.discard(waited)
                else:
                    self._tell(owner, do="hand_over", moves=[[block, waited[2]]], version=scaling.hold)

    def _finish(self, scaling: Scaling) -> None:
        """Come to the end, or begin anew: somebody died, and who was to go got a block back, or still follows."""
        if self._needed(scaling.going):
            self._assign(scaling)
        else:
            self._update(scaling)

    def _update(self, scaling: Scaling) -> None:
        """Let workers go on with the new owners, and those go who are to go."""
        self._phase(scaling, "update")
        if scaling.strategy == "suspend" and scaling.moves:
            self._walk_on()
        for name in scaling.going:
            if name in self.members:
                self.members[name].leaving = True
        self._bury()
        if any(self.members[n].role == "worker" for n in (*scaling.new, *scaling.going) if n in self.members):
            self._deal()
        for name in scaling.going:
            if name in self.members and self.members[name].role == "worker":
                self._tell(name, do="finish")  # what it is at; then it ends
            elif name in self.members:
                self._out.append(End(name))
        event = "repaired" if scaling.repair else "scaled"
        self._out.append(Note(event, {"scaling": scaling.number, "strategy": scaling.strategy}))
        self.scaling = None
        self._go_on()

    def _save(self, version: int) -> None:
        self.saving = version
        for server in self.of("server"):
            self._tell(server.name, do="copy", version=version)

    # --- asynchronous training knows no version of all blocks but while nobody moves

    def _stand_still(self, then: Callable[[], None]) -> None:
        """Let all workers stand still, and then do something; `_walk_on` ends it."""
        waiting = {m.name for m in self.members.values() if m.role == "worker" and m.ready}
        self._n_stills += 1
        self._still = Standstill(self._n_stills, waiting, then)
        self._tell_workers(do="hold", number=self._n_stills)

    def _walk_on(self) -> None:
        self._still = None
        self._tell_workers(do="go_on")

    def _save_still(self) -> None:
        """Save a checkpoint while everybody stands still."""
        self.saving = self.progress
        self._stand_still(self._copy_still)

    def _copy_still(self) -> None:
        if self.scaling is not None and self.scaling.phase == "saving":
            self.scaling.waiting = {("saved", self.progress)}
        self._save(self.progress)

    def _try_still(self) -> None:
        still = self._still
        if still is not None and not still.begun and not still.waiting:
            still.begun = True
            still.then()

    def _on_met(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self.scaling is not None:
            self.scaling.waiting.discard(("met", member.name, columns["name"]))

    def unable(self, name: str, *, why: str) -> list[Command]:
        """Take note that a newcomer cannot do its part: the request that it was started for is dropped."""
        member = self.members.get(name)
        if member is not None:
            member.joined = True
            self._out.append(Note("unable", {"name": name, "why": why}))
            self._do_without(member, f"{name} {why}")
            self._go_on()
        return self._taken()

    def _on_unmet(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Do without the newer of two who cannot reach each other, unless one of them is going anyway."""
        other = self.members.get(columns["name"])
        if other is None or other.leaving or member.leaving:
            return
        newer = max(member, other, key=list(self.members.values()).index)
        self._do_without(newer, f"{member.name} cannot reach {other.name}: {columns['why']}")

    def _do_without(self, newcomer: Member, why: str) -> None:
        """Drop the request that a newcomer was started for; a job that has just begun ends; else replace it."""
        if self.phase == "over":
            return
        scaling = self.scaling
        if scaling is not None and scaling.phase == "registration" and newcomer.name in scaling.new:
            self._drop(scaling, why)
        elif self.phase == "starting" or self._is_new():
            self._end(why)
        else:
            self._cut_off(newcomer.name)

    def _is_new(self) -> bool:
        """Tell whether the first processes of the job are all there, but not all workers have their parameters yet."""
        everybody = sum(self._numbers.values()) == len(self.members)
        return everybody and self._n_ready() < len(self.of("worker"))

    def _mourn(self, scaling: Scaling, member: Member) -> None:
        """Wait no longer for somebody who is gone."""
        scaling.waiting = {w for w in scaling.waiting if member.name not in (w if isinstance(w, tuple) else (w,))}
        scaling.new = [name for name in scaling.new if name != member.name]
        scaling.going = [name for name in scaling.going if name != member.name]

    def _on_holds(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self._still is not None and columns.get("number") == self._still.number:
            self._still.waiting.discard(member.name)

    def _on_held(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._out.append(Note("suspended", {"name": member.name, "seconds": columns["seconds"]}))

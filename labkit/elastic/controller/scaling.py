"""Servers and workers come and go while training goes on: the steps of a scaling, one request after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.core.errors import InputError, unknown
from labkit.elastic.controller.members import JobTerms, Member, Reassign
from labkit.elastic.controller.placement import (
    ROLES,
    JobPlacement,
    MembershipChange,
    by_numbers,
    checked,
    of_role,
    to_place,
)
from labkit.elastic.controller.replica_placement import LEAST_SERVERS
from labkit.elastic.controller.replication import Replication
from labkit.elastic.protocol.commands import Command, End, Note, Role

STRATEGIES = ("handover", "suspend", "checkpoint")


def check_strategy(name: str) -> None:
    """Raise InputError unless there is such a way to rescale."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)


STILL_LEASES = 0.25
"""For a checkpoint others stand still for so much of a lease, and"""
STILL_STEPS = 2
"""so many steps of the slowest worker; then they go on without one."""
MARGIN = 2
"""Versions from now at which something is to happen that everybody must hear of first."""


@dataclass(slots=True)
class Scaling:
    """One request: how many more or fewer, or how many where (`place`), who goes, and how.

    `phase` runs through the published steps: registration, assignment, migration, update. `repair` tells that nobody
    asked for it: a server died that others followed; those that come for such sit `at` these sites. `hold` is the
    version at which workers stand still. With `last`, the job ends instead, once its state is saved. With `by_load`
    nobody comes or goes: servers tell how much each block is used, and blocks move so that servers are used alike.
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
    place: JobPlacement | None = None
    at: tuple[str, ...] = ()
    last: bool = False
    by_load: bool = False

    def again(self) -> Scaling | None:
        """Return the same request anew, if it means the same later: it says how things are to be, not what to add."""
        if self.place is None and not self.last:
            return None
        return Scaling(strategy=self.strategy, place=self.place, number=self.number, last=self.last)

    def after(self, counts: Mapping[Role, int]) -> dict[Role, int]:
        """Return how many there will be of each role, from how many there are before."""
        if self.place is not None:
            return {role: sum(of_role(self.place, role).values()) for role in ROLES}
        more = {"server": self.servers, "worker": self.workers}
        return {role: counts[role] + more[role] for role in ROLES}


@dataclass(slots=True)
class Barrier:
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
    until_s: float = math.inf
    """When it is given up if somebody still moves."""


class Scaler(Replication):
    """Requests to scale, and the steps of the one that is under way."""

    def __init__(self, terms: JobTerms, *, reassign: Reassign) -> None:
        super().__init__(terms, reassign=reassign)
        self.scaling: Scaling | None = None
        self.queue: list[Scaling] = []
        self.saving: int | None = None
        self._n_scalings = 0
        self._restarted: Scaling | None = None
        self._still: Barrier | None = None
        self._n_stills = 0
        self._step_s: dict[str, float] = {}
        """How long the last step of each asynchronous worker took."""
        self._unmoved: set[str] = set()
        """Workers that did not come to stand still for a checkpoint, and have not been heard of since."""
        self._heard: dict[int, float] = {}
        """Load of each block, while servers tell it."""

    @property
    def n_asked(self) -> int:
        """Number of the newest request."""
        return self._n_scalings

    def scale(
        self,
        *,
        servers: int = 0,
        workers: int = 0,
        replace: Sequence[str] = (),
        place: Mapping[str, Sequence[int]] | None = None,
        strategy: str,
    ) -> list[Command]:
        """Add (or remove, below 0) servers and workers, and replace some; or say how many sit where.

        One request after the other. `place` has workers and servers of each site, and nobody sits anywhere else then.

        Raises
        ------
        InputError
            If nobody would be left, there would be more servers than blocks, or a site is none or gone; nothing has
            changed then.
        """
        check_strategy(strategy)
        for n in (servers, workers):
            if isinstance(n, bool) or not isinstance(n, int):
                raise InputError(f"{n!r} servers or workers more; expected whole numbers, below 0 for fewer.")
        asked = Scaling(servers, workers, tuple(replace), strategy)
        if place is not None:
            if servers or workers or replace:
                raise InputError("place, and servers, workers or replace beside it; expected one or the other.")
            asked.place = checked(place, sites=self.terms.sites, lost=self.lost)
        for name in replace:
            if name not in self.members:
                raise unknown("member", name, tuple(self.members))
        self._check_numbers(asked.after(self._planned()))
        self._n_scalings += 1
        asked.number = self._n_scalings
        self.queue.append(asked)
        self._go_on()
        return self._taken()

    def balance(self, *, strategy: str) -> list[Command]:
        """Spread the blocks over the servers that are there, by how many bytes of gradients come for each.

        Raises
        ------
        InputError
            If there is no such strategy, or none by which blocks alone can move.
        """
        check_strategy(strategy)
        if strategy == "checkpoint":
            raise InputError("strategy 'checkpoint' to balance servers; expected handover or suspend: nobody restarts.")
        self._n_scalings += 1
        self.queue.append(Scaling(strategy=strategy, number=self._n_scalings, by_load=True))
        self._go_on()
        return self._taken()

    def _planned(self) -> dict[Role, int]:
        """Return how many there will be of each role after all that has been asked for."""
        now = [] if self.scaling is None else [self.scaling]
        begun = [s for s in now if s.phase not in ("asked", "saving")]
        going = [name for scaling in begun for name in scaling.going]
        counts: dict[Role, int] = {role: sum(m.name not in going for m in self.of(role)) for role in ROLES}
        for scaling in (*(s for s in now if s not in begun), *self.queue):
            counts = scaling.after(counts)
        return counts

    def _check_numbers(self, planned: Mapping[Role, int]) -> None:
        for role, n in planned.items():
            if n < 1:
                raise InputError(f"the job would be left with {n} {role}s; expected at least one.")
        n, n_blocks = planned["server"], len(self.terms.sizes)
        if self.terms.standby and n < LEAST_SERVERS:
            raise InputError(
                f"the job would be left with {n} server; expected at least {LEAST_SERVERS} with standby=True."
            )
        if n > n_blocks:
            raise InputError(f"{n} servers for {n_blocks} blocks; expected at most one per block.")

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
        change, sitting = self._change(scaling), self._sitting()
        net = {f"{role}s": change.net(role, sitting) for role in ROLES}
        self._phase(scaling, "registration", **net)
        try:
            self._check_change(scaling, change)
        except InputError as error:  # somebody has died since it was asked for, or a host was lost
            self._drop(scaling, str(error))
            return
        if scaling.strategy == "checkpoint":
            self._copy_for(scaling)
            return
        scaling.going = change.going
        scaling.new = [self._launch(role, site) for role, site in change.starts]
        starting = [m.name for m in self.of("server") if not m.joined]  # of a controller that died
        scaling.waiting = {*scaling.new, *starting}
        if scaling.by_load:
            self._heard.clear()
            for server in self.of("server"):
                if server.joined:
                    self._tell(server.name, do="loads", number=scaling.number)
                    scaling.waiting.add(("loads", server.name))

    def _change(self, scaling: Scaling) -> MembershipChange:
        """Return who is to start where, and who goes."""
        if scaling.place is not None:
            return to_place(scaling.place, self._sitting())
        if scaling.repair:
            return MembershipChange([("server", self._site_for("server", rather=site)) for site in scaling.at], [])
        more: dict[Role, int] = {"server": scaling.servers, "worker": scaling.workers}
        return by_numbers(more, self._sitting(), replace=scaling.replace, sites=self._sites())

    def _check_change(self, scaling: Scaling, change: MembershipChange) -> None:
        """Raise InputError if nobody would be left, or somebody is to sit on a host that is gone."""
        if scaling.place is not None:
            checked(scaling.place, sites=self.terms.sites, lost=self.lost)
        if not scaling.repair:
            sitting = self._sitting()
            self._check_numbers({role: len(self.of(role)) + change.net(role, sitting) for role in ROLES})

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
        if scaling.last:
            self.scaling = None
            self._end("")
            return
        self._still = None
        change = self._change(scaling)
        seats = [(m.role, m.site) for m in self._sitting() if m.name not in change.going]
        for member in list(self.members.values()):
            member.leaving = True
            self._out.append(End(member.name))
        for role, site in sorted((*seats, *change.starts), key=lambda seat: seat[0]):
            self._launch(role, site)
        self._phase(scaling, "update")
        self.phase, self.scaling, self._restarted = "starting", None, scaling

    def _assign(self, scaling: Scaling) -> None:
        """Find out which blocks move where."""
        servers = self._with_blocks(m.name for m in self.of("server") if m.joined and m.name not in scaling.going)
        if not servers:
            self._drop_stranded(scaling, "all servers died that were to stay")
            return
        shares: dict[str, Any] = {}
        if scaling.by_load:
            if not sum(self._heard.values()):
                self._drop(scaling, "no gradients have come to the servers yet, so that there is no load to go by")
                return
            self.load = [self._heard.get(block, 0.0) for block in range(len(self.terms.sizes))]
            shares["before"] = self._shares(self.owner)
        after = self._reassign(self.owner, self.terms.sizes, servers, load=self.load)
        if scaling.by_load:
            shares["after"] = self._shares(after)
        scaling.moves = {block: name for block, name in after.items() if self.owner[block] != name}
        moved = sum(self.terms.sizes[block] for block in scaling.moves)
        columns = {"blocks": len(scaling.moves), "parameters": moved, "new": scaling.new, "going": scaling.going}
        self._phase(scaling, "assignment", **columns, **shares)

    def _shares(self, owner: Mapping[int, str]) -> dict[str, float]:
        """Return the part of the measured load that each server has."""
        load, total = self.load or [], sum(self.load or []) or 1.0
        names = sorted(set(owner.values()))
        return {name: round(sum(load[b] for b, whose in owner.items() if whose == name) / total, 4) for name in names}

    def _on_loads(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Note what a server tells of its blocks."""
        scaling = self.scaling
        if scaling is None or scaling.number != columns["number"]:
            return
        self._heard.update({int(block): float(per_s) for block, per_s in columns["loads"]})
        if columns["last"]:
            scaling.waiting.discard(("loads", member.name))

    def _with_blocks(self, servers: Iterable[str]) -> list[str]:
        """Return servers that are to have blocks, the oldest: after deaths there may be more servers than blocks."""
        return list(servers)[: len(self.terms.sizes)]

    def _drop_stranded(self, scaling: Scaling, why: str) -> None:
        """Drop a request after which no server would be left: those stay who were to go."""
        if scaling.hold is not None or self._still is not None:
            self._walk_on()
        self._drop(scaling, why)
        self._note_death()
        self._follow(self._followers_to_be())

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

    def _survive(self, gone: Collection[str], *, repair: Sequence[str]) -> bool:
        """Go on without servers, whose blocks others own from now on; False if some are lost.

        `repair` are the sites at which others are to come for them.
        """
        self._note_death()
        if repair:
            self._repair(repair)
        if self.phase != "training":
            return True
        promoted = self._promote(gone)
        if promoted is None:
            return False
        if self.scaling is not None:
            self._move_on(self.scaling, promoted)
        self._follow(self._followers_to_be())
        if self.scaling is not None and self.scaling.phase == "following":
            self.scaling.waiting = self._not_followed()
        return True

    def _repair(self, at: Sequence[str]) -> None:
        """Let servers come, and share the blocks, before anything else that was asked for."""
        self._n_scalings += 1
        self.queue.insert(0, Scaling(len(at), number=self._n_scalings, repair=True, at=tuple(at)))

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
        late = self._late(scaling)
        if self._needed(scaling.going):
            self._assign(scaling)
        elif late:
            scaling.waiting = set(late)
        else:
            self._update(scaling)

    def _late(self, scaling: Scaling) -> list[str]:
        """Return workers that must have their parameters before others go: nobody else who stays has any."""
        stay = [m for m in self.of("worker") if m.name not in scaling.going]
        goes = len(stay) < len(self.of("worker"))
        return [m.name for m in stay] if self.terms.sync and goes and not any(m.ready for m in stay) else []

    def _update(self, scaling: Scaling) -> None:
        """Let workers go on with the new owners, and those go who are to go."""
        self._phase(scaling, "update")
        if scaling.strategy == "suspend" and scaling.moves:
            self._walk_on()
        for name in scaling.going:
            if name in self.members:
                self.members[name].leaving = True
        self._note_death()
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

    def _stand_still(self, then: Callable[[], None], *, until_s: float = math.inf) -> None:
        """Let all workers stand still, and then do something; `_walk_on` ends it."""
        waiting = {m.name for m in self.members.values() if m.role == "worker" and m.ready}
        self._n_stills += 1
        self._still = Barrier(self._n_stills, waiting, then, until_s=until_s)
        self._tell_workers(do="hold", number=self._n_stills)

    def _walk_on(self) -> None:
        self._still = None
        self._tell_workers(do="go_on")

    def _save_still(self, *, needed: bool = False) -> None:
        """Save a checkpoint while everybody stands still; one that is not `needed` is given up for who is stuck."""
        self.saving = self.progress
        until_s = math.inf
        if not needed and (self.scaling is None or self.scaling.phase != "saving"):
            step_s = max(self._step_s.values(), default=0.0)
            until_s = self.now_s + STILL_LEASES * self.terms.lease_s + STILL_STEPS * step_s
        self._stand_still(self._copy_still, until_s=until_s)

    def _give_up_still(self, now_s: float) -> None:
        """Let all go on without a checkpoint if somebody does not come to stand still: it may be stuck."""
        still = self._still
        if still is None or still.begun or now_s < still.until_s:
            return
        self._unmoved = {name for name in still.waiting if name in self.members}
        version, names = self.saving, ", ".join(sorted(self._unmoved))
        self._out.append(Note("unsaved", {"version": version, "why": f"{names} did not come to stand still for it"}))
        self.saving = None
        self._walk_on()

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
            self._cut_off(newcomer.name, why)

    def _is_new(self) -> bool:
        """Tell whether the first processes of the job are all there, but not all workers have their parameters yet."""
        everybody = sum(self._numbers.values()) == len(self.members) and all(m.came for m in self.members.values())
        return everybody and self._n_ready() < len(self.of("worker"))

    def _forget(self, scaling: Scaling, member: Member) -> None:
        """Wait no longer for somebody who is gone."""
        scaling.waiting = {w for w in scaling.waiting if member.name not in (w if isinstance(w, tuple) else (w,))}
        scaling.new = [name for name in scaling.new if name != member.name]
        scaling.going = [name for name in scaling.going if name != member.name]

    def _on_holds(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._unmoved.discard(member.name)
        if self._still is not None and columns.get("number") == self._still.number:
            self._still.waiting.discard(member.name)

    def _on_held(self, member: Member, columns: Mapping[str, Any]) -> None:
        self._out.append(Note("suspended", {"name": member.name, "seconds": columns["seconds"]}))

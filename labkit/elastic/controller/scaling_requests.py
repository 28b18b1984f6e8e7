"""Requests to scale a job: what each asks for, their queue and their checks; and the end of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.core.errors import InputError, unknown
from labkit.core.events import Cause
from labkit.elastic.controller.controller_state import (
    CommandBuffer,
    ControllerState,
    Member,
    Over,
    SavedRequests,
    SavedScaling,
    SiteMembers,
    Strategy,
)
from labkit.elastic.controller.replication import LEAST_SERVERS
from labkit.elastic.protocol.messages.struct import Role
from labkit.elastic.protocol.sites import ROLES, JobPlacement, checked, of_role


@dataclass(slots=True)
class ScalingRequest:
    """One request to change the members of a job or the owners of its blocks, and its progress."""

    servers: int = 0
    workers: int = 0
    """`servers` and `workers`: how many more of each; below 0: fewer."""
    replace: tuple[str, ...] = ()
    strategy: Strategy = "handover"
    phase: str = "asked"
    """"asked"; then the published steps "registration", "assignment", "migration", ("following" with replicas,)
    "update"; with strategy "checkpoint": "saving" instead of assignment and migration."""
    new: list[str] = field(default_factory=list)
    going: list[str] = field(default_factory=list)
    """`new` and `going`: members that were started for it, and members that leave."""
    moves: dict[int, str] = field(default_factory=dict)
    """New owner of each block that moves."""
    waiting: set[Any] = field(default_factory=set)
    """What the present phase waits for: a name (its member joins or becomes ready), "still" (workers pause), ("met", a,
    b), ("owns", block, server), ("follows", block, server), ("loads", server) or ("saved", version)."""
    number: int = 0
    """Of the request, from 1."""
    repair: bool = False
    """Whether the controller asked for it itself, to replace servers that died."""
    hold: int | None = None
    """Version at which workers pause while blocks move."""
    place: JobPlacement | None = None
    """How many members there are to be at each site, instead of `servers`, `workers` and `replace`."""
    at: tuple[str, ...] = ()
    """Of a repair: the sites of the servers that died."""
    last: bool = False
    """Whether the job ends once its state is saved."""
    by_load: bool = False
    """Whether only blocks move, so that servers receive equal gradient traffic."""

    def again(self) -> ScalingRequest | None:
        """Return a fresh copy if the request means the same later: it states a result, not a difference."""
        if self.place is None and not self.last:
            return None
        return ScalingRequest(strategy=self.strategy, place=self.place, number=self.number, last=self.last)

    def after(self, counts: Mapping[Role, int]) -> dict[Role, int]:
        """Return the number of members of each role after the request, from the numbers before."""
        if self.place is not None:
            return {role: sum(of_role(self.place, role).values()) for role in ROLES}
        more = {"server": self.servers, "worker": self.workers}
        return {role: counts[role] + more[role] for role in ROLES}

    def forget(self, name: str) -> None:
        """Remove a member that is gone, and all that is awaited of it."""
        self.waiting = {w for w in self.waiting if name not in (w if isinstance(w, tuple) else (w,))}
        self.new = [new for new in self.new if new != name]
        self.going = [going for going in self.going if going != name]


class ScalingQueue:
    """The request under way, and those that wait: one is carried out after the other."""

    def __init__(self, job: ControllerState, out: CommandBuffer) -> None:
        self._job, self._out = job, out
        self.current: ScalingRequest | None = None  # the request under way
        self.waiting: list[ScalingRequest] = []  # later requests, the next one first
        self.n_asked = 0  # number of the newest request

    # --- requests come in

    def add(self, request: ScalingRequest, *, first: bool = False) -> None:
        """Append a request to the queue under the next number; `first`: before all others."""
        self.n_asked += 1
        request.number = self.n_asked
        self.waiting.insert(0 if first else len(self.waiting), request)

    def scale(self, request: ScalingRequest, place: Mapping[str, Sequence[int]] | None) -> None:
        """Check a user's request, and add it.

        Raise InputError if a role would have no member, there would be more servers than blocks, or a site is unknown
        or lost.
        """
        for n in (request.servers, request.workers):
            if isinstance(n, bool) or not isinstance(n, int):
                raise InputError(f"{n!r} servers or workers more; expected whole numbers, below 0 for fewer.")
        if place is not None:
            if request.servers or request.workers or request.replace:
                raise InputError("place, and servers, workers or replace beside it; expected one or the other.")
            request.place = checked(place, sites=self._job.terms.sites, lost=self._job.lost)
        for name in request.replace:
            if name not in self._job.members:
                raise unknown("member", name, tuple(self._job.members))
        self.check_numbers(request.after(self._planned()))
        self.add(request)

    def repair(self, at: Sequence[str]) -> None:
        """Add a request that replaces servers of these sites and moves blocks to the new ones, before all others."""
        self.add(ScalingRequest(len(at), repair=True, at=tuple(at)), first=True)

    def _planned(self) -> dict[Role, int]:
        now = [] if self.current is None else [self.current]
        under_way = [s for s in now if s.phase not in ("asked", "saving")]
        going = [name for scaling in under_way for name in scaling.going]
        counts: dict[Role, int] = {role: sum(m.name not in going for m in self._job.of(role)) for role in ROLES}
        for scaling in (*(s for s in now if s not in under_way), *self.waiting):
            counts = scaling.after(counts)
        return counts

    def check_numbers(self, planned: Mapping[Role, int]) -> None:
        """Raise InputError unless the job can run with so many members of each role."""
        terms = self._job.terms
        for role, n in planned.items():
            if n < 1:
                raise InputError(f"the job would be left with {n} {role}s; expected at least one.")
        n, n_blocks = planned["server"], len(terms.sizes)
        if terms.standby and n < LEAST_SERVERS:
            raise InputError(
                f"the job would be left with {n} server; expected at least {LEAST_SERVERS} with standby=True."
            )
        if n > n_blocks:
            raise InputError(
                f"{n} servers for {n_blocks} blocks; expected at most one per block. start(most_servers={n}) cuts a "
                "small model into more."
            )

    # --- requests are carried out, or dropped

    @property
    def settled(self) -> bool:
        """Whether no request has begun to move blocks or to save, so that a checkpoint may begin."""
        return self.current is None or self.current.phase == "registration"

    def begin_next(self) -> ScalingRequest | None:
        """Return the request under way; if there is none, the next one begins."""
        if self.current is None and self.waiting:
            self.current = self.waiting.pop(0)
        return self.current

    def arrived(self, awaited: Any) -> None:
        """Note that something for which the current request may wait has happened."""
        if self.current is not None:
            self.current.waiting.discard(awaited)

    def awaiting(self, awaited: Any) -> None:
        """Add an event that the current request waits for."""
        if self.current is not None:
            self.current.waiting.add(awaited)

    def awaits(self, awaited: Any) -> bool:
        """Return whether the current request waits for this event."""
        return self.current is not None and awaited in self.current.waiting

    def forget(self, member: Member) -> None:
        """Remove a member that is gone from the current request."""
        if self.current is not None:
            self.current.forget(member.name)

    def drop(self, why: str) -> None:
        """Drop the current request: members that were started for it end, but for servers that have blocks already."""
        if self.current is None:
            return
        self._out.note("dropped", scaling=self.current.number, why=why)
        for name in self.current.new:
            if name in self._job.members and name not in self._job.owner.values():
                self._job.members[name].leaving = True
                self._out.end(name)
        self.current = None

    def drop_waiting(self, request: ScalingRequest, why: str) -> None:
        """Drop a request that has not begun."""
        self.waiting.remove(request)
        self._out.note("dropped", scaling=request.number, why=why)

    def roll_back(self) -> list[str]:
        """Give up the current request and repairs, since a checkpoint is loaded; return the sites of those repairs.

        A current request that means the same later (`ScalingRequest.again`) goes back to the head of the queue; members
        that were started for a request stay.
        """
        scaling, self.current = self.current, None
        if scaling is not None:
            again = scaling.again()
            self._out.note("dropped" if again is None else "again", scaling=scaling.number, why="a server died")
            self.waiting[:0] = [] if again is None else [again]
        sites = [site for request in self.waiting if request.repair for site in request.at]
        self.waiting = [request for request in self.waiting if not request.repair]
        return sites

    def note_end(self) -> None:
        """Record that requests are dropped because training has ended."""
        for request in (*([self.current] if self.current is not None else []), *self.waiting):
            self._out.note("dropped", scaling=request.number, why="training has ended")

    # --- for the next controller

    def state(self) -> SavedRequests:
        """Return the state for a controller that takes over."""
        waiting = [s for s in (self.current, *self.waiting) if s is not None]
        return SavedRequests(
            n_asked=self.n_asked,
            dropped=tuple(s.number for s in waiting if not s.repair and s.again() is None),
            again=tuple(_saved(s) for s in waiting if s.again() is not None),
            repairs=tuple(() if s.new else s.at for s in waiting if s.repair),
        )

    def take_over(self, state: SavedRequests) -> None:
        """Queue the requests of an earlier controller that mean the same now; record that the others are dropped."""
        why = "the controller died"
        for number in state.dropped:
            self._out.note("dropped", scaling=number, why=why)
        for one in state.again:
            self._out.note("again", scaling=one.number, why=why)
            request = ScalingRequest(strategy=one.strategy, number=one.number, place=one.placement, last=one.last)
            self.waiting.append(request)
        for at in state.repairs:
            self.repair(at)


def _saved(request: ScalingRequest) -> SavedScaling:
    place = request.place
    rows = None if place is None else tuple(SiteMembers(site, *n) for site, n in place.items())
    return SavedScaling(request.number, rows, request.strategy, request.last)


class JobOutcome:
    """Ends the job, and knows how it ended."""

    def __init__(self, job: ControllerState, out: CommandBuffer, requests: ScalingQueue) -> None:
        self._job, self._out, self._requests = job, out, requests
        # `failure`: why the job failed; empty: it did not; `cause`: of the failure
        self.failure, self.cause = "", Cause.UNKNOWN

    def end(self, failure: str, *, cause: Cause = Cause.ERROR) -> None:
        """End the job and all its members; an empty `failure`: it ends as it should."""
        if self._job.phase == "over":
            return
        self._job.phase, self.failure, self.cause = "over", failure, cause if failure else Cause.UNKNOWN
        self._requests.note_end()
        for member in self._job.members.values():
            member.leaving = True
            self._out.end(member.name)
        self._out.add(Over(failure, self.cause))

"""What a controller writes for its successor: the content of the file `controller.json`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from labkit.core.events import Cause
from labkit.elastic.controller.controller_state import JobPhase
from labkit.elastic.controller.deaths import Death
from labkit.elastic.controller.placement import JobPlacement
from labkit.elastic.controller.strategies import Strategy
from labkit.elastic.protocol.messages.orders import Replica
from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text
from labkit.elastic.protocol.roles import Role

VERSION: Final = 1
"""Version of the file: increase it with every change of a field."""


class SiteMembers(NamedTuple):
    """Workers and servers that a placement has at a site."""

    site: Text
    workers: Count
    servers: Count


class AskedScaling(NamedTuple):
    """The id that a client gave to a request to scale, and the number of the request."""

    id: Text
    number: Count


@dataclass(frozen=True, slots=True)
class SavedMember(Struct):
    """A member; the fields are those of `Member`."""

    name: Text
    role: Role
    address: Text
    leaving: bool
    site: Text
    ever_joined: bool


@dataclass(frozen=True, slots=True)
class SavedScaling(Struct):
    """A scaling request that means the same to the next controller; the fields are those of `ScalingRequest`."""

    number: Count
    place: tuple[SiteMembers, ...] | None
    strategy: Strategy
    last: bool

    @property
    def placement(self) -> JobPlacement | None:
        """Workers and servers of each site."""
        return None if self.place is None else {one.site: (one.workers, one.servers) for one in self.place}


@dataclass(frozen=True, slots=True)
class SavedRequests(Struct):
    """Scaling requests: the current one, and those that wait.

    Attributes
    ----------
    n_asked : int
        Number of the newest request.
    dropped : tuple of int
        Numbers of requests that end with this controller.
    again : tuple of SavedScaling
        Requests that begin anew.
    repairs : tuple of tuples of str
        Of each repair, the sites of the servers that died.
    """

    n_asked: Count
    dropped: tuple[Count, ...]
    again: tuple[SavedScaling, ...]
    repairs: tuple[tuple[Text, ...], ...]


@dataclass(frozen=True, slots=True)
class SavedReplicas(Struct):
    """Replicas of blocks.

    Attributes
    ----------
    complete, pending, superseded : tuple of (int, Replica)
        Block and replica: of replicas that are complete, that have been ordered, and that a later order has replaced.
    turns : tuple of (int, int)
        Block, and number of orders so far.
    """

    complete: tuple[tuple[Count, Replica], ...]
    pending: tuple[tuple[Count, Replica], ...]
    superseded: tuple[tuple[Count, Replica], ...]
    turns: tuple[tuple[Count, Count], ...]


@dataclass(frozen=True, slots=True)
class SavedMachine(Struct):
    """State of the state machine; members report the progress of training themselves.

    Attributes
    ----------
    phase, era, saved : str, int, int
        See `ControllerState` and `CheckpointSchedule`.
    members : tuple of SavedMember
        Oldest first.
    next_server, next_worker : int
        Number of the next member of each role.
    lost : tuple of str
        Hosts that are lost.
    owners, moves : tuple of str, of int
        Of each block, by its number: its server, and how often it has changed its owner; empty before the first load.
    load : tuple of float, optional
        Gradient traffic of each block; None: never measured.
    deaths, shortages : tuple of Death
        Recent deaths, and processes that ran out of memory.
    failure, cause : str, Cause
        How the job has ended.
    requests : SavedRequests
        Scaling requests.
    replicas : SavedReplicas
        Replicas of blocks.
    """

    phase: JobPhase
    era: Count
    saved: Count
    members: tuple[SavedMember, ...]
    next_server: Count
    next_worker: Count
    lost: tuple[Text, ...]
    owners: tuple[Text, ...]
    moves: tuple[Count, ...]
    load: tuple[Number, ...] | None
    deaths: tuple[Death, ...]
    shortages: tuple[Death, ...]
    failure: str
    cause: Cause
    requests: SavedRequests
    replicas: SavedReplicas


@dataclass(frozen=True, slots=True)
class SavedProcess(Struct):
    """A process of a member that runs.

    Attributes
    ----------
    name, site : str
        Of the member.
    pid : int
        Its number on its host; 0: not known yet.
    begun_s : float, optional
        When it was ordered to start, on the monotonic clock of this machine; None: it has joined.
    """

    name: Text
    site: Text
    pid: Count
    begun_s: Number | None


@dataclass(frozen=True, slots=True)
class SavedController(Struct):
    """State of a controller.

    Attributes
    ----------
    version : int
        `VERSION` of the labkit that has written it.
    machine : SavedMachine
        State of the state machine.
    processes : tuple of SavedProcess
        Processes that run.
    asked : tuple of AskedScaling
        Requests of clients, whose repetition the next controller recognises.
    """

    version: Literal[1]
    machine: SavedMachine
    processes: tuple[SavedProcess, ...]
    asked: tuple[AskedScaling, ...]

    def contradiction(self, *, sites: Collection[str], n_blocks: int) -> str:
        """Return the first field that contradicts the job's description, with its value; "": there is none."""
        machine = self.machine
        for where, site in self._sites():
            if site not in sites:
                return f"SavedController.{where} is {site!r}: expected one of {', '.join(sites)}"
        owned, measured = machine.owners or machine.moves, machine.load is not None
        for where, row, full in (
            ("owners", machine.owners, owned), ("moves", machine.moves, owned), ("load", machine.load or (), measured),
        ):  # fmt: skip
            if len(row) != n_blocks and full:
                return f"SavedController.machine.{where} has {len(row)} blocks: expected {n_blocks}"
        for where, block in self._replicated():
            if block >= n_blocks:
                return f"SavedController.machine.replicas.{where} is {block}: expected a number below {n_blocks}"
        return ""

    def _replicated(self) -> Iterator[tuple[str, int]]:
        """Return each field of the replicas that names a block, and the block."""
        known = self.machine.replicas
        for where, rows in (("complete", known.complete), ("pending", known.pending), ("superseded", known.superseded)):
            for i, (block, _) in enumerate(rows):
                yield f"{where}.{i}.0", block
        for i, (block, _) in enumerate(known.turns):
            yield f"turns.{i}.0", block

    def _sites(self) -> Iterator[tuple[str, str]]:
        """Return each field that names a site, and the site."""
        for i, member in enumerate(self.machine.members):
            yield f"machine.members.{i}.site", member.site
        for i, process in enumerate(self.processes):
            yield f"processes.{i}.site", process.site
        for i, scaling in enumerate(self.machine.requests.again):
            for k, one in enumerate(scaling.place or ()):
                yield f"machine.requests.again.{i}.place.{k}.site", one.site

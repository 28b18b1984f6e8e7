"""Messages from outside of a training: of clients to the controller, and between it and the launchers of hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from labkit.elastic.protocol.messages.struct import Count, Loss, Number, Role, Struct, Text, Whole
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A worker or server of a job.

    Attributes
    ----------
    name, role, site : str
        ps-0 or worker-3; "server" or "worker"; the device group that holds it.
    pid : int
        Process number on its host; 0 while it is unknown.
    joined : bool
        Whether it has connected to the controller.
    cores, memory_gb : float or None
        Cores in use over the last second or so, and GB resident; None while unknown, or where the host has no such
        figure.
    most_cores, most_gb : float or None
        Limits that `Job.resize` set; None: no limit.
    """

    name: Text
    role: Text
    site: Text
    pid: Count
    joined: bool
    cores: Number | None = None
    memory_gb: Number | None = None
    most_cores: Number | None = None
    most_gb: Number | None = None


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that ended unexpectedly.

    Attributes
    ----------
    name, role : str
        Of the member.
    cause : str
        Name of a `labkit.core.Cause`.
    reason : str
        The cause in words.
    time : float
        Seconds since 1970, on the controller's clock.
    """

    name: Text
    role: Text
    cause: Text
    reason: Text
    time: Number


class MemberLimit(NamedTuple):
    """Cores and GB of memory that a member may use; None: no limit."""

    cpus: Number | None
    memory_gb: Number | None


# --- requests


class Request(Struct):
    """Base of all requests; `WORD` names a request in messages to users."""

    __slots__ = ()
    WORD: ClassVar[str]


@dataclass(frozen=True, slots=True)
class GetStatus(Request):
    """Return `JobStatus`."""

    WORD: ClassVar[str] = "status"


@dataclass(frozen=True, slots=True)
class StopJob(Request):
    """End the job; `save`: after a checkpoint. The answer is `Accepted`."""

    WORD: ClassVar[str] = "stop"

    save: bool = False


@dataclass(frozen=True, slots=True)
class ResizeMembers(Request):
    """Give members other limits, by name. The answer is `Accepted`."""

    WORD: ClassVar[str] = "resize"

    limits: dict[Text, MemberLimit]


@dataclass(frozen=True, slots=True)
class ScaleJob(Request):
    """Add, remove or replace members, or set those of each site. The answer is `ScalingAccepted`."""

    WORD: ClassVar[str] = "scale"

    id: Text
    """Of the request: if it is repeated, it is carried out once."""
    strategy: Text
    """One of `STRATEGIES` of the controller."""
    servers: Whole = 0
    workers: Whole = 0
    """`servers` and `workers`: how many more; below 0: fewer."""
    replace: list[Text] = field(default_factory=list)
    place: dict[Text, list[Whole]] | None = None
    """Workers and servers of each site, instead."""


@dataclass(frozen=True, slots=True)
class BalanceJob(Request):
    """Move blocks so that servers receive equal gradient traffic; `id` as in `ScaleJob`, and the answer too."""

    WORD: ClassVar[str] = "balance"

    id: Text
    strategy: Text


ClientRequest = GetStatus | StopJob | ResizeMembers | ScaleJob | BalanceJob

# --- answers


@dataclass(frozen=True, slots=True)
class Accepted(Struct):
    """The request will be carried out."""


@dataclass(frozen=True, slots=True)
class ScalingAccepted(Struct):
    """The request will be carried out as the scaling of a number."""

    scaling: Count


@dataclass(frozen=True, slots=True)
class JobStatus(Struct):
    """Phase, completed steps, newest loss, members that are not leaving, and members that were lost."""

    phase: Text
    step: Count
    loss: Loss | None
    members: list[MemberStatus]
    lost: list[LostMember]


ClientAnswer = Accepted | ScalingAccepted | JobStatus


class MeasuredUsage(NamedTuple):
    """Processor seconds of a process until `at_s` of its host's monotonic clock, and GB; None where unknown."""

    at_s: Number
    cpu_s: Number | None
    memory_gb: Number | None


# --- orders of the controller


@dataclass(frozen=True, slots=True)
class StartMember(Struct):
    """Start a member."""

    name: Text
    role: Role
    """`name` and `role`: name of the member, and "server" or "worker"."""
    site: Site = NOWHERE_ELSE
    """Device group that is to hold it."""
    gently: bool = False
    """True while others train: it gets ready at a low priority."""
    files: dict[Text, Text] = field(default_factory=dict, repr=False)
    """Its certificate and key, content by name; empty for a launcher that has the job's secrets itself."""


@dataclass(frozen=True, slots=True)
class KillMember(Struct):
    """Kill a member, if it is there."""

    name: Text


@dataclass(frozen=True, slots=True)
class EndLauncher(Struct):
    """End all members and the launcher itself: the job is over, or another launcher of the host has connected."""


LauncherOrder = StartMember | KillMember | EndLauncher

# --- reports to the controller


@dataclass(frozen=True, slots=True)
class Hosting(Struct):
    """The first report of a connection: process numbers of the members that run, by name."""

    running: dict[Text, Count]


@dataclass(frozen=True, slots=True)
class MemberStarted(Struct):
    """A member runs."""

    name: Text
    pid: Count


@dataclass(frozen=True, slots=True)
class MemberEnded(Struct):
    """A member has ended, with an exit code; -1: unknown."""

    name: Text
    code: Whole


@dataclass(frozen=True, slots=True)
class StartFailed(Struct):
    """A member cannot be started."""

    name: Text
    why: Text


@dataclass(frozen=True, slots=True)
class UsageMeasured(Struct):
    """What members have used so far, by name."""

    readings: dict[Text, MeasuredUsage]


@dataclass(frozen=True, slots=True)
class Leaving(Struct):
    """The launcher ends, and all its members have ended."""


LauncherNews = MemberStarted | MemberEnded | StartFailed | UsageMeasured | Leaving
LauncherReport = Hosting | LauncherNews

"""Messages between the controller and the launchers of other hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text, Whole
from labkit.elastic.protocol.roles import Role
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site


class MeasuredUsage(NamedTuple):
    """Processor seconds of a process until `at_s` of its host's monotonic clock, and GB; None where unknown."""

    at_s: Number
    cpu_s: Number | None
    memory_gb: Number | None


# --- orders of the controller


@dataclass(frozen=True, slots=True)
class StartMember(Struct):
    """Start a member.

    Attributes
    ----------
    name, role : str
        Name of the member, and "server" or "worker".
    site : Site
        Device group that is to hold it.
    gently : bool
        True while others train: it gets ready at a low priority.
    files : dict
        Its certificate and key, content by name; empty for a launcher that has the job's secrets itself.
    """

    name: Text
    role: Role
    site: Site = NOWHERE_ELSE
    gently: bool = False
    files: dict[Text, Text] = field(default_factory=dict, repr=False)


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


LauncherReport = Hosting | MemberStarted | MemberEnded | StartFailed | UsageMeasured | Leaving

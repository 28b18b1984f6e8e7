"""What a controller says: start a process, end one, tell a member something, write down what has happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from labkit.core.events import Cause

Role = Literal["server", "worker"]

HERE: Final = "here"
"""Site, and host, of everybody in a job that has no sites."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process, on a site."""

    name: str
    role: Role
    site: str = HERE


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
class Keep:
    """Write a checkpoint of the copies of a version, with the state of the shard queue if there is one."""

    version: int
    queue: Any = None


@dataclass(frozen=True, slots=True)
class Note:
    """Write down that something has happened."""

    event: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Over:
    """The job has ended; why, if not as it should."""

    failure: str = ""
    cause: Cause = Cause.UNKNOWN


Command = Start | End | Tell | Load | Keep | Note | Over

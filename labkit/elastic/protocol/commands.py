"""Commands that the controller's state machine returns, and that its process carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.core.events import Cause
from labkit.elastic.protocol.messages.orders import Order
from labkit.elastic.protocol.roles import HERE, Role
from labkit.elastic.shards import SavedShards


@dataclass(frozen=True, slots=True)
class Start:
    """Start a member on a site."""

    name: str
    role: Role
    site: str = HERE


@dataclass(frozen=True, slots=True)
class End:
    """End a member: send it the order `stop`, or kill it."""

    name: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Send an order to a member."""

    to: str
    order: Order


@dataclass(frozen=True, slots=True)
class Load:
    """Send the blocks of the newest good checkpoint, with its version, to their owners."""

    era: int
    owner: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Keep:
    """Write a checkpoint of the copies of a version, with the state of the shard queue, if the job has one."""

    version: int
    queue: SavedShards | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Write an event."""

    event: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Over:
    """End the job; `failure` has the reason of a failure, "" if there was none."""

    failure: str = ""
    cause: Cause = Cause.UNKNOWN


Command = Start | End | Tell | Load | Keep | Note | Over

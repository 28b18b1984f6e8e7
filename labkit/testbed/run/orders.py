"""The orders that task.sock of a job accepts, and their replies: one JSON object to a line, each with one decoder.

An order names its kind in "do". A line that cannot be carried out is answered with {"error": why}.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

from annotated_types import Ge, Le

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.clients import LostMember, MemberStatus
from labkit.testbed.agent.shapes import shaped

if TYPE_CHECKING:
    from pydantic import ConfigDict

ReplyT = TypeVar("ReplyT")

EXAMPLES: Final = {
    "place": '{"do": "place", "place": {"a/0": [2, 1]}, "strategy": "handover"} -> {"scaling": 1}',
    "resize": '{"do": "resize", "members": {"worker-0": [2.0, null]}} -> {"members": 3}',
    "replace": '{"do": "replace", "members": ["ps-1"]} -> {}',
    "balance": '{"do": "balance"} -> {}',
    "stop": '{"do": "stop", "save": true} -> {}',
    "host_home": '{"do": "host_home", "host": "b"} -> {"archive": a tar, in base64}',
    "status": '{"do": "status"} -> {"phase", "step", "loss", "members": [{"name", "pid", "cores", ...}]}',
}
"""An example of each order and its reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    """Move the job to a placement: site -> (workers, servers). Reply: `ScalingReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    place: dict[str, tuple[int, int]]
    strategy: str = "handover"
    do: Literal["place"] = "place"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOrder:
    """Limit members to cores and GB by name; all other members have no limits. Reply: `ResizeReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    members: dict[str, tuple[float | None, float | None]]
    do: Literal["resize"] = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceOrder:
    """Replace members by new processes. Reply: `DoneReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    members: list[str]
    do: Literal["replace"] = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOrder:
    """Reassign the blocks of the servers by measured load. Reply: `DoneReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    do: Literal["balance"] = "balance"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """End the job, by default with a checkpoint. Reply: `DoneReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    save: bool = True
    do: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHomeOrder:
    """Make the folder that the launcher of another host needs. Reply: `HostHomeReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    host: str
    do: Literal["host_home"] = "host_home"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOrder:
    """Report phase, step and members. Reply: `StatusReply`."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    do: Literal["status"] = "status"


JobOrder = PlaceOrder | ResizeOrder | ReplaceOrder | BalanceOrder | StopOrder | HostHomeOrder | StatusOrder


@dataclass(frozen=True, slots=True)
class ScalingReply:
    """Number of the scaling that was begun; events of the job name its end."""

    scaling: Annotated[int, Ge(0), Le(1 << 53)]


@dataclass(frozen=True, slots=True)
class ResizeReply:
    """Number of members that get limits, or lose them."""

    members: Annotated[int, Ge(0), Le(1 << 53)]


@dataclass(frozen=True, slots=True)
class DoneReply:
    """The order was carried out."""


@dataclass(frozen=True, slots=True)
class HostHomeReply:
    """A tar archive, in base64."""

    archive: str


@dataclass(frozen=True, slots=True)
class StatusReply:
    """Phase, step and members of a job: see `labkit.elastic.job.Status`."""

    phase: str
    step: int
    loss: float | None
    members: list[MemberStatus]
    lost: list[LostMember] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Why an order was not carried out."""

    error: str


JobReply = ScalingReply | ResizeReply | DoneReply | HostHomeReply | StatusReply | ErrorReply


def order_of(line: bytes) -> JobOrder:
    """Return the order of a line.

    Raises
    ------
    InputError
        If it is none.

    >>> order_of(b'{"do": "stop"}')
    StopOrder(save=True, do='stop')
    """
    from pydantic import ValidationError

    try:
        order: JobOrder = _orders().validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, fault["loc"][1:]))
        why = f"{where}: {fault['msg']}; " if where else ""
        raise InputError(f"{line[:100]!r} is no order; {why}expected one of {' '.join(EXAMPLES.values())}") from None
    return order


@cache
def _orders() -> Any:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[JobOrder, Field(discriminator="do")])


def message_of(message: JobOrder | JobReply) -> dict[str, Any]:
    """Return an order or a reply as a JSON object.

    >>> message_of(StopOrder(save=False))
    {'save': False, 'do': 'stop'}
    """
    return asdict(message)


def reply_of(kind: type[ReplyT], answer: object) -> ReplyT | ErrorReply:
    """Return the reply that came from a host as its type, or the error that came instead.

    Raises
    ------
    AgentRefused
        If it has another form than `kind`.

    >>> reply_of(ScalingReply, {"scaling": 1})
    ScalingReply(scaling=1)
    """
    decoded: ReplyT | ErrorReply
    decoded = shaped(ErrorReply if isinstance(answer, dict) and "error" in answer else kind, answer)
    return decoded

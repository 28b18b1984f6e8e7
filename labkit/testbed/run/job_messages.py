"""What a session sends to the process of a job: its request, and orders, each with one decoder, and their replies.

The request is the file request.json. An order is one JSON object in a line to task.sock, and names its kind in "do"; a
line that cannot be carried out is answered with {"error": why}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

from annotated_types import Ge, Le

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.clients import LostMember, MemberStatus
from labkit.elastic.protocol.sites import Site
from labkit.testbed.agent.messages import shaped
from labkit.testbed.run.own_scripts import HASH, SCRIPT

if TYPE_CHECKING:
    from pydantic import ConfigDict

REQUEST: Final = "request.json"
"""Name of the file, in the folder of the task; the elastic job that it starts has a `job.json` of its own below."""
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


BATCH: Final = 32
"""Samples of an update of a job that says nothing of them."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The generated dataset of a model: number of samples, and seed."""

    size: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What to train, and where.

    Attributes
    ----------
    steps, batch, shards, optimizer, sync, save_every, standby, lease_s, network, ports, loads_every_s
        As `labkit.elastic.start` takes them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    name: str = ""
    """Model, one of `labkit.elastic.models.available()`; empty with `program`."""
    program: bool = False
    """Whether the task's folder holds a saved program (`labkit.elastic.protocol.program.Program.save`) to train instead
    of a model by name."""
    script: str = ""
    code: str = ""
    samples: str = ""
    args: tuple[str, ...] = ()
    """`script`, `code`, `samples` and `args`: A script of one's own instead of both: "train.py:program", the SHA-256 of
    its code and its data, which were brought below labkit's folder here (`labkit.testbed.run.own_scripts`), and its
    arguments."""
    width: float = 1.0
    seed: int = 0
    data: DatasetSpec = field(default_factory=DatasetSpec)
    """`width`, `seed` and `data`: scale of the model's layers, seed of its parameters, and its samples."""
    steps: int
    batch: int = BATCH
    shards: int = 8
    optimizer: str = "adam"
    lr: float | None = None
    """Learning rate; None: the default of the model."""
    options: dict[str, float] = field(default_factory=dict)
    """Further arguments of the optimizer."""
    sync: bool = True
    save_every: int = 0
    standby: bool = False
    lease_s: float = 3.0
    network: str = "tls"
    ports: tuple[int, int] | None = None
    sites: Sequence[Site] = ()
    """Where members can be placed; the first site is on the home host."""
    place: dict[str, tuple[int, int]] | None = None
    """Site -> (workers, servers) at the beginning."""
    loads_every_s: float = 0.0

    def to_json(self) -> bytes:
        """Return the content of request.json."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> JobRequest:
        """Read a request.json; InputError with every fault of the file."""
        from pydantic import TypeAdapter, ValidationError

        from labkit.core.faults import fault_report

        try:
            request = TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; expected a job's description there.") from None
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()]
            raise InputError(fault_report(str(path), faults)) from None
        if bool(request.name) + request.program + bool(request.script) != 1:
            raise InputError(f'{path}: expected one of the name of a model, "program": true, and a script.')
        if request.script and not (SCRIPT.fullmatch(request.script) and HASH.fullmatch(request.code)):
            raise InputError(
                f"{path}: script is {request.script!r}, of code {request.code!r}; expected FILE.py and SHA-256."
            )
        if request.samples and not HASH.fullmatch(request.samples):
            raise InputError(f"{path}: samples is {request.samples!r}; expected a SHA-256.")
        return request


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

"""Reports of servers and workers to the controller, most of which it writes as events of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

from labkit.elastic.protocol.messages.struct import Count, Loss, Metrics, Number, Struct, Text, Whole


class ShardLoss(NamedTuple):
    """Loss of a logical shard of a batch."""

    shard: Count
    loss: Loss


class ShardMetrics(NamedTuple):
    """Metrics beside the loss of a logical shard, by name."""

    shard: Count
    values: Metrics


class BlockLoad(NamedTuple):
    """Bytes of gradients per second that a block receives."""

    block: Count
    per_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport(Struct):
    """Base of all reports; one of an earlier era than the controller's has no effect."""

    EVENT: ClassVar[str] = ""
    """Name of the event of the job that the controller writes; "": none. Its columns are the fields."""
    era: Count | None = None
    """Era in which it was sent; None: it holds in any."""


@dataclass(frozen=True, slots=True)
class TrainingBegun(MemberReport):
    """A worker has the parameters of a version."""

    EVENT: ClassVar[str] = "ready"
    version: Count


@dataclass(frozen=True, slots=True)
class FellBehind(MemberReport):
    """The job has gone on without a worker: it waits for a later version."""

    EVENT: ClassVar[str] = "behind"
    version: Count


@dataclass(frozen=True, slots=True)
class StepDone(MemberReport):
    """A synchronous worker has completed a step: seconds that it computed and waited, and shards that it computed."""

    EVENT: ClassVar[str] = "stepped"
    version: Count
    shards: Count
    compute_s: Number
    wait_s: Number


@dataclass(frozen=True, slots=True)
class UpdateDone(MemberReport):
    """An asynchronous worker has made an update."""

    EVENT: ClassVar[str] = "stepped"
    version: Count
    """Of the parameters, after it."""
    token: Count
    until: Count
    """`token` and `until`: lease of its samples, and the position up to which they are done."""
    loss: Loss
    """Of its minibatch."""
    staleness: Whole
    """Updates that others made meanwhile."""
    compute_s: Number
    wait_s: Number
    """`compute_s` and `wait_s`: seconds of the gradient, and of the update."""
    metrics: Metrics = field(default_factory=dict)
    """What the loss function returned beside the loss, by name."""
    again: bool = False
    """Whether it may have been reported before, to a controller that died."""


@dataclass(frozen=True, slots=True)
class ShardLosses(MemberReport):
    """Losses of logical shards of a step; `again`: they may have been reported before.

    With `weights`, one for each loss, the losses are sums.
    """

    version: Count
    losses: list[ShardLoss]
    metrics: list[ShardMetrics] = field(default_factory=list)
    weights: list[Number] = field(default_factory=list)
    again: bool = False


@dataclass(frozen=True, slots=True)
class NotFinite(MemberReport):
    """A loss is not finite: of a logical shard (synchronous), or of the minibatch at a position of an epoch."""

    EVENT: ClassVar[str] = "not_finite"
    version: Count
    loss: Loss
    shard: Count | None = None
    epoch: Count | None = None
    start: Count | None = None


@dataclass(frozen=True, slots=True)
class TrainingDone(MemberReport):
    """A worker has completed the last step."""

    EVENT: ClassVar[str] = "done"
    version: Count


@dataclass(frozen=True, slots=True)
class Paused(MemberReport):
    """A worker has paused as ordered; `number` is that of `Pause`."""

    EVENT: ClassVar[str] = "holds"
    version: Count
    number: Count | None = None


@dataclass(frozen=True, slots=True)
class Resumed(MemberReport):
    """A worker goes on after so many seconds of a pause."""

    EVENT: ClassVar[str] = "held"
    version: Count
    seconds: Number


@dataclass(frozen=True, slots=True)
class WantsLease(MemberReport):
    """An asynchronous worker asks for samples."""

    EVENT: ClassVar[str] = "wants"


# --- of servers, on blocks


@dataclass(frozen=True, slots=True)
class OwnsBlock(MemberReport):
    """A server owns a block."""

    EVENT: ClassVar[str] = "owns"
    block: Count
    version: Count
    moves: Count


@dataclass(frozen=True, slots=True)
class HandedOver(MemberReport):
    """The new owner of a block has confirmed it: `seconds` and `bytes` of the transfer."""

    EVENT: ClassVar[str] = "handed_over"
    block: Count
    version: Count
    owner: Text
    moves: Count
    seconds: Number
    bytes: Count


@dataclass(frozen=True, slots=True)
class TransferUnconfirmed(MemberReport):
    """A block was sent to a server that has not confirmed it."""

    EVENT: ClassVar[str] = "unsure"
    block: Count
    version: Count
    owner: Text
    moves: Count
    why: Text


@dataclass(frozen=True, slots=True)
class Transferring(MemberReport):
    """A block is on its way to a server."""

    EVENT: ClassVar[str] = "moving"
    block: Count
    owner: Text


@dataclass(frozen=True, slots=True)
class HasReplica(MemberReport):
    """A server has a complete replica of a block, by the order of a turn."""

    EVENT: ClassVar[str] = "shadows"
    block: Count
    turn: Count
    version: Count


@dataclass(frozen=True, slots=True)
class ReplicaFailed(MemberReport):
    """The owner of a block could not send it to a server that was to keep a replica."""

    EVENT: ClassVar[str] = "unfollowed"
    block: Count
    turn: Count
    follower: Text
    why: Text


@dataclass(frozen=True, slots=True)
class LacksReplicas(MemberReport):
    """A server was to own blocks of which it has no replica."""

    EVENT: ClassVar[str] = "lacks"
    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class BlockCopied(MemberReport):
    """A server has copied a block at a version and keeps the copy until it is asked for it with `SendCopies`."""

    block: Count
    version: Count


@dataclass(frozen=True, slots=True)
class CopyLate(MemberReport):
    """The order to copy blocks at a version, or to send the copies, came too late: they are past it."""

    EVENT: ClassVar[str] = "late"
    version: Count
    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class VersionLost(MemberReport):
    """A gradient of a version that a block does not have: that version was lost with another server."""

    EVENT: ClassVar[str] = "amiss"
    block: Count
    version: Count
    step: Count


@dataclass(frozen=True, slots=True)
class BlockLoads(MemberReport):
    """Gradient traffic of blocks, for the request of a number; `last`: it was the last part."""

    number: Count
    loads: list[BlockLoad]
    last: bool


@dataclass(frozen=True, slots=True)
class GradientsReceived(MemberReport):
    """Bytes of gradients since the last such report, and seconds of an update of the whole model if it is known."""

    EVENT: ClassVar[str] = "served"
    bytes: Count
    update_s: Number | None = None


# --- of both, on themselves and others


@dataclass(frozen=True, slots=True)
class StateReported(MemberReport):
    """The end of the answer to `ReportState`: newest version, era (`has`), and whether it trains there."""

    EVENT: ClassVar[str] = "here"
    version: Count
    has: Count
    training: bool = True


@dataclass(frozen=True, slots=True)
class Connected(MemberReport):
    """A member is connected to a server."""

    EVENT: ClassVar[str] = "met"
    server: Text


@dataclass(frozen=True, slots=True)
class ConnectFailed(MemberReport):
    """A member cannot connect to a server."""

    EVENT: ClassVar[str] = "unmet"
    server: Text
    why: Text


@dataclass(frozen=True, slots=True)
class ConnectionBroken(MemberReport):
    """A connection to another member broke; `reason` is one word, `why` a sentence."""

    EVENT: ClassVar[str] = "cut"
    peer: Text
    reason: Text
    why: Text


@dataclass(frozen=True, slots=True)
class PeerRefused(MemberReport):
    """A connection was refused; `n` counts them."""

    EVENT: ClassVar[str] = "refused"
    reason: Text
    n: Count
    why: Text


@dataclass(frozen=True, slots=True)
class LimitsSet(MemberReport):
    """A member has limited itself."""

    EVENT: ClassVar[str] = "resized"
    cpus: Number | None
    memory_gb: Number | None
    """`cpus` and `memory_gb`: limits; None: no limit."""
    cores: list[Count]
    how: Text
    """The way: see `labkit.elastic.process.limits`."""
    unable: list[Text]
    """A sentence for each limit that its host cannot keep."""


@dataclass(frozen=True, slots=True)
class Stuck(MemberReport):
    """A worker makes no progress at a place: (step, logical shard), or (epoch, position)."""

    EVENT: ClassVar[str] = "stuck"
    place: tuple[Count, Count]
    why: Text


@dataclass(frozen=True, slots=True)
class Raised(MemberReport):
    """The user's model, data or loss raised an error at a place, as `Stuck` has it; the worker ends."""

    EVENT: ClassVar[str] = "raised"
    place: tuple[Count, Count]
    why: Text


@dataclass(frozen=True, slots=True)
class OutOfMemory(MemberReport):
    """A member ran out of memory, and ends."""

    EVENT: ClassVar[str] = "no_memory"
    why: Text


@dataclass(frozen=True, slots=True)
class Failed(MemberReport):
    """An error that would occur in any other member, too: the job ends. `cause` is as events have it."""

    EVENT: ClassVar[str] = "failed"
    why: Text
    cause: Text = "error"


WorkerReport = (
    TrainingBegun | FellBehind | StepDone | UpdateDone | ShardLosses | NotFinite | TrainingDone | Paused | Resumed
    | WantsLease
)  # fmt: skip
BlockReport = (
    OwnsBlock | HandedOver | TransferUnconfirmed | Transferring | HasReplica | ReplicaFailed | LacksReplicas
    | BlockCopied | CopyLate | VersionLost | BlockLoads | GradientsReceived
)  # fmt: skip
ProcessReport = (
    StateReported | Connected | ConnectFailed | ConnectionBroken | PeerRefused | LimitsSet | Stuck | Raised
    | OutOfMemory | Failed
)  # fmt: skip
Report = WorkerReport | BlockReport | ProcessReport

SendReport = Callable[[Report], None]
"""Sends the controller a report."""


NOTHING: Final[tuple[object, ...]] = (None, {}, [])
"""Values of an optional field that a report does not have."""


def columns_of(report: Report) -> dict[str, Any]:
    """Return the columns of the event that a report becomes: its fields, without optional ones that it does not have.

    >>> from labkit.elastic.protocol.messages.reports import Paused
    >>> columns_of(Paused(7, era=2))
    {'era': 2, 'version': 7}
    """
    kind: Any = type(report)
    values = ((name, getattr(report, name), optional) for name, optional in _fields(kind))
    return {name: value for name, value, optional in values if value not in NOTHING or not optional}


@cache
def _fields(kind: Any) -> list[tuple[str, bool]]:
    """Return the fields of a report, and whether they are optional: None or empty by default."""
    return [(field.name, field.default is None or field.default_factory is not MISSING) for field in fields(kind)]

"""Orders of the controller to servers and workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text


class OwnedBlock(NamedTuple):
    """A block, the server that owns it, and how often it has changed its owner."""

    block: Count
    owner: Text
    moves: Count


class BlockMove(NamedTuple):
    """A block, and the server that is to own it."""

    block: Count
    owner: Text


class NewReplica(NamedTuple):
    """A block, the server that is to keep a replica of it, and the turn of the order."""

    block: Count
    server: Text
    turn: Count


class BlockTurn(NamedTuple):
    """A block, and the turn of the order by which a server keeps a replica of it."""

    block: Count
    turn: Count


class BlockMoves(NamedTuple):
    """A block, and how often it has changed its owner."""

    block: Count
    moves: Count


class Replica(NamedTuple):
    """A server that keeps a replica of a block, and the turn of the order by which it does."""

    server: Text
    turn: Count


class ReplicasOfBlock(NamedTuple):
    """A block, the turn of its latest order, and its replicas: of orders up to that turn, only these are valid."""

    block: Count
    turn: Count
    replicas: list[Replica]


class SampleLease(NamedTuple):
    """The right to train on samples: positions `start` to before `end` of the order of an epoch."""

    token: Count
    epoch: Count
    start: Count
    end: Count


# --- to servers and workers


@dataclass(frozen=True, slots=True)
class Stop(Struct):
    """End at once."""


@dataclass(frozen=True, slots=True)
class ConnectTo(Struct):
    """Connect to a server, and report `Connected` or `ConnectFailed`."""

    server: Text
    address: Text


@dataclass(frozen=True, slots=True)
class ReportState(Struct):
    """Report everything that a new controller must know; the last report is `StateReported`."""


@dataclass(frozen=True, slots=True)
class SetLimits(Struct):
    """Use at most these cores and GB of memory from now on; None: no limit."""

    cpus: Number | None
    memory_gb: Number | None


# --- to workers


@dataclass(frozen=True, slots=True)
class BeginTraining(Struct):
    """Fetch the parameters, and train."""

    era: Count
    version: Count
    """Version to fetch (synchronous training)."""
    shards: tuple[Count, Count]
    """Logical shards of a batch that it computes, from the first to before the last (synchronous training)."""
    pause: Count
    """Number of the pause in progress; 0: none (asynchronous training)."""
    owners: list[OwnedBlock]
    replicas: list[ReplicasOfBlock] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AssignShards(Struct):
    """Compute these logical shards of a batch, from the first to before the last."""

    first: Count
    last: Count


@dataclass(frozen=True, slots=True)
class SetOwners(Struct):
    """Use these owners of blocks, if they are newer than what is known."""

    era: Count
    owners: list[OwnedBlock]


@dataclass(frozen=True, slots=True)
class SetReplicas(Struct):
    """Use these replicas of blocks; `servers` are all servers that exist."""

    blocks: list[ReplicasOfBlock]
    servers: list[Text]


@dataclass(frozen=True, slots=True)
class PauseAtVersion(Struct):
    """Pause at a version (synchronous training), report `Paused`, and wait for `Resume`."""

    version: Count


@dataclass(frozen=True, slots=True)
class Pause(Struct):
    """Pause after the update in progress (asynchronous training), report `Paused` with the number of the pause."""

    number: Count


@dataclass(frozen=True, slots=True)
class Resume(Struct):
    """Go on after a pause."""


@dataclass(frozen=True, slots=True)
class Halt(Struct):
    """Drop the step in progress: training goes back to a checkpoint in a new era, which `BeginTraining` begins."""

    era: Count


@dataclass(frozen=True, slots=True)
class FinishStep(Struct):
    """End when the step or update in progress is done."""


@dataclass(frozen=True, slots=True)
class GrantLease(Struct):
    """Train on these samples (asynchronous training)."""

    era: Count
    lease: SampleLease


@dataclass(frozen=True, slots=True)
class ConfirmLeases(Struct):
    """Drop all leases but those with these tokens, and add those of `leases` that are not known."""

    era: Count
    tokens: list[Count]
    leases: list[SampleLease]


@dataclass(frozen=True, slots=True)
class RevokeLease(Struct):
    """Drop a lease: another worker may have the samples."""

    token: Count


# --- to servers


@dataclass(frozen=True, slots=True)
class BeginEra(Struct):
    """Drop all blocks: those of a checkpoint will arrive."""

    era: Count


@dataclass(frozen=True, slots=True)
class HandOver(Struct):
    """Hand blocks over to other servers."""

    moves: list[BlockMove]
    version: Count | None
    """Version at which all of them leave; None: a few with each of the next versions."""
    turn: tuple[Count, Count] = (0, 1)
    """(i, n): it is the i-th of n servers that hand over at the same time."""


@dataclass(frozen=True, slots=True)
class TakeBack(Struct):
    """Own blocks again that their new owner never had."""

    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class ForgetBlocks(Struct):
    """Free blocks that were kept until the controller knew that their new owner has them."""

    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class Replicate(Struct):
    """Create replicas of own blocks on other servers."""

    blocks: list[NewReplica]


@dataclass(frozen=True, slots=True)
class Promote(Struct):
    """Own the blocks of which this server has replicas: their owner is gone."""

    blocks: list[BlockMoves]


@dataclass(frozen=True, slots=True)
class DropReplicas(Struct):
    """Drop replicas of blocks that began in a turn or before it."""

    blocks: list[BlockTurn]


@dataclass(frozen=True, slots=True)
class CopyBlocks(Struct):
    """Copy every block at a version, for a checkpoint; report `BlockCopied` for each."""

    version: Count


@dataclass(frozen=True, slots=True)
class SendCopies(Struct):
    """Send the controller the copies of blocks at a version, and drop those of earlier versions."""

    version: Count
    turn: Count
    """Number of the controller's attempt, which the frames repeat as their offset."""
    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class DropCopies(Struct):
    """Drop the copies of blocks at a version and at earlier ones: no checkpoint needs them."""

    version: Count


@dataclass(frozen=True, slots=True)
class MeasureLoads(Struct):
    """Report `BlockLoads` for a request to balance servers, with its number."""

    number: Count


TrainingOrder = (
    Stop | ReportState | BeginTraining | AssignShards | SetOwners | SetReplicas | PauseAtVersion
    | Pause | Resume | Halt | FinishStep | GrantLease | ConfirmLeases | RevokeLease
)  # fmt: skip
"""Orders for the thread of a worker that computes."""
WorkerOrder = TrainingOrder | ConnectTo | SetLimits
"""What a worker may be ordered."""
BlockOrder = (
    BeginEra
    | HandOver
    | TakeBack
    | ForgetBlocks
    | Replicate
    | Promote
    | DropReplicas
    | CopyBlocks
    | SendCopies
    | DropCopies
    | MeasureLoads
)
"""Orders to a server about its blocks."""
ServerOrder = BlockOrder | Stop | ConnectTo | ReportState | SetLimits
"""What a server may be ordered."""
Order = WorkerOrder | ServerOrder

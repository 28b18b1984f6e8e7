"""Messages about blocks of parameters, between servers and workers; the head of their frame has block and version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text


class MovedBlock(NamedTuple):
    """A block, the first version that its new owner makes, and how often it has changed its owner."""

    block: Count
    version: Count
    moves: Count


class ReplicatedBlock(NamedTuple):
    """A block, the first version that a replica makes itself, and the turn of the order for the replica."""

    block: Count
    version: Count
    turn: Count


class AppliedUpdate(NamedTuple):
    """The latest update of an asynchronous worker that a block contains, by the numbers of worker and update."""

    worker: Count
    number: Count


class SentFollower(NamedTuple):
    """The replica of an owned block: its server, its first version, its turn, and whether the block was sent to it."""

    server: Text
    version: Count
    turn: Count
    sent: bool


@dataclass(frozen=True, slots=True)
class Gradient(Struct):
    """Worker to server: the payload is the gradient of a block."""

    moves: Count
    """Number of moves of the block that the worker knows of."""
    update: Count = 0
    """Number of the worker's update (asynchronous training)."""
    weight: Number | None = None
    """Sum of the weights of its logical shards; None: a shard's loss is a mean, and all shards count the same."""


@dataclass(frozen=True, slots=True)
class BlockNorms(Struct):
    """Server to worker: the norm of the gradient of each parameter of a block, as the bits of its float32 number."""

    bits: list[Count]


@dataclass(frozen=True, slots=True)
class WholeNorm(Struct):
    """Worker to server, and back to workers that lack it: the norm of the whole gradient, as float32 bits."""

    bits: Count


@dataclass(frozen=True, slots=True)
class Pull(Struct):
    """Worker to server: send these blocks when they have reached a version; `moves` that the worker knows of."""

    blocks: list[Count]
    moves: list[Count]


@dataclass(frozen=True, slots=True)
class BlocksMoved(Struct):
    """Server to worker: the new owner of blocks."""

    owner: Text
    address: Text
    """`owner` and `address`: name and address of the server; "": none, the era is over."""
    blocks: list[MovedBlock]
    era: Count
    """In which this holds."""
    gone: bool = False
    """True: the blocks have left the sender; False: they will, at the version."""


@dataclass(frozen=True, slots=True)
class ReplicasAdded(Struct):
    """Server to worker: another server has replicas of blocks from a version on."""

    server: Text
    blocks: list[ReplicatedBlock]


@dataclass(frozen=True, slots=True)
class AwaitReplicas(Struct):
    """Worker to server: answer `ReplicasReady` when its replicas of these blocks have made a version."""

    blocks: list[Count]


@dataclass(frozen=True, slots=True)
class ReplicasReady(Struct):
    """Server to worker: its replicas have made a version."""

    server: Text


@dataclass(frozen=True, slots=True)
class BlockState(Struct):
    """Server to server or controller, controller to server: the payload is a block with its optimizer state."""

    version: Count
    moves: Count
    """`version` and `moves`: version of the block, and how often it has changed its owner."""
    due: list[Count] = field(default_factory=list)
    """Versions at which it must be copied for a checkpoint."""
    names: list[Text] = field(default_factory=list)
    """Names of the optimizer's vectors, which follow the parameters in the payload."""
    seen: list[AppliedUpdate] = field(default_factory=list)
    """Updates of asynchronous workers that it contains."""
    follower: SentFollower | None = None
    """Its replica, for its new owner."""
    replica_turn: Count | None = None
    """The receiver becomes a replica by the order of this turn; None: it becomes the owner."""

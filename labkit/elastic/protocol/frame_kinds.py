"""Kinds of frames between the processes of a job, and the encoding of versions.

`Head.block` is the number of a parameter block. `Head.step` is a version, the number of updates of the parameters, with
the era in its upper bits. An era begins when training returns to a checkpoint; frames of another era are ignored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

STEP_BITS: Final = 40


class FrameKind(IntEnum):
    """Kinds of frames, and the message in their meta part; w: worker, s: server, c: controller, l: launcher of a host.

    The messages are in `labkit.elastic.protocol.messages`.
    """

    PUSH = 16
    """w to s: `Gradient` of a block; `offset` is the node of the summation tree, or the worker's number if async."""
    PULL = 17
    """w to s: `Pull`, a request for blocks, to be answered when they have reached a version."""
    PARAMS = 18
    """s to w: the parameters of a block, without a message."""
    MOVED = 19
    """s to w: `BlocksMoved`, the new owner of blocks."""
    STATE = 20
    """s to s, c to s: `BlockState` with a block; a request that is answered when the block is installed."""
    SNAPSHOT = 21
    """s to c: `BlockState` with a copy of a block; `offset` is the turn of the order that asked for it."""
    REPLICAS_ADDED = 22
    """s to w: `ReplicasAdded`, a server with replicas of blocks from a version on."""
    AWAIT_REPLICAS = 23
    """w to s: `AwaitReplicas`, a request to answer when replicas have reached a version."""
    REPLICAS_READY = 24
    """s to w: `ReplicasReady`, the answer to AWAIT_REPLICAS."""
    PUSH_REPLICA = 25
    """w to s: as PUSH, to a server with a replica; it keeps gradients that come before the block."""
    ORDER = 32
    """c to w and s: one of `orders.Order`; c to l: one of `launchers.LauncherOrder`."""
    REPORT = 33
    """w and s to c: one of `reports.Report`; l to c: one of `launchers.LauncherReport`."""
    CLIENT_REQUEST = 34
    """Client to c: one of `clients.ClientRequest`; a request that is answered."""


def at(era: int, version: int) -> int:
    """Return a version and its era as one number.

    >>> era_and_version(at(2, 17))
    (2, 17)
    """
    return era << STEP_BITS | version


def era_and_version(step: int) -> tuple[int, int]:
    """Return era and version of such a number."""
    return step >> STEP_BITS, step & ((1 << STEP_BITS) - 1)

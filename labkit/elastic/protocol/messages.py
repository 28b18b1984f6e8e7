"""What the processes of a job say to each other: kinds of frames, and how versions are told.

`Head.block` is a parameter block, `Head.step` a version (of the parameters: how many updates they have had) with the
era in its upper bits. An era begins whenever training goes back to a checkpoint; frames of another era are ignored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

STEP_BITS: Final = 40


class FrameKind(IntEnum):
    """Kinds of frames; w: worker, s: server, c: controller."""

    PUSH = 16
    """w to s: gradients of a block; `offset` is the node of the tree of shards, or the worker's number if async."""
    PULL = 17
    """w to s: wants blocks (meta `blocks`) at a version, as soon as they have it."""
    PARAMS = 18
    """s to w: the parameters of a block."""
    MOVED = 19
    """s to w, c to w: who has a block from a version on: meta `owner`, `address`, `moves`."""
    STATE = 20
    """s to s, c to s: a block with all that belongs to it; a request that is answered when it is in place."""
    SNAPSHOT = 21
    """s to c: the same, a copy at a version that the controller asked for."""
    FOLLOWED = 22
    """s to w: who follows blocks from a version on: meta `name`, `blocks` of (block, version, turn)."""
    ASK = 23
    """w to s: wants to hear when blocks that follow (meta `blocks`) have made a version."""
    ABREAST = 24
    """s to w: they have: meta `name` of the server."""
    BESIDE = 25
    """w to s: as PUSH, to a server that follows; it keeps what comes before it has the block."""
    TELL = 32
    """c to w and s: what to do: meta `do` and its arguments."""
    REPORT = 33
    """w and s to c: what has happened: meta `event` and its columns."""


def at(era: int, version: int) -> int:
    """Return the number that tells a version of an era.

    >>> era_and_version(at(2, 17))
    (2, 17)
    """
    return era << STEP_BITS | version


def era_and_version(step: int) -> tuple[int, int]:
    """Return era and version."""
    return step >> STEP_BITS, step & ((1 << STEP_BITS) - 1)

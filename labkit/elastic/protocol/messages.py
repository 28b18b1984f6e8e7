"""Kinds of frames between the processes of a job, and the encoding of versions.

`Head.block` is the number of a parameter block. `Head.step` is a version, the number of updates of the parameters, with
the era in its upper bits. An era begins when training returns to a checkpoint; frames of another era are ignored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

STEP_BITS: Final = 40


class FrameKind(IntEnum):
    """Kinds of frames; w: worker, s: server, c: controller."""

    PUSH = 16
    """w to s: gradients of a block; `offset` is the node of the summation tree, or the worker's number if async."""
    PULL = 17
    """w to s: a request for blocks (meta `blocks`), to be answered when they have reached a version."""
    PARAMS = 18
    """s to w: the parameters of a block."""
    MOVED = 19
    """s to w, c to w: the new owner of a block from a version on: meta `owner`, `address`, `moves`."""
    STATE = 20
    """s to s, c to s: a block with its optimizer state; a request that is answered when the block is installed."""
    SNAPSHOT = 21
    """s to c: a copy of a block with its optimizer state, at a version that the controller requested."""
    FOLLOWED = 22
    """s to w: a server with replicas of blocks from a version on: meta `name`, `blocks` of (block, version, turn)."""
    ASK = 23
    """w to s: a request to answer when replicas (meta `blocks`) have reached a version."""
    ABREAST = 24
    """s to w: the answer to ASK: meta `name` of the server."""
    BESIDE = 25
    """w to s: as PUSH, to a server with a replica; it keeps gradients that come before the block."""
    TELL = 32
    """c to w and s: an order: meta `do` and its arguments."""
    REPORT = 33
    """w and s to c: an event: meta `event` and its columns."""


def at(era: int, version: int) -> int:
    """Return a version and its era as one number.

    >>> era_and_version(at(2, 17))
    (2, 17)
    """
    return era << STEP_BITS | version


def era_and_version(step: int) -> tuple[int, int]:
    """Return era and version of such a number."""
    return step >> STEP_BITS, step & ((1 << STEP_BITS) - 1)

"""The block table of a server: one slot for each block that is here, was here or is expected, and their memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages.blocks import BlocksMoved
from labkit.elastic.protocol.messages.codec import FrameKind, encode
from labkit.elastic.protocol.messages.reports import Failed, SendReport
from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.server.block import Block
from labkit.elastic.transport import Channel, FrameError, Message, TransportError
from labkit.elastic.transport.shared_arrays import SharedArrayPool

SPARE = 64
"""Used gradient buffers of one size that are kept: to allocate and touch new memory costs more than to sum into it."""


@dataclass(slots=True)
class Follower:
    """The replica of an owned block."""

    name: str
    """The server that has the replica."""
    version: int
    """First version that the replica computes itself."""
    turn: int
    """Number of the controller's order, which counts up for each block."""
    sent: bool = False
    """Whether the block has been streamed to the replica."""


@dataclass(slots=True)
class PendingAck:
    """A worker's request to be notified when replicas of blocks have reached a version."""

    channel: Channel
    version: int
    left: set[int]
    """Blocks that have not reached the version."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self, block: int) -> bool:
        """Remove a block; return whether it was the last one."""
        with self.lock:
            known = block in self.left
            self.left.discard(block)
            return known and not self.left


@dataclass(slots=True)
class BlockSlot:
    """The state of one block on a server, whether the block is here, was here or is expected."""

    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards all other attributes."""
    block: Block | None = None
    wanted: list[tuple[Channel, int]] = field(default_factory=list)
    """(connection, version): pulls that wait for a version."""
    sent: list[tuple[Channel, int]] = field(default_factory=list)
    """(connection, frame number): replies with the current parameters that may not have left this process."""
    parked: list[tuple[Channel, Message]] = field(default_factory=list)
    """(connection, message): gradients that arrived before the block."""
    leaving: tuple[str, int] | None = None
    """(new owner, version): the hand-over that is announced, and the version at which it happens."""
    gone: BlocksMoved | None = None
    """The notice that names the owner, once the block has been handed over."""
    shadow: int | None = None
    """The turn of the order that made this block a replica of another server's block; None for a block of its own."""
    follower: Follower | None = None
    """The replica of this block on another server."""
    taken_bytes: int = 0
    rate: Rate = field(default_factory=lambda: Rate(now_s=time.monotonic()))
    """Bytes of gradients per second since the block is here."""
    asks: list[PendingAck] = field(default_factory=list)
    """Requests to be notified of a version that this replica has not reached."""

    def notice(self, moves: int) -> BlocksMoved | None:
        """Return the notice of the new owner, for a worker that knows of `moves` moves of the block.

        None if the block has not been handed over, or the worker knows of a later move: then the block is on its way
        back.
        """
        return self.gone if self.gone is not None and moves <= self.gone.blocks[0].moves else None


class BlockTable:
    """The slots of one server, and the memory of its blocks."""

    def __init__(self, *, shared_pool: SharedArrayPool | None = None) -> None:
        self.shared_pool = shared_pool
        self.era = 0
        self.lock = threading.Lock()
        self._slots: dict[int, BlockSlot] = {}
        self._spare: dict[int, deque[Vector]] = defaultdict(lambda: deque(maxlen=SPARE))

    def slot(self, number: int) -> BlockSlot:
        """Return the slot of a block."""
        with self.lock:
            return self._slots.setdefault(number, BlockSlot(number))

    def slots(self) -> list[BlockSlot]:
        """Return all slots."""
        with self.lock:
            return list(self._slots.values())

    def owned(self) -> list[list[int]]:
        """Return [block, version, moves] of every block that this server owns."""
        return [
            [s.number, s.block.version, s.block.moves] for s in self.slots() if s.block is not None and s.shadow is None
        ]

    def begin_era(self, era: int) -> list[BlockSlot]:
        """Replace all slots by new ones and return the old ones; the caller holds `lock`."""
        self.era = era
        old, self._slots = list(self._slots.values()), {}
        return old

    # --- load

    def taken_bytes(self) -> int:
        """Return the bytes of gradients received in this era."""
        return sum(slot.taken_bytes for slot in self.slots())

    def loads(self) -> list[tuple[int, float]]:
        """Return (block, bytes of gradients per second) of every block that this server owns."""
        now_s = time.monotonic()
        return [(s.number, s.rate.per_s(now_s)) for s in self.slots() if s.block is not None and s.shadow is None]

    # --- blocks in and out of slots; the caller holds the lock of the slot

    def put(self, slot: BlockSlot, block: Block) -> Block:
        """Put a block into its slot, and return the block that the slot has now.

        A replica that is there and has the same version or a later one stays: it has the same bits and more gradients.
        """
        here = slot.block
        if here is not None and here.version >= block.version:
            here.moves, here.due = block.moves, block.due
            block = here
        else:
            self.release(here)
            self._share(block)
        slot.block, slot.gone, slot.leaving = block, None, None
        slot.rate = Rate(now_s=time.monotonic())
        return block

    def drop(self, slot: BlockSlot) -> None:
        """Remove the block of a slot."""
        block, slot.block = slot.block, None
        self.release(block)

    # --- memory

    def buffer(self, n_bytes: int) -> Vector:
        """Return a float32 buffer of `n_bytes`, for gradients that are about to arrive."""
        with contextlib.suppress(IndexError):
            return self._spare[n_bytes].pop()
        return np.empty(n_bytes // 4, np.float32)

    def recycle(self, block: Block) -> None:
        """Keep the gradient buffers that a block has used up for `buffer`."""
        while block.freed:
            buffer = block.freed.pop()
            self._spare[buffer.nbytes].append(buffer)

    def _share(self, block: Block) -> None:
        """Put the parameters into shared memory if there is any."""
        block.buffer = self.buffer
        block.place = None if self.shared_pool is None else self.shared_pool.take(block.params)
        if block.place is not None:
            block.params, block.pages = block.place.params, None

    def release(self, block: Block | None) -> None:
        """Return the shared memory of a block to the pool; the block is not used any more, and not on its way."""
        if block is not None and self.shared_pool is not None:
            place, block.place = block.place, None
            self.shared_pool.give(place)


WINDOW_S: Final = 20.0
"""Seconds after which the amount so far is halved, together with its time."""
LEAST_S: Final = 0.05
"""Shortest time in seconds that an amount is divided by."""


class Rate:
    """An amount per second.

    Examples
    --------
    >>> rate = Rate(now_s=0.0)
    >>> rate.add(30.0, now_s=10.0)
    >>> rate.per_s(10.0)
    3.0
    """

    __slots__ = ("_amount", "_begun_s")

    def __init__(self, *, now_s: float) -> None:
        self._amount, self._begun_s = 0.0, now_s

    def add(self, amount: float, *, now_s: float) -> None:
        """Add an amount."""
        age_s = now_s - self._begun_s
        if age_s > WINDOW_S:
            self._amount, self._begun_s = self._amount / 2, self._begun_s + age_s / 2
        self._amount += amount

    def per_s(self, now_s: float) -> float:
        """Return the amount per second."""
        return self._amount / max(now_s - self._begun_s, LEAST_S)


class ConnectedPeers:
    """The workers and servers that are connected to one server."""

    def __init__(self, *, report: SendReport) -> None:
        self.workers: dict[Channel, int] = {}  # number of each worker, by its connection
        self.servers: dict[str, tuple[Channel, str]] = {}  # (connection, address) of each server, by name
        self._report, self._lock = report, threading.Lock()

    def add_worker(self, channel: Channel, *, number: int) -> None:
        """Add a worker, by its number."""
        with self._lock:
            self.workers[channel] = number

    def add_server(self, name: str, channel: Channel, address: str) -> None:
        """Add another server."""
        with self._lock:
            self.servers[name] = (channel, address)

    def remove(self, channel: Channel) -> None:
        """Remove the peer of a connection that has ended."""
        with self._lock:
            self.workers.pop(channel, None)
            for name in [name for name, (known, _) in self.servers.items() if known is channel]:
                del self.servers[name]

    def address_of(self, server: str) -> str:
        """Return the address of a server; empty if it is not connected."""
        with self._lock:
            return self.servers[server][1] if server in self.servers else ""

    def channel_to(self, server: str) -> Channel:
        """Return the connection to another server; raise TransportError if there is none."""
        if server not in self.servers:
            raise TransportError(f"{server} is not connected")
        return self.servers[server][0]

    def post(self, channel: Channel, kind: FrameKind, *buffers: Any, **columns: Any) -> int | None:
        """Send a frame and return its number; None if the connection has ended, which is noticed elsewhere."""
        try:
            return channel.send(kind, *buffers, **columns)
        except FrameError as error:
            self._report(Failed(f"a frame of kind {kind.name} cannot be sent: {error}"))
            return None
        except TransportError:
            return None

    def notify_workers(self, kind: FrameKind, notice: Struct, **columns: Any) -> None:
        """Send all workers a notice."""
        with self._lock:
            workers = list(self.workers)
        raw = encode(notice)
        for channel in workers:
            self.post(channel, kind, meta=raw, **columns)

"""Arrays in shared memory that peers on the same host read in place: a worker's gradients, a server's parameters.

Shared memory is written again only when no peer reads it any more. Gradients of a step are free once every block has
its next version, because all sums of the step are complete then. Parameters have a seqlock: a stamp that is odd during
an update. A reader copies the parameters, then checks that the stamp is still the announced one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.transport import Channel, Region

LINE = 16
"""Float32 numbers before the parameters: a cache line, whose first word is the stamp."""

MOST_AT_ONCE = 1 << 28
"""Bytes of the largest region that a pool allocates in advance."""


def fence(lock: threading.Lock) -> None:
    """Memory barrier: no other core sees later writes before earlier ones."""
    with lock:
        pass
    with lock:
        pass


class SharedRegions:
    """Shared regions of this process, and how many of them each peer has mapped."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._shown: WeakKeyDictionary[Channel, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def vector(self, n: int) -> Vector:
        """Return an array of n float32 numbers that peers can read and not write.

        Raise InputError if there is not enough memory.
        """
        region = Region(4 * n)
        vector = np.frombuffer(region.view, np.float32)
        vector.fill(0)  # its pages are allocated now, not in the first step
        with self._lock:
            self._regions.append(region)
        return vector

    def lend(self, channel: Channel) -> bool:
        """Offer all regions to a peer; return False if its transport copies."""
        if self._shown.get(channel) == len(self._regions):
            return True
        with self._lock:
            for region in self._regions[self._shown.get(channel, 0) :]:
                if not channel.share(region):
                    return False
            self._shown[channel] = len(self._regions)
        return True


@dataclass(slots=True)
class SharedArray:
    """The parameters of one block in shared memory, with their seqlock stamp."""

    whole: Vector
    """(16 + n,) float32: the array that is sent to peers by reference."""
    stamp: int = 0
    """Even; it changes with each update. It is the first word of `whole`."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def params(self) -> Vector:
        """(n,) float32."""
        return self.whole[LINE:]

    def open(self) -> None:
        """Begin an update: make the stamp odd."""
        self._write(self.stamp + 1)
        fence(self._lock)

    def close(self) -> None:
        """End an update: make the stamp even."""
        fence(self._lock)
        self.stamp = (self.stamp + 2) & 0xFFFFFFFF
        self._write(self.stamp)

    def _write(self, stamp: int) -> None:
        self.whole[:1].view(np.uint32)[0] = stamp


def fetch(payload: memoryview, stamp: int, into: Vector) -> bool:
    """Copy parameters out of a peer's memory; return False if the stamp is not the announced one, before or after."""
    words: NDArray[np.uint32] = np.frombuffer(payload, np.uint32)
    np.copyto(into, words[LINE:].view(np.float32))
    fence(threading.Lock())
    return int(words[0]) == stamp


class TransferBuffers(SharedRegions):
    """Buffers in shared memory for blocks that are handed over to another server on this host, which copies them.

    A buffer is returned when its block has arrived. The buffer of a block that may still be in transit is not reused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, list[Vector]] = defaultdict(list)
        self._packing = threading.Lock()

    def pack(self, vectors: Sequence[Vector], channel: Channel) -> Vector | None:
        """Return the concatenated vectors in memory shared with a peer; None if there is none, or it cannot map it."""
        n = sum(len(vector) for vector in vectors)
        with self._packing:
            try:
                buffer = self._free[n].pop() if self._free[n] else self.vector(n)
            except InputError:
                return None
        if not self.lend(channel):
            self.give(buffer)
            return None
        np.concatenate(vectors, out=buffer)
        return buffer

    def give(self, buffer: Vector | None) -> None:
        """Take a buffer back."""
        if buffer is not None:
            with self._packing:
                self._free[len(buffer)].append(buffer)


class SharedArrayPool(SharedRegions):
    """Shared arrays for the blocks of a server; returned ones are reused."""

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, list[SharedArray]] = defaultdict(list)
        self._made: dict[int, int] = defaultdict(int)
        self._taking = threading.Lock()

    def take(self, params: Vector) -> SharedArray | None:
        """Return a shared array with these parameters; None if there is no memory for it."""
        n = len(params)
        with self._taking:
            try:
                place = self._free[n].pop() if self._free[n] else self._more(n)
            except InputError:
                return None
        place.open()
        place.params[:] = params
        place.close()
        return place

    def give(self, place: SharedArray | None) -> None:
        """Take a shared array back."""
        if place is not None:
            with self._taking:
                self._free[len(place.whole) - LINE].append(place)

    def _more(self, n: int) -> SharedArray:
        """Return an array in a new region, half as large as all before it together, and keep the rest of it."""
        each = LINE * -(-(LINE + n) // LINE)
        count = max(1, min(self._made[n] // 2, MOST_AT_ONCE // (4 * each)))
        vector = self.vector(count * each)
        self._made[n] += count
        places = [SharedArray(vector[start : start + LINE + n]) for start in range(0, count * each, each)]
        self._free[n] += places[1:]
        return places[0]

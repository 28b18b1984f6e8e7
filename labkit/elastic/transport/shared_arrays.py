"""Memory of this process that peers on the same host read in place: a worker's gradients, a server's parameters.

What is lent is written again only when nobody reads it any more. Gradients of a step are free once every block has its
next version: all sums of the step have been made then. Parameters bear a stamp that is odd while they change: who
copies them looks afterwards whether it is still the one that was announced.
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
"""Numbers before the parameters: a cache line, of which the stamp is the first word."""

MOST_AT_ONCE = 1 << 28
"""Bytes of the largest region that a shelf asks for before it is needed."""


def fence(lock: threading.Lock) -> None:
    """Let nothing that comes after be seen before what came before, also on machines that reorder freely."""
    with lock:
        pass
    with lock:
        pass


class SharedRegions:
    """Regions of this process, and which peer has been shown how many of them."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._shown: WeakKeyDictionary[Channel, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def vector(self, n: int) -> Vector:
        """Return room for n numbers, which peers may read and not write.

        Raises
        ------
        InputError
            If there is not as much memory.
        """
        region = Region(4 * n)
        vector = np.frombuffer(region.view, np.float32)
        vector.fill(0)  # its pages are found now, not in the first step
        with self._lock:
            self._regions.append(region)
        return vector

    def lend(self, channel: Channel) -> bool:
        """Let a peer see all that there is; False where the transport copies."""
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
    """Room for the parameters of one block and their stamp.

    Attributes
    ----------
    whole : array
        (16 + n,) float32: what a peer is referred to.
    stamp : int
        Even; another one after each change. The peer finds it in the first word.
    """

    whole: Vector
    stamp: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def params(self) -> Vector:
        """(n,) float32."""
        return self.whole[LINE:]

    def open(self) -> None:
        """Say that the parameters are about to change."""
        self._write(self.stamp + 1)
        fence(self._lock)

    def close(self) -> None:
        """Say that they have changed."""
        fence(self._lock)
        self.stamp = (self.stamp + 2) & 0xFFFFFFFF
        self._write(self.stamp)

    def _write(self, stamp: int) -> None:
        self.whole[:1].view(np.uint32)[0] = stamp


def fetch(payload: memoryview, stamp: int, into: Vector) -> bool:
    """Copy parameters out of a peer's memory; False if they changed meanwhile, or are no longer what was announced."""
    words: NDArray[np.uint32] = np.frombuffer(payload, np.uint32)
    np.copyto(into, words[LINE:].view(np.float32))
    fence(threading.Lock())
    return int(words[0]) == stamp


class TransferBuffers(SharedRegions):
    """Room for blocks on their way to another server on this host, which copies them from there.

    A crate is given back when its block has arrived. One whose block may still be on its way is not used again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, list[Vector]] = defaultdict(list)
        self._packing = threading.Lock()

    def pack(self, vectors: Sequence[Vector], channel: Channel) -> Vector | None:
        """Return vectors one after another in memory that a peer sees; None where there is none, or it sees nothing."""
        n = sum(len(vector) for vector in vectors)
        with self._packing:
            try:
                crate = self._free[n].pop() if self._free[n] else self.vector(n)
            except InputError:
                return None
        if not self.lend(channel):
            self.give(crate)
            return None
        np.concatenate(vectors, out=crate)
        return crate

    def give(self, crate: Vector | None) -> None:
        """Take a crate back."""
        if crate is not None:
            with self._packing:
                self._free[len(crate)].append(crate)


class SharedArrayPool(SharedRegions):
    """Places for the blocks of a server; those that are given back are used again."""

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, list[SharedArray]] = defaultdict(list)
        self._made: dict[int, int] = defaultdict(int)
        self._taking = threading.Lock()

    def take(self, params: Vector) -> SharedArray | None:
        """Return a place with these parameters; None if there is no memory for it."""
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
        """Take a place back."""
        if place is not None:
            with self._taking:
                self._free[len(place.whole) - LINE].append(place)

    def _more(self, n: int) -> SharedArray:
        """Return a place of a new region, half as large as all before it together, and keep the others."""
        each = LINE * -(-(LINE + n) // LINE)
        count = max(1, min(self._made[n] // 2, MOST_AT_ONCE // (4 * each)))
        vector = self.vector(count * each)
        self._made[n] += count
        places = [SharedArray(vector[start : start + LINE + n]) for start in range(0, count * each, each)]
        self._free[n] += places[1:]
        return places[0]

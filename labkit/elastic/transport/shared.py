"""Memory shared by two processes of one host: a sealed file without a name, passed over a unix socket.

It has no name in any folder, so no other process can open it, and nothing remains of it when its users die.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.transport.connection_limits import PeerLimits
from labkit.elastic.transport.errors import FrameError, OversizedError

REFERENCE = struct.Struct("<BIQQ")
"""A reference to a payload: owner of the region (0: sender, 1: receiver), its number, offset, length."""
SEAL_FUTURE_WRITE = 0x10
"""Seal under which peers can map a file for reading only [F_SEAL_FUTURE_WRITE, Linux 5.1; not in Python]."""
SEALED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Region:
    """A range of memory that can be shared with peers on this host.

    Parameters
    ----------
    n_bytes : int
        Its size, which cannot change.
    writable : bool
        Whether peers may write to it; if not, the kernel prevents it.

    Examples
    --------
    >>> region = Region(4096)
    >>> numbers = np.frombuffer(region.view, np.float32)
    >>> numbers[:] = 1.0
    """

    def __init__(self, n_bytes: int, *, writable: bool = False) -> None:
        if n_bytes < 1:
            raise InputError(f"a region of {n_bytes} bytes cannot be mapped; give at least 1.")
        room = available_bytes()
        if n_bytes > room:
            raise InputError(f"no shared region of {n_bytes:,} bytes: this machine has {room:,} bytes of memory left.")
        self.n_bytes, self.writable = n_bytes, writable
        handle = os.memfd_create("labkit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(handle, 0, n_bytes)  # without memory: an error here, not a signal at the first write
            self._map = mmap.mmap(handle, n_bytes, flags=mmap.MAP_SHARED)
            seals = SEALED_SIZE | fcntl.F_SEAL_SEAL | (0 if writable else SEAL_FUTURE_WRITE)
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            raise InputError(f"no shared region of {n_bytes:,} bytes: {error.strerror}.") from None
        finally:
            self._handle = handle
        self.view = memoryview(self._map)

    def fileno(self) -> int:
        """Return the file descriptor of the region."""
        return self._handle

    def __del__(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            os.close(handle)


def available_bytes() -> int:
    """Return the bytes of memory that are available without swapping [MemAvailable of proc(5)]."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    columns = dict(line.split(":", 1) for line in lines)
    return int(columns["MemAvailable"].split()[0]) * 1024


@dataclass(frozen=True, slots=True)
class _Mapped:
    start: int
    view: memoryview

    def offset_of(self, start: int, n_bytes: int) -> int:
        """Return the offset of a view in this region, in bytes; -1 if it is not inside."""
        offset = start - self.start
        return offset if offset >= 0 and offset + n_bytes <= len(self.view) else -1


def _start(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class Regions:
    """The regions that the two ends of one connection share, of either end."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._mine: list[_Mapped] = []
        self._theirs: list[_Mapped] = []

    def describe(self, region: Region) -> dict[str, Any]:
        """Return the description of a region that is sent with its file, before it is added."""
        return {"region": len(self._mine), "n_bytes": region.n_bytes, "writable": region.writable}

    def add(self, region: Region) -> None:
        """Add a region of this end that the peer has received."""
        self._mine.append(_Mapped(_start(region.view), region.view))

    def accept(self, handle: int, description: dict[str, Any]) -> None:
        """Map a region of the peer, after its size and seals are checked; the descriptor stays open."""
        n_bytes, number = description.get("n_bytes"), description.get("region")
        if type(n_bytes) is not int or n_bytes < 1 or number != len(self._theirs):
            raise FrameError(f"{description} describes no shared region; number {len(self._theirs)} was expected.")
        if n_bytes > self._limits.region_bytes or len(self._theirs) >= self._limits.n_regions:
            raise OversizedError(f"region {number} of {n_bytes:,} bytes is beyond the limits {self._limits}.")
        if os.fstat(handle).st_size < n_bytes or _seals(handle) & SEALED_SIZE != SEALED_SIZE:
            raise FrameError(f"region {number} is smaller than it says, or could shrink under its readers.")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if description.get("writable") is True else 0)
        try:
            mapped = mmap.mmap(handle, n_bytes, flags=mmap.MAP_SHARED, prot=access)
        except OSError as error:
            raise FrameError(f"region {number} cannot be mapped: {error.strerror}.") from error
        view = memoryview(mapped)
        self._theirs.append(_Mapped(_start(view), view))

    def refer(self, view: memoryview) -> bytes | None:
        """Return a reference to a view, for the peer; None if it lies in no shared region."""
        if not self._mine and not self._theirs:
            return None
        start = _start(view)
        for owner, regions in enumerate((self._mine, self._theirs)):
            for number, region in enumerate(regions):
                offset = region.offset_of(start, len(view))
                if offset >= 0:
                    return REFERENCE.pack(owner, number, offset, len(view))
        return None

    def resolve(self, reference: memoryview | bytes) -> memoryview:
        """Return the view that a reference of the peer names."""
        if len(reference) != REFERENCE.size:
            raise FrameError(f"a reference of {len(reference)} bytes; {REFERENCE.size} were expected.")
        owner, number, offset, n_bytes = REFERENCE.unpack(reference)
        regions = self._mine if owner else self._theirs
        if owner > 1 or number >= len(regions) or offset + n_bytes > len(regions[number].view):
            raise FrameError(f"bytes {offset:,} to {offset + n_bytes:,} of region {number} are not shared.")
        stretch: memoryview = regions[number].view[offset : offset + n_bytes]
        return stretch

    def drop(self) -> None:
        """Drop all regions; their memory is freed when no array or view uses it any more."""
        self._mine, self._theirs = [], []


def moved(payload: memoryview, into: memoryview) -> memoryview:
    """Return a payload from shared memory in the wanted place; it is copied unless it is there already."""
    if len(payload) > len(into):
        raise OversizedError(f"{len(payload):,} bytes came where there is room for {len(into):,}.")
    if payload and _start(payload) != _start(into):
        into[: len(payload)] = payload
    return into[: len(payload)]


def _seals(handle: int) -> int:
    try:
        return fcntl.fcntl(handle, fcntl.F_GET_SEALS)
    except OSError:
        return 0

"""Limits of a connection: a lease that every timeout derives from, sizes, and counters."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from labkit.core.errors import InputError

MIB = 1 << 20
SLICE_BYTES = MIB
"""A good payload size: small enough for the caches, large enough for the cost of Python per frame."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a silent peer counts as alive; every other timeout derives from it.

    >>> Lease(3.0).heartbeat_s
    0.2
    """

    base_s: float = 3.0

    def __post_init__(self) -> None:
        if not (0.03 <= self.base_s <= 3600.0) or math.isnan(self.base_s):
            raise InputError(f"a lease of {self.base_s} s cannot be kept; give 0.03 to 3600 s (3 s suits most).")

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats of an idle connection; also how long a read waits at a time."""
        return self.base_s / 15

    @property
    def silent_beats(self) -> int:
        """Heartbeats without a byte after which a peer counts as lost: a little less than the lease."""
        return 14

    @property
    def greeting_s(self) -> float:
        """Seconds within which two ends must have connected and finished the greeting."""
        return self.base_s

    @property
    def frame_s(self) -> float:
        """Seconds from the first byte of a frame within which it must be complete."""
        return 2 * self.base_s

    @property
    def closing_s(self) -> float:
        """Seconds in which a closing connection may still send its queued frames."""
        return self.base_s

    def shared_with(self, other_s: float) -> float:
        """Return seconds between heartbeats that satisfy the leases of both ends."""
        return min(self.base_s, Lease(other_s).base_s) / 15


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits on what a peer may send, and on its share of this process."""

    payload_bytes: int = 16 * MIB
    meta_bytes: int = 32 * 1024
    long_bytes: int = 4 * MIB
    """`payload_bytes`, `meta_bytes` and `long_bytes`: largest payload and largest meta part of a frame, and largest
    meta part of a frame that has no payload; nothing larger is ever allocated. A long meta part takes about ten times
    its bytes of memory while it is parsed."""
    queued_frames: int = 65_536
    """Frames that may wait for a peer that does not read; with more it counts as lost."""
    region_bytes: int = 64 << 30
    n_regions: int = 1024
    """`region_bytes` and `n_regions`: largest shared region, and number of regions that a peer may share."""
    n_greeting: int = 64
    n_connections: int = 1024
    """`n_greeting` and `n_connections`: connections of a listener: during their greeting, and all."""

    def __post_init__(self) -> None:
        if not 0 <= self.meta_bytes < 1 << 16:
            raise InputError(f"meta_bytes is {self.meta_bytes}; a header can tell 0 to 65535.")
        if not 0 <= self.payload_bytes < 1 << 32:
            raise InputError(f"payload_bytes is {self.payload_bytes}; a header can tell 0 to {(1 << 32) - 1}.")


DEFAULT_LEASE = Lease()
DEFAULT_LIMITS = PeerLimits()
GREETING_LIMITS = PeerLimits(payload_bytes=0, meta_bytes=4096, long_bytes=0)
"""Limits on a peer before its greeting is done."""


@dataclass(slots=True)
class Counts:
    """Counters of a connection or a listener."""

    sent_frames: int = 0
    received_frames: int = 0
    """`sent_frames` and `received_frames`: frames given to the kernel and taken from it, heartbeats among them."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """`sent_bytes` and `received_bytes`: bytes on the wire, headers among them."""
    shared_bytes: int = 0
    """Payload that was sent by reference, because it lies in shared memory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Frames and greetings that were refused, by reason: malformed, oversized, replayed, access, unexpected."""
    reader_cpu_s: float = 0.0
    sender_cpu_s: float = 0.0
    """`reader_cpu_s` and `sender_cpu_s`: processor seconds of the two threads, handlers among them."""

    @property
    def cpu_s(self) -> float:
        """Processor seconds of both threads."""
        return self.reader_cpu_s + self.sender_cpu_s

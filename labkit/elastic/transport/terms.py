"""The terms of a connection: one lease that every timeout derives from, limits of size, and what is counted."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from labkit.core.errors import InputError

MIB = 1 << 20
SLICE_BYTES = MIB
"""About the best size of a payload: small enough for the caches, large enough for Python."""


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
        """Seconds between signs of life of an idle connection; also how long a read waits at a time."""
        return self.base_s / 15

    @property
    def silent_beats(self) -> int:
        """After so many heartbeats without a byte a peer is lost: a little less than the lease."""
        return 14

    @property
    def greeting_s(self) -> float:
        """Seconds within which two ends must have connected and shown who they are."""
        return self.base_s

    @property
    def frame_s(self) -> float:
        """Seconds within which a frame that began must be complete, however slowly its bytes come."""
        return 2 * self.base_s

    @property
    def closing_s(self) -> float:
        """Seconds that a closing connection grants what is still on its way."""
        return self.base_s

    def shared_with(self, other_s: float) -> float:
        """Return seconds between heartbeats that keep both ends content, whose leases may differ."""
        return min(self.base_s, Lease(other_s).base_s) / 15


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What a peer may ask of this process.

    Attributes
    ----------
    payload_bytes, meta_bytes, long_bytes : int
        Largest payload and largest meta part of a frame, and largest meta part of a frame that has no payload; nothing
        larger is ever allocated. A long one takes some ten times its bytes while it is read.
    queued_frames : int
        Frames that wait for a peer which does not read; at more it counts as lost.
    region_bytes, n_regions : int
        Largest shared region, and how many a peer may share.
    n_greeting, n_connections : int
        Connections of a listener that have not shown who they are yet, and all of them.
    """

    payload_bytes: int = 16 * MIB
    meta_bytes: int = 32 * 1024
    long_bytes: int = 4 * MIB
    queued_frames: int = 65_536
    region_bytes: int = 64 << 30
    n_regions: int = 1024
    n_greeting: int = 64
    n_connections: int = 1024

    def __post_init__(self) -> None:
        if not 0 <= self.meta_bytes < 1 << 16:
            raise InputError(f"meta_bytes is {self.meta_bytes}; a header can tell 0 to 65535.")
        if not 0 <= self.payload_bytes < 1 << 32:
            raise InputError(f"payload_bytes is {self.payload_bytes}; a header can tell 0 to {(1 << 32) - 1}.")


DEFAULT_LEASE = Lease()
DEFAULT_LIMITS = PeerLimits()
GREETING_LIMITS = PeerLimits(payload_bytes=0, meta_bytes=4096, long_bytes=0)
"""What a peer may send before it has shown who it is."""


@dataclass(slots=True)
class Counts:
    """What went through a connection or a listener so far.

    Attributes
    ----------
    sent_frames, received_frames : int
        Frames given to the kernel and taken from it, heartbeats among them.
    sent_bytes, received_bytes : int
        Bytes on the wire, headers among them.
    shared_bytes : int
        Payload that was told rather than sent: it lies in shared memory.
    refused : Counter
        Frames, or greetings, that were refused, by reason: malformed, oversized, replayed, access, unexpected.
    reader_cpu_s, sender_cpu_s : float
        Processor seconds of the two threads, handlers among them.
    """

    sent_frames: int = 0
    received_frames: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    shared_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    reader_cpu_s: float = 0.0
    sender_cpu_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """Processor seconds of both threads."""
        return self.reader_cpu_s + self.sender_cpu_s

"""What goes wrong between two processes, each with a name.

TransportError
├── FrameError          bytes that are no frame, or a frame that says what it must not
│   ├── OversizedError  a frame beyond the limits
│   └── ReplayedError   a frame out of its order
├── AccessError         a peer, a key, a token or a folder that is not what it should be
├── UnreachableError    nobody answers at that address
├── PeerLostError       the peer died, fell silent, or takes nothing any more
├── ClosedError         this end, or the other, has closed the connection
└── RemoteError         the peer could not do what a request asked for
"""

from __future__ import annotations

from labkit.core.errors import InputError, LabkitError


class TransportError(LabkitError, ConnectionError):
    """Anything that goes wrong between two processes."""

    reason = "failed"
    """Under this word it is counted."""


class FrameError(TransportError):
    """Bytes that are no frame, or a frame that says what it must not."""

    reason = "malformed"


class OversizedError(FrameError):
    """A frame beyond the limits."""

    reason = "oversized"


class ReplayedError(FrameError):
    """A frame out of its order."""

    reason = "replayed"


class AccessError(TransportError):
    """A peer, a key, a token or a folder that is not what it should be."""

    reason = "access"


class UnreachableError(TransportError):
    """Nobody answers at that address."""

    reason = "unreachable"


class PeerLostError(TransportError):
    """The peer died, fell silent, or takes nothing any more."""

    reason = "lost"


class ClosedError(TransportError):
    """The connection has been closed, by this end or the other."""

    reason = "closed"


class RemoteError(TransportError):
    """The peer could not do what a request asked for."""

    reason = "remote"


class AddressError(InputError):
    """An address that cannot be used: misspelt, taken, too long, or without the key that it needs."""

"""Exceptions of the transport.

TransportError
├── FrameError          bytes that are not a frame, or a frame with invalid content
│   ├── OversizedError  a frame beyond the limits
│   └── ReplayedError   a frame out of order
├── AccessError         a peer, key, token or folder that is not accepted
├── UnreachableError    no process answers at that address
├── PeerLostError       the peer died, sent nothing for a lease, or no longer reads
├── ClosedError         this end, or the other, has closed the connection
└── RemoteError         the peer could not carry out a request
"""

from __future__ import annotations

from labkit.core.errors import InputError, LabkitError


class TransportError(LabkitError, ConnectionError):
    """Any failure of the transport."""

    reason = "failed"
    """The word under which `Counts.refused` counts it."""


class FrameError(TransportError):
    """Bytes that are not a frame, or a frame with invalid content."""

    reason = "malformed"


class OversizedError(FrameError):
    """A frame beyond the limits."""

    reason = "oversized"


class ReplayedError(FrameError):
    """A frame out of order."""

    reason = "replayed"


class AccessError(TransportError):
    """A peer, key, token or folder that is not accepted."""

    reason = "access"


class UnreachableError(TransportError):
    """No process answers at that address."""

    reason = "unreachable"


class PeerLostError(TransportError):
    """The peer died, sent nothing for a lease, or no longer reads."""

    reason = "lost"


class ClosedError(TransportError):
    """The connection has been closed, by this end or the other."""

    reason = "closed"


class RemoteError(TransportError):
    """The peer could not carry out a request."""

    reason = "remote"


class AddressError(InputError):
    """An address that cannot be used: misspelt, taken, too long, or without the key that it needs."""

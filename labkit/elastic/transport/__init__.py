"""Frames between processes over shared memory, unix sockets or TCP, behind one interface: `Channel`.

`Listener` waits at an `Address`, `connect` goes to one; both need an `Access` and a `Handler`. Linux only.
"""

from labkit.elastic.transport.certificates import Authority, Certificates, private_folder
from labkit.elastic.transport.channel import Buffer, Channel, Handler, Message, Peer, Reply
from labkit.elastic.transport.connection import Connection
from labkit.elastic.transport.connection_limits import MIB, SLICE_BYTES, Counts, Lease, PeerLimits
from labkit.elastic.transport.endpoints import Access, Address, Listener, Scheme, bound, connect, new_token
from labkit.elastic.transport.errors import (
    AccessError,
    AddressError,
    ClosedError,
    FrameError,
    OversizedError,
    PeerLostError,
    RemoteError,
    ReplayedError,
    TransportError,
    UnreachableError,
)
from labkit.elastic.transport.frames import FIRST_KIND, LAST_KIND, Head, slices
from labkit.elastic.transport.shared import Region

__all__ = [
    "FIRST_KIND",
    "LAST_KIND",
    "MIB",
    "SLICE_BYTES",
    "Access",
    "AccessError",
    "Address",
    "AddressError",
    "Authority",
    "Buffer",
    "Certificates",
    "Channel",
    "ClosedError",
    "Connection",
    "Counts",
    "FrameError",
    "Handler",
    "Head",
    "Lease",
    "Listener",
    "Message",
    "OversizedError",
    "Peer",
    "PeerLimits",
    "PeerLostError",
    "Region",
    "RemoteError",
    "ReplayedError",
    "Reply",
    "Scheme",
    "TransportError",
    "UnreachableError",
    "bound",
    "connect",
    "new_token",
    "private_folder",
    "slices",
]

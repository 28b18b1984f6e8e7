"""Frames between processes over shared memory, unix sockets or TCP, behind one interface: `Channel`.

`Listener` waits at an `Address`, `connect` goes to one; both need an `Access` and a `Handler`. Linux only.
"""

from labkit.elastic.transport.address import Access, Address, Scheme, new_token
from labkit.elastic.transport.certificates import Authority, Certificates
from labkit.elastic.transport.channel import Buffer, Channel, Handler, Message, Peer
from labkit.elastic.transport.connection import Connection
from labkit.elastic.transport.dial import connect, pair
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
from labkit.elastic.transport.folders import private_folder
from labkit.elastic.transport.frames import FIRST_KIND, LAST_KIND, Head, slices
from labkit.elastic.transport.listen import Listener, bound
from labkit.elastic.transport.replies import Reply
from labkit.elastic.transport.shared import Region
from labkit.elastic.transport.terms import MIB, SLICE_BYTES, Counts, Lease, PeerLimits

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
    "pair",
    "private_folder",
    "slices",
]

"""Connect to a listening process: the result is a Channel, the same for all transports."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.elastic.transport.address import Access, Address, Scheme
from labkit.elastic.transport.channel import Handler, Peer
from labkit.elastic.transport.connection import Connection
from labkit.elastic.transport.errors import AccessError, TransportError, UnreachableError
from labkit.elastic.transport.greeting import Greeting
from labkit.elastic.transport.intake import Intake
from labkit.elastic.transport.streams import SocketStream, Stream
from labkit.elastic.transport.terms import DEFAULT_LEASE, DEFAULT_LIMITS, GREETING_LIMITS, Counts, Lease, PeerLimits
from labkit.system.unix_sockets import reached

if TYPE_CHECKING:
    from ssl import SSLContext


def connect(
    address: Address,
    *,
    handler: Handler,
    access: Access,
    hello: Mapping[str, Any] | None = None,
    expected: str | None = None,
    lease: Lease = DEFAULT_LEASE,
    limits: PeerLimits = DEFAULT_LIMITS,
) -> Connection:
    """Connect to a listening process.

    Parameters
    ----------
    address : Address
        Of the listener.
    handler : Handler
        Receives the frames.
    access : Access
        Credentials of this process.
    hello : mapping, optional
        What this process states about itself, as small JSON.
    expected : str, optional
        For tls: name that the peer's certificate must contain; by default the job's, which all of them have.
    lease, limits : Lease, PeerLimits
        The terms of this end.

    Raises
    ------
    UnreachableError
        If no process answers within the lease.
    AccessError
        If one end refuses the other.
    """
    access.check(address)
    context = name = None
    if address.scheme is Scheme.TLS and access.certificates is not None:
        from labkit.elastic.transport.tls import client_context

        context, name = client_context(access.certificates), expected or access.certificates.job
    deadline_s = time.monotonic() + lease.greeting_s
    sock = connected(address, lease)
    counts = Counts()
    try:
        stream, proved = opened(sock, address, access, lease, deadline_s, context=context, expected=name)
        intake = Intake(stream, lease=lease, limits=GREETING_LIMITS, counts=counts, deadline_s=deadline_s)
        peer = Greeting(stream, intake, token=access.token, proved=proved, lease=lease).ask(hello or {})
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise AccessError(f"{address} ended the connection during the greeting: {error.strerror}.") from None
        raise
    return Connection(
        stream, peer=peer, handler=handler, lease=lease, limits=limits, counts=counts,
        shares=address.scheme is Scheme.SHM,
    ).start()  # fmt: skip


def connected(address: Address, lease: Lease) -> socket.socket:
    """Return a new socket that is connected to the listener at an address."""
    try:
        if not address.is_local:
            return socket.create_connection((address.host, address.port), timeout=lease.greeting_s)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(lease.greeting_s)
            with reached(address.path) as short:
                sock.connect(short)
        except BaseException:
            sock.close()
            raise
        return sock
    except OSError as error:
        raise UnreachableError(
            f"no process answers at {address} ({error.strerror or error}); is the process that listens there alive?"
        ) from None


def opened(
    sock: socket.socket,
    address: Address,
    access: Access,
    lease: Lease,
    deadline_s: float,
    *,
    context: SSLContext | None,
    expected: str | None = None,
) -> tuple[Stream, str]:
    """Return the stream over a new socket, and what it has verified about the peer."""
    stream = SocketStream(sock, beat_s=lease.heartbeat_s)
    if address.is_local:
        return stream, _peer_uid(sock, access.uid)
    if context is None:
        return stream, "token"
    from labkit.elastic.transport.tls import TlsStream

    secured = TlsStream(stream, context, expected=expected)
    return secured, f"certificate {secured.handshake(deadline_s)}"


def _peer_uid(sock: socket.socket, uid: int) -> str:
    """Return the user of the process at the other end of a unix socket; raise AccessError if it is another user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, found, _ = struct.unpack("3i", raw)
    if found != uid:
        raise AccessError(f"process {pid} at the other end belongs to uid {found}; only uid {uid} may connect.")
    return f"uid {found} process {pid}"


def pair(
    one: Handler,
    other: Handler,
    *,
    lease: Lease = DEFAULT_LEASE,
    limits: PeerLimits = DEFAULT_LIMITS,
    shares: bool = False,
) -> tuple[Connection, Connection]:
    """Return two connected ends in this process, without an address: for tests, and for jobs in one process."""
    ends = []
    for sock, handler in zip(socket.socketpair(), (one, other), strict=True):
        stream = SocketStream(sock, beat_s=lease.heartbeat_s)
        ends.append(
            Connection(
                stream, peer=Peer("this process"), handler=handler, lease=lease, limits=limits, n_greeted=0,
                shares=shares,
            )
        )  # fmt: skip
    return ends[0].start(), ends[1].start()

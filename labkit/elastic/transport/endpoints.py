"""Endpoints: addresses of processes, the side that dials, and the side that listens."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from labkit.core.errors import unknown
from labkit.elastic.transport.certificates import Certificates, private_folder
from labkit.elastic.transport.channel import Handler, Peer
from labkit.elastic.transport.connection import Connection, Greeting
from labkit.elastic.transport.connection_limits import (
    DEFAULT_LEASE,
    DEFAULT_LIMITS,
    GREETING_LIMITS,
    Counts,
    Lease,
    PeerLimits,
)
from labkit.elastic.transport.errors import AccessError, AddressError, TransportError, UnreachableError
from labkit.elastic.transport.frames import Intake
from labkit.elastic.transport.streams import SocketStream, Stream
from labkit.system import unix_sockets
from labkit.system.unix_sockets import UNIX_PATH_BYTES, fits

if TYPE_CHECKING:
    from ssl import SSLContext


TOKEN_BYTES = 32


class Scheme(StrEnum):
    """The transports."""

    SHM = "shm"
    """Shared memory, with a unix socket for small frames and notices: one host, one user."""
    UNIX = "unix"
    """A unix socket: one host, one user."""
    TLS = "tls"
    """TCP with mutual TLS 1.3, between hosts."""
    TCP = "tcp"
    """TCP without encryption, for an isolated network; both ends prove that they know the token."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a process listens.

    >>> Address.parse("tls://10.0.0.7:4000").port
    4000
    >>> str(Address.parse("unix:/run/job/ps-0"))
    'unix:/run/job/ps-0'
    """

    scheme: Scheme
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether both ends are on one host."""
        return self.scheme in (Scheme.SHM, Scheme.UNIX)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address: shm:PATH, unix:PATH, tls://HOST:PORT, tcp://HOST:PORT."""
        name, colon, rest = text.partition(":")
        if not colon or name not in list(Scheme):
            raise unknown("scheme of an address", name, list(Scheme))
        scheme = Scheme(name)
        if scheme in (Scheme.SHM, Scheme.UNIX):
            return cls(scheme, path=_checked_path(rest, text))
        host, colon, port = rest.removeprefix("//").rpartition(":")
        if not rest.startswith("//") or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise AddressError(f"'{text}' is no address; expected for example {scheme}://10.0.0.7:4000.")
        return cls(scheme, host=host.removeprefix("[").removesuffix("]"), port=int(port))

    def __str__(self) -> str:
        if self.is_local:
            return f"{self.scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def _checked_path(path: str, text: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise AddressError(f"'{text}' is no address; expected an absolute path, for example unix:/run/user/1000/ps-0.")
    if not fits(path):
        raise AddressError(
            f"'{text}': a unix socket's path has at most {UNIX_PATH_BYTES} bytes; this one has "
            f"{len(os.fsencode(path))}. Give it a shorter name or folder, for example /tmp/labkit-JOB."
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The credentials of one end of a connection."""

    certificates: Certificates | None = None
    """For tls: the certificate of this process, and the authority of the job."""
    token: bytes = field(default=b"", repr=False)
    """For tcp: a secret of the job, distributed by the launcher; at least 16 bytes."""
    plaintext: bool = False
    """Whether tcp may be used, although every host on the network can read and change it."""
    uid: int = field(default_factory=os.getuid)
    """For unix and shm: the user whose processes may connect."""

    def check(self, address: Address) -> None:
        """Raise AddressError if an address needs credentials that are missing here."""
        if address.scheme is Scheme.TLS and self.certificates is None:
            raise AddressError(f"{address} needs certificates; make them with certificates.Authority for this job.")
        if address.scheme is not Scheme.TCP:
            return
        if not self.plaintext:
            raise AddressError(
                f"{address} would send everything in clear; use tls://, or say plaintext=True on an isolated network."
            )
        if len(self.token) < 16:
            raise AddressError(
                f"{address} needs a token of at least 16 bytes, this one has {len(self.token)}; new_token() makes one."
            )


def new_token() -> bytes:
    """Return a fresh secret from the operating system."""
    return secrets.token_bytes(TOKEN_BYTES)


def connect(
    address: Address,
    *,
    handler: Handler,
    access: Access,
    hello: Mapping[str, Any] | None = None,  # what this process states about itself, as small JSON
    # for tls: name that the peer's certificate must contain; by default the job's, which all of them have
    expected: str | None = None,
    lease: Lease = DEFAULT_LEASE,
    limits: PeerLimits = DEFAULT_LIMITS,
) -> Connection:
    """Connect to a listening process.

    Raise UnreachableError if no process answers within the lease; AccessError if one end refuses the other.
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
        return unix_sockets.connected(address.path, timeout_s=lease.greeting_s)
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


BACKLOG = 128


class Listener:
    """Listens at an address; each process that is accepted gets a connection and a handler.

    Raise AddressError if the address is taken, or this machine does not have it.
    """

    def __init__(
        self,
        address: Address,  # the address; port 0 takes any free port, which `listener.address` has
        *,
        # returns the handler for a peer; a TransportError that it raises refuses the peer
        welcome: Callable[[Peer], Handler],
        access: Access,
        hello: Mapping[str, Any] | None = None,
        lease: Lease = DEFAULT_LEASE,
        limits: PeerLimits = DEFAULT_LIMITS,
        # A socket that `bound` has returned for the address; processes that have connected since then are accepted
        sock: socket.socket | None = None,
        # called with (reason, message) for each refused process, in a thread of the listener
        refused: Callable[[str, str], None] | None = None,
    ) -> None:
        access.check(address)
        self._refused = refused
        self._context: SSLContext | None = None
        if address.scheme is Scheme.TLS and access.certificates is not None:
            from labkit.elastic.transport.tls import server_context

            self._context = server_context(access.certificates)
        self._welcome, self._access, self._hello = welcome, access, dict(hello or {})
        self._lease, self._limits = lease, limits
        self._socket = bound(address) if sock is None else sock
        self.address = address if address.is_local else replace(address, port=self._socket.getsockname()[1])
        self.counts = Counts()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._greeting: dict[threading.Thread, socket.socket | None] = {}
        self._paused = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name=f"listener at {self.address}", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open connections."""
        with self._lock:
            return tuple(self._connections)

    def close(self) -> None:
        """Accept no more processes, and close every connection."""
        with self._lock:
            self._closed = True
            greeting = dict(self._greeting)
        self._paused.set()
        for sock in (self._socket, *greeting.values()):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        if self.address.is_local:
            Path(self.address.path).unlink(missing_ok=True)  # before another listener can bind it
        self._socket.close()
        for thread in greeting:
            thread.join(self._lease.closing_s)
        connections = self.connections
        for connection in connections:
            connection.hang_up()
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if self._closed or error.errno in (errno.EINVAL, errno.EBADF):
                    return
                self.counts.refused["unable"] += 1  # most likely no file descriptor is free: wait until some are closed
                self._paused.wait(self._lease.heartbeat_s)
                continue
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        """Greet a new socket in a thread of its own, if the limits allow one more."""
        with self._lock:
            n_greeting = len(self._greeting)
            full = n_greeting >= self._limits.n_greeting
            full = full or n_greeting + len(self._connections) >= self._limits.n_connections
            if not full and not self._closed and self._starts(sock):
                return
            self.counts.refused["full"] += 1
        sock.close()

    def _starts(self, sock: socket.socket) -> bool:
        """Start to greet; return False if no thread can be started. The listener goes on for when one can."""
        thread = threading.Thread(target=self._greet, args=(sock,), name="greeting", daemon=True)
        self._greeting[thread] = sock
        try:
            thread.start()
        except RuntimeError:
            del self._greeting[thread]
            return False
        return True

    def _greet(self, sock: socket.socket) -> None:
        try:
            connection = self._admit(sock)
        except TransportError as error:
            sock.close()
            self._count(error.reason, str(error))
        except Exception as error:  # an SSL alert that cannot be sent, a reset: what an unknown process may cause
            sock.close()
            self._count("access", f"{type(error).__name__}: {error}")
        else:
            with self._lock:
                self._connections.add(connection)
                self._greeting[threading.current_thread()] = None  # the connection closes the socket from now on
                late = self._closed
            self._start(connection, sock)
            if late:
                connection.close()
        finally:
            with self._lock:
                self._greeting.pop(threading.current_thread(), None)

    def _start(self, connection: Connection, sock: socket.socket) -> None:
        """Start a connection; if no thread can be started for it, end it: the peer connects again."""
        try:
            connection.start()
        except RuntimeError as error:
            sock.close()
            self._forget(connection)
            self._count("full", str(error))

    def _count(self, reason: str, why: str) -> None:
        with self._lock:
            self.counts.refused[reason] += 1
            closed = self._closed
        if self._refused is not None and not closed:
            self._refused(reason, why)

    def _admit(self, sock: socket.socket) -> Connection:
        deadline_s = time.monotonic() + self._lease.greeting_s
        counts = Counts()
        stream, proved = opened(sock, self.address, self._access, self._lease, deadline_s, context=self._context)
        intake = Intake(stream, lease=self._lease, limits=GREETING_LIMITS, counts=counts, deadline_s=deadline_s)
        greeting = Greeting(stream, intake, token=self._access.token, proved=proved, lease=self._lease)
        handlers: list[Handler] = []
        peer = greeting.admit(self._hello, judge=lambda peer: handlers.append(self._welcome(peer)))
        return Connection(
            stream, peer=peer, handler=handlers[0], lease=self._lease, limits=self._limits, counts=counts,
            shares=self.address.scheme is Scheme.SHM, on_over=self._forget,
        )  # fmt: skip

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


def bound(address: Address) -> socket.socket:
    """Return a socket that listens at the address."""
    if address.is_local:
        return _bound_unix(address)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise AddressError(f"cannot listen at {address}: {error.strerror}; port 0 takes one that is free.") from None
    return sock


def _bound_unix(address: Address) -> socket.socket:
    path = Path(address.path)
    private_folder(path.parent)
    if path.exists():
        _remove_if_dead(address)
    try:
        return unix_sockets.listening(path, backlog=BACKLOG)
    except OSError as error:
        raise AddressError(f"cannot listen at {address}: {error.strerror}.") from None


def _remove_if_dead(address: Address) -> None:
    """Remove the socket of a process that has ended; raise AddressError if a process still listens there."""
    path = Path(address.path)
    if not path.is_socket():
        raise AddressError(f"cannot listen at {address}: something that is no socket is there; remove it.")
    try:
        unix_sockets.connected(path).close()
    except OSError:
        path.unlink(missing_ok=True)
        return
    raise AddressError(f"cannot listen at {address}: another process listens there; give another name.")

"""Listen at an address: each process that is accepted gets a Channel, the same for all transports."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.elastic.transport.address import Access, Address, Scheme
from labkit.elastic.transport.channel import Handler, Peer
from labkit.elastic.transport.connection import Connection
from labkit.elastic.transport.dial import opened
from labkit.elastic.transport.errors import AddressError, TransportError
from labkit.elastic.transport.folders import private_folder
from labkit.elastic.transport.greeting import Greeting
from labkit.elastic.transport.intake import Intake
from labkit.elastic.transport.terms import DEFAULT_LEASE, DEFAULT_LIMITS, GREETING_LIMITS, Counts, Lease, PeerLimits
from labkit.system.unix_sockets import reached

if TYPE_CHECKING:
    from ssl import SSLContext

BACKLOG = 128


class Listener:
    """Listens at an address; each process that is accepted gets a connection and a handler.

    Parameters
    ----------
    address : Address
        The address; port 0 takes any free port, which `listener.address` has.
    welcome : callable
        Returns the handler for a peer; a TransportError that it raises refuses the peer.
    access : Access
        Credentials of this process.
    hello : mapping, optional
        What this process states about itself, as small JSON.
    lease, limits : Lease, PeerLimits
        The terms of this end.
    sock : socket, optional
        A socket that `bound` has returned for the address; processes that have connected since then are accepted.
    refused : callable, optional
        Called with (reason, message) for each refused process, in a thread of the listener.

    Raises
    ------
    AddressError
        If the address is taken, or this machine does not have it.
    """

    def __init__(
        self,
        address: Address,
        *,
        welcome: Callable[[Peer], Handler],
        access: Access,
        hello: Mapping[str, Any] | None = None,
        lease: Lease = DEFAULT_LEASE,
        limits: PeerLimits = DEFAULT_LIMITS,
        sock: socket.socket | None = None,
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
    sock = socket.socket(socket.AF_UNIX)
    try:
        with reached(address.path) as short:
            sock.bind(short)
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise AddressError(f"cannot listen at {address}: {error.strerror}.") from None
    return sock


def _remove_if_dead(address: Address) -> None:
    """Remove the socket of a process that has ended; raise AddressError if a process still listens there."""
    path = Path(address.path)
    if not path.is_socket():
        raise AddressError(f"cannot listen at {address}: something that is no socket is there; remove it.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            with reached(address.path) as short:
                probe.connect(short)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise AddressError(f"cannot listen at {address}: another process listens there; give another name.")

"""A link that misbehaves on command: delay, trickle, silence, a cut; to see what the two ends make of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from labkit.core.errors import InputError
from labkit.elastic.transport.address import Address
from labkit.elastic.transport.dial import connected
from labkit.elastic.transport.listen import bound
from labkit.elastic.transport.terms import DEFAULT_LEASE

CHUNK_BYTES = 64 * 1024


class Proxy:
    """Stands between a listener and those who connect; every fault applies to bytes from then on, in both directions.

    Parameters
    ----------
    upstream : Address
        The listener, of any scheme but shm (a proxy cannot pass open files on).
    address : Address
        Where the proxy listens: a path of its own, or port 0.

    Attributes
    ----------
    address : Address
        Where to connect instead of `upstream`.
    delay_s : float
        Each chunk waits so long.
    chunk_bytes : int
        Largest piece that is passed on at once: 1 and a delay of 1 s make a link of one byte a second.
    tamper : callable
        Given (chunk, True if from the side that connected), returns what is passed on instead.

    Examples
    --------
    >>> proxy = Proxy(Address.parse("tcp://127.0.0.1:9"), address=Address.parse("tcp://127.0.0.1:0"))
    >>> proxy.freeze()  # half-open: both ends are there, nothing arrives
    >>> proxy.close()
    """

    def __init__(self, upstream: Address, *, address: Address) -> None:
        if upstream.scheme is not address.scheme:
            raise InputError(f"a proxy at {address} cannot stand before {upstream}: give it the same scheme.")
        self._upstream = upstream
        self._socket = bound(address)
        self.address = address if address.is_local else replace(address, port=self._socket.getsockname()[1])
        self.delay_s, self.chunk_bytes = 0.0, CHUNK_BYTES
        self.tamper: Callable[[bytes, bool], bytes] = lambda chunk, _: chunk
        self._flowing, self._closed = threading.Event(), threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        """Pass nothing on any more, and tell nobody."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on again, first of all what was held back."""
        self._flowing.set()

    def cut(self) -> None:
        """End every connection at once; new ones may come."""
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._socket.accept()
            except OSError:
                continue
            try:
                far = connected(self._upstream, DEFAULT_LEASE)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            pairs = ((near, far, True), (far, near, False))
            pair = [threading.Thread(target=self._pass_on, args=each, name="proxy", daemon=True) for each in pairs]
            self._threads += [*pair, threading.Thread(target=self._bury, args=(near, far, pair), daemon=True)]
            for thread in self._threads[-3:]:
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_near: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(self.chunk_bytes):
                self._closed.wait(self.delay_s)
                self._flowing.wait()
                target.sendall(self.tamper(chunk, from_near))
        self._flowing.wait()  # an end cannot be seen through a frozen link either
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _bury(self, near: socket.socket, far: socket.socket, pair: list[threading.Thread]) -> None:
        for thread in pair:
            thread.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

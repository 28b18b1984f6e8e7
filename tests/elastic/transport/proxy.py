"""A link with faults on command, between a listener and clients: late, slow, silent, cut, frames doubled or swapped."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.transport.connection_limits import DEFAULT_LEASE, DEFAULT_LIMITS
from labkit.elastic.transport.endpoints import Address, bound, connected
from labkit.elastic.transport.frames import HEADER, unpack

CHUNK_BYTES = 64 * 1024

Meddle = Callable[[bytes, bool, list[bytes]], list[bytes]]
"""From (a whole frame, True if from the side that connected, what is held back) to the frames to pass on now.

There is one such list for each connection and direction; frames that are held back stay in it.
"""


class Proxy:
    """Forwards between a listener and its clients; a fault applies to all later bytes, in both directions.

    Parameters
    ----------
    upstream : Address
        The listener, of any scheme but shm (a proxy cannot pass open files on).
    address : Address
        Where the proxy listens: a path of its own, or port 0.
    framed : bool
        Whether whole frames are passed on, to `meddle` with; of connections that are not encrypted.
    seed : int
        Of what is drawn.

    Attributes
    ----------
    address : Address
        Where to connect instead of `upstream`.
    delay_s, jitter_s : float
        Each chunk waits so long, and up to so long more: connections overtake each other.
    chunk_bytes : int
        Largest piece that is passed on at once: 1 and a delay of 1 s make a link of one byte a second.
    tamper : callable
        Given (chunk, True if from the side that connected), returns what is passed on instead.
    meddle : callable
        See `Meddle`.

    Examples
    --------
    >>> proxy = Proxy(Address.parse("tcp://127.0.0.1:9"), address=Address.parse("tcp://127.0.0.1:0"))
    >>> proxy.freeze()  # half-open: both ends are there, nothing arrives
    >>> proxy.close()
    """

    def __init__(self, upstream: Address, *, address: Address, framed: bool = False, seed: int = 0) -> None:
        if upstream.scheme is not address.scheme:
            raise InputError(f"a proxy at {address} cannot stand before {upstream}: give it the same scheme.")
        self._upstream = upstream
        self._socket = bound(address)
        self.address = address if address.is_local else replace(address, port=self._socket.getsockname()[1])
        self.delay_s, self.jitter_s, self.chunk_bytes = 0.0, 0.0, CHUNK_BYTES
        self.tamper: Callable[[bytes, bool], bytes] = lambda chunk, _: chunk
        self.meddle: Meddle = lambda frame, _from_near, _held: [frame]
        self._framed, self._rng = framed, np.random.default_rng(seed)
        self._flowing, self._closed = {True: threading.Event(), False: threading.Event()}, threading.Event()
        self.thaw()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def freeze(self, *, from_near: bool | None = None) -> None:
        """Stop forwarding, without a notice; in one direction only if it is given."""
        for direction, flowing in self._flowing.items():
            if from_near in (None, direction):
                flowing.clear()

    def thaw(self) -> None:
        """Forward again, from the first byte that was held back on."""
        for flowing in self._flowing.values():
            flowing.set()

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
        self.thaw()
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
            self._threads += [*pair, threading.Thread(target=self._note_death, args=(near, far, pair), daemon=True)]
            for thread in self._threads[-3:]:
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_near: bool) -> None:
        cut, held, flowing = Cutter(), list[bytes](), self._flowing[from_near]
        with contextlib.suppress(OSError):
            while chunk := source.recv(self.chunk_bytes):
                self._wait()
                flowing.wait()
                for whole in cut.of(chunk) if self._framed else (chunk,):
                    for piece in self.meddle(whole, from_near, held) if self._framed else (whole,):
                        target.sendall(self.tamper(piece, from_near))
        flowing.wait()  # an end cannot be seen through a frozen link either
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait(self) -> None:
        late_s = self.delay_s + (self.jitter_s and self.jitter_s * float(self._rng.random()))
        if late_s:
            self._closed.wait(late_s)

    def _note_death(self, near: socket.socket, far: socket.socket, pair: list[threading.Thread]) -> None:
        for thread in pair:
            thread.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()


class Cutter:
    """Cuts the bytes of one direction of a connection into whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, chunk: bytes) -> list[bytes]:
        """Return the frames that are complete with this chunk."""
        self._rest += chunk
        frames = []
        while len(self._rest) >= HEADER.size:
            head, _ = unpack(self._rest[: HEADER.size], limits=DEFAULT_LIMITS)
            n_bytes = HEADER.size + head.meta_bytes + head.payload_bytes
            if len(self._rest) < n_bytes:
                break
            frames.append(self._rest[:n_bytes])
            self._rest = self._rest[n_bytes:]
        return frames

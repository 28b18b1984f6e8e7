"""Connections of clients: bounded buffers, requests answered at once or later, and streams that wait for the slow."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from labkit.testbed.agent.loop import READ, WRITE, Loop, Timer
from labkit.testbed.agent.wire import Lines, Refusal, pack, unpack

FULL: Final = 1 << 20
"""Bytes that wait for a client; with more it is not heard, and streams to it stand still."""

STALLED_S: Final = 120.0
"""A client that takes nothing for so long, while that much waits for it, is dropped."""


class ClientStream(Protocol):
    """Something that goes on telling a client things."""

    def pump(self) -> None:
        """Tell what there is, as far as the client takes it."""

    def close(self) -> None:
        """Stop."""


class ClientRequest:
    """What a client asked; answered once, if the client is still there."""

    def __init__(self, connection: ClientConnection, number: int | None, verb: str) -> None:
        self.connection, self.number, self.verb = connection, number, verb

    def reply(self, ok: Any) -> None:
        """Answer."""
        self._close({"id": self.number, "ok": ok})

    def refuse(self, error: Refusal) -> None:
        """Answer why not."""
        self._close({"id": self.number, "error": error.told()})

    def _close(self, said: dict[str, Any]) -> None:
        if self.open:
            self.connection.forget(self)
            self.connection.send(pack(said))

    def item(self, packed: bytes) -> None:
        """Tell one thing of a stream; `packed` is JSON."""
        self.connection.send(b'{"id":%d,"item":%b}\n' % (self.number or 0, packed))

    @property
    def open(self) -> bool:
        """Whether the client still waits for the answer."""
        return self.connection.waits(self)


class ClientConnection:
    """A client.

    Parameters
    ----------
    sock : socket
        Connected, of the same user.
    loop : Loop
        Calls when there is something to read or room to write.
    serve : callable
        Takes a request and its arguments.
    closed : callable
        Called once when the client is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        loop: Loop,
        serve: Callable[[ClientRequest, dict[str, Any]], None],
        closed: Callable[[ClientConnection], None],
    ) -> None:
        self._sock, self._loop, self._serve, self._closed = sock, loop, serve, closed
        self._in, self._out = Lines(), bytearray()
        self._requests: dict[int, ClientRequest] = {}
        self._streams: dict[int, ClientStream] = {}
        self._stalled: Timer | None = None
        self._ending = False
        self.alive = True
        sock.setblocking(False)
        loop.on(sock, self._turn)

    # --- what is read

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._write()
            if events & READ and self.alive:
                self._read()
        except (OSError, Refusal):
            self.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._in.feed(data)
        self._understand()

    def _understand(self) -> None:
        """Serve all whole requests, unless answers have piled up."""
        while self.alive and not self._ending and self.has_room:
            try:
                line = self._in.take()
            except Refusal as error:
                self._ending = True
                self.send(pack({"id": None, "error": error.told()}))
                break
            if line is None:
                break
            self._hear(line)
        self._expect()

    def _hear(self, line: bytes) -> None:
        try:
            said = unpack(line)
            number, verb = said.pop("id", None), said.pop("verb", None)
            if type(number) is not int or type(verb) is not str or number in self._requests:
                raise Refusal("malformed", "a request has a new whole number as `id`, and a `verb`")
        except Refusal as error:
            self.send(pack({"id": None, "error": error.told()}))
            return
        request = ClientRequest(self, number, verb)
        self._requests[number] = request
        self._serve(request, said)

    # --- what is written

    @property
    def has_room(self) -> bool:
        """Whether the client has taken nearly all that was said."""
        return len(self._out) < FULL

    def send(self, line: bytes) -> None:
        """Say something; it goes out as far as the client takes it, the rest waits."""
        if self.alive:
            self._out += line
            self._write()

    def _write(self) -> None:
        try:
            n = self._sock.send(memoryview(self._out)[: 1 << 18]) if self._out else 0
        except BlockingIOError:
            n = 0
        except OSError:
            self.close()
            return
        if n:
            del self._out[:n]
            self._moved()
        self._expect()

    def _moved(self) -> None:
        """Note that the client takes something."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect(self) -> None:
        """Wait for what is useful now, and for the client not forever."""
        if not self.alive:
            return
        if self._ending and not self._out:
            self.close()
            return
        heard = READ if self.has_room and not self._ending else 0
        events = heard | (WRITE if self._out else 0)
        self._loop.on(self._sock, self._turn, events=events)
        if not self.has_room and self._stalled is None:
            self._stalled = self._loop.after(STALLED_S, self.close)

    def _turn(self, events: int) -> None:
        """Go on where it had to wait for the client."""
        self._ready(events)
        if events & WRITE and self.alive and self.has_room:
            for stream in list(self._streams.values()):
                stream.pump()
            self._understand()

    # --- requests and streams

    def waits(self, request: ClientRequest) -> bool:
        """Whether a request is still to be answered."""
        return self.alive and request.number is not None and self._requests.get(request.number) is request

    def forget(self, request: ClientRequest) -> None:
        """Note that a request is answered."""
        if request.number is not None:
            self._requests.pop(request.number, None)
            stream = self._streams.pop(request.number, None)
            if stream is not None:
                stream.close()

    def attach(self, request: ClientRequest, stream: ClientStream) -> None:
        """Let a stream answer a request."""
        assert request.number is not None
        self._streams[request.number] = stream
        stream.pump()

    def stream(self, number: int) -> ClientStream | None:
        """Return the stream that answers a request."""
        return self._streams.get(number)

    def cancel(self, number: int) -> None:
        """End a stream, if it still goes on."""
        if number in self._streams:
            self._requests[number].reply({"cancelled": True})

    def close(self) -> None:
        """End the connection; its streams stop, what it started goes on."""
        if not self.alive:
            return
        self.alive = False
        self._loop.off(self._sock)
        self._moved()
        for stream in list(self._streams.values()):
            stream.close()
        self._streams.clear()
        self._requests.clear()
        self._sock.close()
        self._closed(self)


def peer_uid(sock: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next client, or None; one of another user is told so and sent away."""
    try:
        sock, _ = listener.accept()
    except (BlockingIOError, ConnectionError):  # it has gone again
        return None
    if peer_uid(sock) == os.getuid():
        return sock
    with sock:
        sock.setblocking(False)
        error = Refusal("forbidden", "this agent belongs to another user")
        try:
            sock.send(pack({"id": None, "error": error.told()}))
        except OSError:
            return None
    return None

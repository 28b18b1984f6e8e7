"""Connections of clients: bounded buffers, requests answered at once or later, and streams with flow control."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from labkit.testbed.agent.fences import Fence
from labkit.testbed.agent.loop import READ, WRITE, Loop, Timer
from labkit.testbed.agent.wire import Lines, Refusal, pack, unpack

FULL: Final = 1 << 20
"""Most bytes that wait for a client; above, no request of it is read, and its streams pause."""

STALLED_S: Final = 120.0
"""Seconds after which a client that reads nothing, while that much waits for it, is dropped."""


class ClientStream(Protocol):
    """A stream of items to a client."""

    def pump(self) -> None:
        """Send what there is, as far as the client takes it."""

    def close(self) -> None:
        """Stop."""


class ClientRequest:
    """A request of a client, to be answered once."""

    def __init__(self, connection: ClientConnection, number: int | None, verb: str) -> None:
        self.connection, self.number, self.verb = connection, number, verb
        self.fence: Fence | None = None
        """Who gives the order, where its run has a fence."""

    def reply(self, ok: Any) -> None:
        """Answer."""
        self._answer({"id": self.number, "ok": ok})

    def refuse(self, error: Refusal) -> None:
        """Answer with a refusal."""
        self._answer({"id": self.number, "error": error.to_json()})

    def _answer(self, message: dict[str, Any]) -> None:
        if self.open:
            self.connection.forget(self)
            self.connection.send(pack(message))

    def item(self, packed: bytes) -> None:
        """Send an item of a stream; `packed` is JSON."""
        self.connection.send(b'{"id":%d,"item":%b}\n' % (self.number or 0, packed))

    @property
    def open(self) -> bool:
        """Whether the client waits for the answer."""
        return self.connection.waits(self)


class ClientConnection:
    """A connected client.

    Parameters
    ----------
    sock : socket
        Connected, of the same user.
    loop : Loop
        Calls when there is something to read or room to write.
    serve : callable
        Takes a request and its arguments.
    closed : callable
        Called once when the connection has ended.
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

    # --- incoming requests

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
        """Serve all complete requests, unless too many answers wait for the client."""
        while self.alive and not self._ending and self.has_room:
            try:
                line = self._in.take()
            except Refusal as error:
                self._ending = True
                self.send(pack({"id": None, "error": error.to_json()}))
                break
            if line is None:
                break
            self._serve_line(line)
        self._expect()

    def _serve_line(self, line: bytes) -> None:
        try:
            arguments = unpack(line)
            number, verb = arguments.pop("id", None), arguments.pop("verb", None)
            if type(number) is not int or type(verb) is not str or number in self._requests:
                raise Refusal("malformed", "a request has a new whole number as `id`, and a `verb`")
        except Refusal as error:
            self.send(pack({"id": None, "error": error.to_json()}))
            return
        request = ClientRequest(self, number, verb)
        self._requests[number] = request
        self._serve(request, arguments)

    # --- outgoing lines

    @property
    def has_room(self) -> bool:
        """Whether few bytes wait for the client."""
        return len(self._out) < FULL

    def send(self, line: bytes) -> None:
        """Send a line; what the client does not take yet waits."""
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
        """Note that the client reads again."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect(self) -> None:
        """Wait for the events that are useful now, and for a client that reads nothing at most `STALLED_S`."""
        if not self.alive:
            return
        if self._ending and not self._out:
            self.close()
            return
        reading = READ if self.has_room and not self._ending else 0
        events = reading | (WRITE if self._out else 0)
        self._loop.on(self._sock, self._turn, events=events)
        if not self.has_room and self._stalled is None:
            self._stalled = self._loop.after(STALLED_S, self.close)

    def _turn(self, events: int) -> None:
        """Handle events of the socket, and resume streams that waited for the client."""
        self._ready(events)
        if events & WRITE and self.alive and self.has_room:
            for stream in list(self._streams.values()):
                stream.pump()
            self._understand()

    # --- requests and streams

    def waits(self, request: ClientRequest) -> bool:
        """Return whether a request is still to be answered."""
        return self.alive and request.number is not None and self._requests.get(request.number) is request

    def forget(self, request: ClientRequest) -> None:
        """Note that a request is answered."""
        if request.number is not None:
            self._requests.pop(request.number, None)
            stream = self._streams.pop(request.number, None)
            if stream is not None:
                stream.close()

    def attach(self, request: ClientRequest, stream: ClientStream) -> None:
        """Answer a request by a stream."""
        assert request.number is not None
        self._streams[request.number] = stream
        stream.pump()

    def stream(self, number: int) -> ClientStream | None:
        """Return the stream that answers a request."""
        return self._streams.get(number)

    def cancel(self, number: int) -> None:
        """End a stream, if it is open."""
        if number in self._streams:
            self._requests[number].reply({"cancelled": True})

    def close(self) -> None:
        """End the connection and its streams; tasks go on."""
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
    """Return the user id at the other end, according to the kernel."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next client, or None; a client of another user gets a refusal."""
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
            sock.send(pack({"id": None, "error": error.to_json()}))
        except OSError:
            return None
    return None

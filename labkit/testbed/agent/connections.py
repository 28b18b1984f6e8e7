"""Connections of clients: requests answered at once or later, streams with flow control, messages to tasks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from labkit.system.unix_sockets import peer_uid, reached
from labkit.testbed.agent.fences import Fence
from labkit.testbed.agent.folder_layout import EVENTS, TASK_SOCKET, Phase, TaskRecord
from labkit.testbed.agent.log_files import LineReader
from labkit.testbed.agent.loop import READ, WRITE, Loop, Timer
from labkit.testbed.agent.messages import FileLines, HostMeasurement, Lines, Refusal, pack, unpack
from labkit.testbed.agent.runs import AgentRun

FULL: Final = 1 << 20
"""Most bytes that wait for a client; above, no request of it is read, and its streams pause."""
STALLED_S: Final = 120.0
"""Seconds after which a client that reads nothing, while that much waits for it, is dropped."""
LOOK_S: Final = 0.1
"""Seconds between two looks at a file that a client follows."""
AHEAD: Final = 64
"""Items that are sent before the client requests more."""
AGAIN_S: Final = 0.05
"""Seconds between two attempts to connect to a task that does not listen yet."""


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
    """A connected client."""

    def __init__(
        self,
        sock: socket.socket,  # connected, of the same user
        *,
        loop: Loop,  # calls when there is something to read or room to write
        serve: Callable[[ClientRequest, dict[str, Any]], None],  # takes a request and its arguments
        closed: Callable[[ClientConnection], None],  # called once when the connection has ended
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


class ItemStream:
    """A stream: sends items while the client takes them, and ends with a reply."""

    def __init__(self, request: ClientRequest, *, ahead: int = AHEAD) -> None:
        self.request, self._credit = request, ahead

    def more(self, n: int) -> None:
        """Note that the client has taken n items."""
        self._credit += n
        self.pump()

    @property
    def wanted(self) -> bool:
        """Whether the client takes another item now."""
        return self._credit > 0 and self.request.open and self.request.connection.has_room

    def send(self, item: bytes) -> None:
        """Send one item."""
        self._credit -= 1
        self.request.item(item)

    def pump(self) -> None:
        """Send what there is."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        raise NotImplementedError


class EventStream(ItemStream):
    """The events of a run, from a number on, until it is over."""

    def __init__(self, request: ClientRequest, run: AgentRun, *, since: int, ahead: int = AHEAD) -> None:
        super().__init__(request, ahead=ahead)
        self._run, self._last = run, since
        self._reader = LineReader(run.folder, [EVENTS], offset=0)
        run.listeners.add(self.pump)

    def pump(self) -> None:
        """Send events that are written and not sent yet."""
        while self.wanted:
            lines = self._lines()
            if lines is None:
                if self._run.complete:
                    self.request.reply({"over": self._run.record.over, "last": self._last})
                return
            if lines:
                self.send(b"[%b]" % b",".join(lines))

    def _lines(self) -> list[bytes] | None:
        """Return the next events; None if there are no more."""
        _, lines = self._reader.lines()
        if not lines:
            return None
        fresh = []
        for line in lines:
            n = json.loads(line)["n"]
            if n > self._last:
                self._last = n
                fresh.append(line)
        return fresh

    def close(self) -> None:
        """Stop."""
        self._run.listeners.discard(self.pump)
        self._reader.close()


class Follow(ItemStream):
    """The lines of a file of a task, until the task has ended and all lines are sent."""

    def __init__(
        self,
        request: ClientRequest,
        run: AgentRun,
        task: TaskRecord,
        *,
        names: list[str],
        offset: int,
        loop: Loop,
        ahead: int = AHEAD,
    ) -> None:
        super().__init__(request, ahead=ahead)
        self._run, self._task, self._loop = run, task, loop
        self._reader = LineReader(run.folder, [task.name, *names], offset=offset)
        self._timer: Timer | None = None

    def pump(self) -> None:
        """Send the lines that are there, and look again after `LOOK_S`."""
        self._pause()
        try:
            done = self._send_all()
        except (Refusal, OSError) as error:
            self.request.refuse(error if isinstance(error, Refusal) else Refusal("file", str(error)))
            return
        if done:
            self.request.reply({"offset": self._reader.offset, "how": self._now().how})
        elif self.request.open:
            self._timer = self._loop.after(LOOK_S, self.pump)

    def _now(self) -> TaskRecord:
        return self._run.record.tasks.get(self._task.name, self._task)

    def _send_all(self) -> bool:
        """Send the lines that are there; return True if no more will follow."""
        ended = self._now().phase == Phase.ENDED
        while self.wanted:
            start, lines = self._reader.lines(all_of_it=ended)
            if lines:
                texts = [line.decode(errors="surrogateescape") for line in lines]
                self.send(pack(FileLines(start, self._reader.offset, texts)).rstrip())
            elif not self._reader.more or not ended:
                return ended
        return False

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop."""
        self._pause()
        self._reader.close()


class MeasurementStream(ItemStream):
    """A measurement at an interval; those that the client does not take in time are left out, and counted."""

    def __init__(
        self,
        request: ClientRequest,
        *,
        every_s: float,
        loop: Loop,
        sample: Callable[[], HostMeasurement],
        ahead: int = AHEAD,
    ) -> None:
        super().__init__(request, ahead=ahead)
        self._every_s, self._loop, self._sample, self._n_missed = every_s, loop, sample, 0
        self._timer = loop.after(every_s, self._due)

    def _due(self) -> None:
        self._timer = self._loop.after(self._every_s, self._due)
        if self.wanted:
            self.send(pack(replace(self._sample(), n_missed=self._n_missed)).rstrip())
        else:
            self._n_missed += 1

    def pump(self) -> None:
        """Wait for the next measurement."""

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()


class MessageForward:
    """One message on its way to a task."""

    def __init__(
        self,
        request: ClientRequest,
        *,
        folder: Path,
        message: Any,  # sent to the task as a line of JSON
        timeout_s: float,  # seconds for everything, also until the task listens
        running: Callable[[], bool],
        loop: Loop,
    ) -> None:
        self._request, self._folder, self._loop, self._running = request, folder, loop, running
        self._out, self._in = bytearray(pack(message)), Lines()
        self._sock: socket.socket | None = None
        self._timer = loop.after(timeout_s, self._late)
        self._again = loop.after(0.0, self._call)

    def _call(self) -> None:
        if not self._request.open:
            self.close()
            return
        if not self._running():
            self._wait()
            return
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            with reached(self._folder / TASK_SOCKET) as address:
                sock.connect(address)
        except OSError:
            sock.close()
            self._wait()
            return
        self._sock = sock
        self._loop.on(sock, self._ready, events=READ | WRITE)

    def _wait(self) -> None:
        if self._running():
            self._again = self._loop.after(AGAIN_S, self._call)
        else:
            self._refuse("ended", "the task has ended, or another process drives its run")

    def _ready(self, events: int) -> None:
        assert self._sock is not None
        try:
            if events & WRITE and self._out:
                del self._out[: self._sock.send(self._out)]
            if not self._out:
                self._loop.on(self._sock, self._ready, events=READ)
            if events & READ:
                self._take(self._sock.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse("deaf", f"the task hung up: {error.strerror}")
        except Refusal as error:
            self._refuse("deaf", f"the task's answer is of no use: {error}")

    def _take(self, data: bytes) -> None:
        self._in.feed(data)
        line = self._in.take()
        if line is None:
            if not data:
                self._refuse("deaf", "the task hung up without an answer")
            return
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse("deaf", "the task's answer is not JSON")
            return
        self.close()
        if self._request.open:
            self._request.reply(answer)

    def _late(self) -> None:
        done = "did not answer" if self._sock is not None else f"did not listen on {TASK_SOCKET}"
        self._refuse("deaf", f"the task {done} in time")

    def _refuse(self, kind: str, message: str) -> None:
        self.close()
        if self._request.open:
            self._request.refuse(Refusal(kind, message))

    def close(self) -> None:
        """Close the connection to the task."""
        self._timer.cancel()
        self._again.cancel()
        if self._sock is not None:
            self._loop.off(self._sock)
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None

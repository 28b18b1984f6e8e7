"""A connection to an agent: requests with answers, things that come in over time, and the end of it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, Protocol

from labkit.core.errors import LabkitError
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.agent.shapes import Bridge, readable, shaped
from labkit.testbed.agent.watching import Subscription
from labkit.testbed.agent.wire import MARK, MAX_LINE, Lines, Refusal, pack, unpack

NOISE: Final = 1 << 16
"""Bytes that a login shell may say before the bridge begins."""


class ByteStream(Protocol):
    """Bytes both ways; `read` waits for at least one byte, and returns none at the end."""

    def read(self, n: int, /) -> bytes:
        """Return up to so many bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of them."""

    def close(self) -> None:
        """End both directions."""


class _Answer:
    """Where the answer to a request arrives."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.ok: Any = None
        self.error: AgentError | None = None

    def finish(self, ok: Any = None, error: AgentError | None = None) -> None:
        self.ok, self.error = ok, error
        self.done.set()

    def item(self, item: Any) -> None:
        """Drop what nobody expects."""


class AgentLink:
    """Asks, and hears answers, in two threads of its own: Ctrl-C, which strikes the main one, cuts no line in half.

    Parameters
    ----------
    stream : ByteStream
        To the bridge.
    timeout_s : float
        For each answer, where none is given with the request.

    Attributes
    ----------
    bridge : Bridge
        First line of the bridge.
    """

    def __init__(self, stream: ByteStream, *, timeout_s: float) -> None:
        self._stream, self._timeout_s = stream, timeout_s
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: dict[int, _Answer | Subscription[Any]] = {}
        self._gone: AgentError | None = None
        self._began = threading.Event()
        self.bridge = Bridge()
        self._reader = threading.Thread(target=self._read, name="agent-reader", daemon=True)
        self._reader.start()
        self._writer = threading.Thread(target=self._write, name="agent-writer", daemon=True)
        self._writer.start()

    def begun(self) -> None:
        """Wait until the bridge has said what it is."""
        if not self._began.wait(self._timeout_s):
            raise AgentTimeout(f"the bridge did not begin within {self._timeout_s:g} s")

    def ended(self) -> None:
        """Wait until the other side has ended the connection, but not for ever."""
        self._reader.join(self._timeout_s)

    def close(self) -> None:
        """End the connection, once what was asked has been sent; whatever was started goes on."""
        self._lines.put(None)
        self._writer.join(1.0)
        self._end(AgentGone("the connection to the agent was closed"))
        with contextlib.suppress(OSError):
            self._stream.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(5.0)

    def request(self, verb: str, *, wait_s: float | None = None, **arguments: Any) -> Any:
        """Ask anything, and return the answer."""
        answer = _Answer()
        number = self._send(verb, arguments, answer)
        wait_s = self._timeout_s if wait_s is None else wait_s
        if not answer.done.wait(wait_s):
            with self._lock:
                self._waiting.pop(number, None)
            raise AgentTimeout(f"the agent did not answer {verb!r} within {wait_s:g} s")
        if answer.error is not None:
            raise answer.error
        return answer.ok

    def watching(
        self,
        verb: str,
        *,
        unfold: Callable[[Any], Sequence[tuple[int, Any]]] | None = None,
        last: int = 0,
        ahead: int = 64,
        **arguments: Any,
    ) -> Subscription[Any]:
        """Ask for things that come in over time; `unfold` makes numbered ones of each item."""
        watching: Subscription[Any] = Subscription(unfold or (lambda item: [(0, item)]), last=last, ahead=ahead)
        number = self._send(verb, {**arguments, "ahead": ahead}, watching)
        watching.bind(
            more=lambda n: self._quietly("more", request=number, n=n),
            cancel=lambda: self._quietly("cancel", request=number),
        )
        return watching

    def _quietly(self, verb: str, **arguments: Any) -> None:
        """Say something whose answer is of no interest."""
        with contextlib.suppress(AgentError):
            self._send(verb, arguments, _Answer())

    def _send(self, verb: str, arguments: Mapping[str, Any], answer: _Answer | Subscription[Any]) -> int:
        number = next(self._numbers)
        line = pack({"id": number, "verb": verb, **arguments})
        if len(line) > MAX_LINE:
            raise AgentRefused(f"{verb}: {len(line)} bytes; at most {MAX_LINE} fit into a request", kind="oversized")
        with self._lock:
            if self._gone is not None:
                raise self._gone
            self._waiting[number] = answer
        self._lines.put(line)
        return number

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._stream.write(line)
        except (OSError, ValueError) as error:
            self._reader.join(1.0)  # the bridge may have said why
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))

    # --- what is read

    def _read(self) -> None:
        lines, noise = Lines(2 * MAX_LINE), bytearray()
        try:
            while data := self._stream.read(1 << 16):
                lines.feed(data)
                while (line := lines.take()) is not None:
                    self._hear(line, noise)
        except (OSError, ValueError, Refusal, EOFError, LabkitError) as error:
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))
        else:
            said = bytes(noise).decode(errors="replace").strip()
            hint = "" if self._began.is_set() else f" before the bridge began{': ' + said[-500:] if said else ''}"
            self._end(AgentGone(f"the connection to the agent ended{hint}"))

    def _hear_before(self, line: bytes, noise: bytearray) -> None:
        """Take in what comes until the bridge has begun."""
        _, mark, told = line.rpartition(MARK)  # an unterminated line may stand before it
        if mark:
            self.bridge = shaped(Bridge, unpack(told))
            self._began.set()
        elif len(noise) < NOISE:
            noise += line + b"\n"
        else:
            raise Refusal("oversized", f"it said more than {NOISE >> 10} KiB before the bridge began")

    def _hear(self, line: bytes, noise: bytearray) -> None:
        if not self._began.is_set():
            self._hear_before(line, noise)
            return
        said = unpack(line)
        number = said.get("id")
        if number is not None and not isinstance(number, int):
            raise Refusal("malformed", "an answer has an id that no question has")
        error = _error(said["error"]) if "error" in said else None
        if number is None:
            if error is not None:
                self._end(error)
            return
        with self._lock:
            answer = self._waiting.get(number) if "item" in said else self._waiting.pop(number, None)
        if answer is None:
            return
        if "item" in said:
            answer.item(said["item"])
        else:
            answer.finish(said.get("ok"), error)

    def _end(self, error: AgentError) -> None:
        """Tell everybody who waits that nothing will come."""
        with self._lock:
            self._gone = self._gone or error
            waiting, self._waiting = list(self._waiting.values()), {}
        self._began.set()
        self._lines.put(None)
        for answer in waiting:
            answer.finish(None, self._gone)


def _error(said: object) -> AgentRefused:
    told = said if isinstance(said, dict) else {}
    return AgentRefused(
        readable(str(told.get("message", "?")), at_most=4000), kind=readable(str(told.get("kind", "?")))[:40]
    )

"""A connection to an agent: requests and answers, subscriptions, and its end."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any, Final, Protocol

from labkit.core.errors import LabkitError
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.agent.fences import FENCED, ORDERS, Fence
from labkit.testbed.agent.shapes import Bridge, readable, shaped
from labkit.testbed.agent.watching import Subscription
from labkit.testbed.agent.wire import MARK, MAX_LINE, Lines, Refusal, pack, unpack

NOISE: Final = 1 << 16
"""Most bytes that a login shell may write before the bridge begins."""


class ByteStream(Protocol):
    """A stream of bytes in both directions; `read` waits for at least one byte, and returns none at the end."""

    def read(self, n: int, /) -> bytes:
        """Return up to so many bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of them."""

    def close(self) -> None:
        """End the connection after pending requests were sent; tasks go on."""


class _Answer:
    """The answer to a request, once it arrives."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.ok: Any = None
        self.error: AgentError | None = None

    def finish(self, ok: Any = None, error: AgentError | None = None) -> None:
        self.ok, self.error = ok, error
        self.done.set()

    def item(self, item: Any) -> None:
        """Ignore an item: the request is no subscription."""


class AgentLink:
    """Sends requests and receives answers, in two threads of its own: Ctrl-C in the main thread cuts no line in half.

    Parameters
    ----------
    stream : ByteStream
        To the bridge.
    timeout_s : float
        Seconds to wait for an answer, unless a request gives its own.

    Attributes
    ----------
    bridge : Bridge
        First line of the bridge.
    fence : Fence, optional
        Sent with every order: which process drives the run.
    on_fenced : callable
        Called where an order is refused since another process drives the run: with what that is.
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
        self.fence: Fence | None = None
        self.on_fenced: Callable[[str], None] = lambda _by: None
        self._reader = threading.Thread(target=self._read, name="agent-reader", daemon=True)
        self._reader.start()
        self._writer = threading.Thread(target=self._write, name="agent-writer", daemon=True)
        self._writer.start()

    def begun(self) -> None:
        """Wait for the first line of the bridge."""
        if not self._began.wait(self._timeout_s):
            raise AgentTimeout(f"the bridge did not begin within {self._timeout_s:g} s")

    def ended(self) -> None:
        """Wait until the other side has ended the connection, at most `timeout_s`."""
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
        """Send a request, and return its answer."""
        answer = _Answer()
        if self.fence is not None and verb in ORDERS:
            arguments["fence"] = asdict(self.fence)
        number = self._send(verb, arguments, answer)
        wait_s = self._timeout_s if wait_s is None else wait_s
        if not answer.done.wait(wait_s):
            with self._lock:
                self._waiting.pop(number, None)
            raise AgentTimeout(f"the agent did not answer {verb!r} within {wait_s:g} s")
        if isinstance(answer.error, AgentRefused) and answer.error.kind == FENCED:
            self.on_fenced(str(answer.error))
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
        """Subscribe to items; `unfold` makes numbered values of each item."""
        watching: Subscription[Any] = Subscription(unfold or (lambda item: [(0, item)]), last=last, ahead=ahead)
        number = self._send(verb, {**arguments, "ahead": ahead}, watching)
        watching.bind(
            more=lambda n: self._quietly("more", request=number, n=n),
            cancel=lambda: self._quietly("cancel", request=number),
        )
        return watching

    def _quietly(self, verb: str, **arguments: Any) -> None:
        """Send a request whose answer is ignored."""
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
            self._reader.join(1.0)  # the bridge may have sent why
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))

    # --- incoming lines

    def _read(self) -> None:
        lines, noise = Lines(2 * MAX_LINE), bytearray()
        try:
            while data := self._stream.read(1 << 16):
                lines.feed(data)
                while (line := lines.take()) is not None:
                    self._take_line(line, noise)
        except (OSError, ValueError, Refusal, EOFError, LabkitError) as error:
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))
        else:
            text = bytes(noise).decode(errors="replace").strip()
            hint = "" if self._began.is_set() else f" before the bridge began{': ' + text[-500:] if text else ''}"
            self._end(AgentGone(f"the connection to the agent ended{hint}"))

    def _take_noise(self, line: bytes, noise: bytearray) -> None:
        """Take in a line before the bridge has begun."""
        _, mark, bridge = line.rpartition(MARK)  # an unterminated line may stand before it
        if mark:
            self.bridge = shaped(Bridge, unpack(bridge))
            self._began.set()
        elif len(noise) < NOISE:
            noise += line + b"\n"
        else:
            raise Refusal("oversized", f"the login shell wrote more than {NOISE >> 10} KiB before the bridge began")

    def _take_line(self, line: bytes, noise: bytearray) -> None:
        if not self._began.is_set():
            self._take_noise(line, noise)
            return
        message = unpack(line)
        number = message.get("id")
        if number is not None and not isinstance(number, int):
            raise Refusal("malformed", "an answer has an id that no request has")
        error = _error(message["error"]) if "error" in message else None
        if number is None:
            if error is not None:
                self._end(error)
            return
        with self._lock:
            answer = self._waiting.get(number) if "item" in message else self._waiting.pop(number, None)
        if answer is None:
            return
        if "item" in message:
            answer.item(message["item"])
        else:
            answer.finish(message.get("ok"), error)

    def _end(self, error: AgentError) -> None:
        """Fail all requests that wait for an answer."""
        with self._lock:
            self._gone = self._gone or error
            waiting, self._waiting = list(self._waiting.values()), {}
        self._began.set()
        self._lines.put(None)
        for answer in waiting:
            answer.finish(None, self._gone)


def _error(value: object) -> AgentRefused:
    error = value if isinstance(value, dict) else {}
    return AgentRefused(
        readable(str(error.get("message", "?")), at_most=4000), kind=readable(str(error.get("kind", "?")))[:40]
    )

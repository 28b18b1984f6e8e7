"""A client of the agent of a host, over any stream of bytes to its bridge."""

from __future__ import annotations

import base64
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, count
from typing import Any, Final, Generic, Protocol, TypeVar

from labkit.core.errors import LabkitError
from labkit.testbed.agent.fences import FENCED, ORDERS, Fence
from labkit.testbed.agent.messages import (
    MARK,
    MAX_LINE,
    PROTOCOL,
    Bridge,
    ClaimedGpus,
    Data,
    Event,
    FileLines,
    FolderRow,
    GpuAsk,
    Hello,
    HostMeasurement,
    Leader,
    Lines,
    ListedRun,
    Refusal,
    RenewedLease,
    StartedTask,
    YardstickReading,
    named_runs,
    pack,
    readable,
    shaped,
    unpack,
)
from labkit.testbed.errors import AgentError, AgentGone, AgentRefused, AgentTimeout, AgentVersion

T = TypeVar("T")
NOISE: Final = 1 << 16
"""Most bytes that a login shell may write before the bridge begins."""
Gpus = int | Sequence[int | str] | Sequence[GpuAsk]
"""A number of GPUs; numbers or identifiers of some; or a number of some: ``[{"n": 1, "of": [0, 1]}]``."""


class Subscription(Iterator[T], Generic[T]):
    """Events, lines or measurements, as they come.

    Parameters
    ----------
    unfold : callable
        From an item to values, each with a number.
    last : int
        Number of the value before the first one.
    ahead : int
        Items that the agent may send before they are taken here.

    Attributes
    ----------
    last : int
        Number of the last value that was taken: where to go on after the connection was lost.
    end : dict, optional
        Last message of the agent.
    """

    def __init__(self, unfold: Callable[[Any], Sequence[tuple[int, T]]], *, last: int, ahead: int) -> None:
        self._unfold, self.last, self._ahead = unfold, last, ahead
        self._items: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._here: list[tuple[int, T]] = []
        self._n_taken = 0
        self._more: Callable[[int], None] = lambda _: None
        self._cancel: Callable[[], None] = lambda: None
        self._over: AgentError | bool | None = False
        self.end: dict[str, Any] | None = None

    def bind(self, *, more: Callable[[int], None], cancel: Callable[[], None]) -> None:
        """Set the functions that request more items, and that cancel the subscription."""
        self._more, self._cancel = more, cancel

    def item(self, item: Any) -> None:
        """Take in an item; an agent that sends more than was requested fails the subscription."""
        if self._items.qsize() <= 2 * self._ahead + 16:
            self._items.put(("item", item))
        else:
            self.finish(error=AgentRefused("the agent sends more than it was asked for", kind="malformed"))

    def finish(self, ok: Any = None, error: AgentError | None = None) -> None:
        """Take in the end of the subscription."""
        self._items.put(("end", error if error is not None else ok))

    def __next__(self) -> T:
        return self.next(timeout_s=None)

    def next(self, *, timeout_s: float | None) -> T:
        """Return the next value; AgentTimeout if none came in time, more may come; StopIteration at the end."""
        while not self._here:
            if self._over is not False:
                raise self._over if isinstance(self._over, AgentError) else StopIteration
            self._take(timeout_s)
        self.last, value = self._here.pop(0)
        return value

    def _take(self, timeout_s: float | None) -> None:
        try:
            kind, item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentTimeout(f"nothing came within {timeout_s:g} s") from None
        if kind == "end":
            self._over = item if isinstance(item, AgentError) else True
            self.end = item if isinstance(item, dict) else None
            return
        self._here = list(self._unfold(item))
        self._n_taken += 1
        if self._n_taken * 2 >= self._ahead:
            self._more(self._n_taken)
            self._n_taken = 0

    def close(self) -> None:
        """Cancel the subscription."""
        if self._over is False:
            self._cancel()
            self._over = True
            self._here.clear()

    def __enter__(self) -> Subscription[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ByteStream(Protocol):
    """A stream of bytes in both directions; `read` waits for at least one byte, and returns none at the end."""

    def read(self, n: int, /) -> bytes:
        """Return up to so many bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of them."""

    def close(self) -> None:
        """End the connection after pending requests were sent; tasks go on."""


class _Answer:
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

    def await_greeting(self) -> None:
        """Wait for the first line of the bridge."""
        if not self._began.wait(self._timeout_s):
            raise AgentTimeout(f"the bridge did not begin within {self._timeout_s:g} s")

    def await_end(self) -> None:
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


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A piece of a file."""

    offset: int
    """Offset of its first byte; larger than requested if the file has a hole there."""
    data: bytes
    """Empty at the end."""
    size: int
    """Of the whole file, in bytes."""


class Agent(AgentLink):
    """The agent of a host.

    Every method may raise AgentRefused, AgentTimeout and AgentGone. Methods may be called from several threads.

    Parameters
    ----------
    stream : ByteStream
        To the bridge on that host.
    timeout_s : float
        For each answer, where a method has none of its own.

    Attributes
    ----------
    hello : Hello
        What agent and host are.
    bridge : Bridge
        Build, Python and search path of the labkit that is installed there.

    Raises
    ------
    AgentVersion
        If the agent speaks another protocol; `Agent.connect` restarts it.
    """

    def __init__(self, stream: ByteStream, *, timeout_s: float = 20.0) -> None:
        super().__init__(stream, timeout_s=timeout_s)
        try:
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> Hello:
        self.await_greeting()
        try:
            hello: Hello = shaped(Hello, self.request("hello", protocol=PROTOCOL))
            return hello
        except AgentRefused as error:
            if error.kind != "protocol":
                raise
            raise AgentVersion(str(error), kind=error.kind) from None

    @classmethod
    def connect(cls, dial: Callable[[], ByteStream], *, renew: bool = True, timeout_s: float = 20.0) -> Agent:
        """Connect; an agent of another labkit than the installed one is replaced, and its tasks go on.

        An agent of the same protocol is replaced only while it has no other client.

        Parameters
        ----------
        dial : callable
            Opens a stream to the bridge.
        renew : bool
            False leaves the agent as it is.
        timeout_s : float
            For each answer.
        """
        try:
            agent = cls(dial(), timeout_s=timeout_s)
        except AgentVersion:
            if not renew:
                raise
            link = AgentLink(dial(), timeout_s=timeout_s)
            restart(link)
        else:
            if not (renew and agent.outdated and agent.hello.n_clients == 1):
                return agent
            agent.restart()
        return cls(dial(), timeout_s=timeout_s)

    @property
    def outdated(self) -> bool:
        """Whether the running agent is of another labkit than the installed one."""
        return self.hello.build != self.bridge.build

    # --- verbs

    def start(
        self,
        run: str,
        *,
        task: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
        gpus: Gpus | None = None,
        beside: str | None = None,
        files: Mapping[str, bytes] | None = None,
        nice: int = 0,
        lease_s: float = 600.0,
    ) -> StartedTask:
        """Start a task: a process with a folder of its own.

        Parameters
        ----------
        run, task : str
            Names: letters, digits, ``. _ -``, at most 80. The run is made if there is none, with a lease.
        argv : sequence of str
            Program and arguments; no shell.
        env : mapping
            Added to a small base (PATH, HOME, ...) of its environment.
        cores : sequence of int, optional
            Cores that it may run on; None: all.
        gpus : int or sequence, optional
            GPUs that it holds until none of its processes is left, and alone sees: how many, numbers or identifiers,
            or ``[{"n": 1, "of": [0, 1]}]``. 0 hides all, None leaves them as they are.
        beside : str, optional
            A task of the same run whose GPUs it may share.
        files : mapping
            Path in its folder to contents, written before it starts, readable by its owner alone.
        nice : int
            0 to 19.
        lease_s : float
            Seconds from now for which the run goes on at least without `renew`.

        Returns
        -------
        StartedTask
            Its process and folder.
        """
        sent = {path: {"data": base64.b64encode(data).decode()} for path, data in (files or {}).items()}
        answer = self.request(
            "start", run=run, task=task, argv=[str(word) for word in argv], env=dict(env or {}),
            cores=None if cores is None else [int(core) for core in cores],
            gpus=_listed(gpus), beside=beside, files=sent, nice=nice, lease_s=lease_s,
        )  # fmt: skip
        started: StartedTask = shaped(StartedTask, answer)
        return started

    def claim(self, run: str, *, task: str, gpus: Gpus, beside: str | None = None) -> dict[str, str]:
        """Give a running task other GPUs, requested as in `start`; return identifiers by number.

        GPUs that it gives back are free once none of its processes sees them.
        """
        answer = self.request("claim", run=run, task=task, gpus=_listed(gpus), beside=beside)
        claimed: ClaimedGpus = shaped(ClaimedGpus, answer)
        return claimed.gpus

    def tell(self, run: str, *, task: str, message: Any, timeout_s: float = 30.0) -> Any:
        """Send a message to a task, and return its answer; a task that does not listen yet is waited for."""
        wait_s = timeout_s + self._timeout_s
        return self.request("tell", run=run, task=task, message=message, timeout_s=timeout_s, wait_s=wait_s)

    def stop(self, run: str, *, task: str | None = None, grace_s: float = 5.0, wait: bool = True) -> dict[str, str]:
        """End a task, or a run, which is over then; return how each task ended, once no process of them is left.

        They get SIGTERM, and SIGKILL after `grace_s`. Without `wait`, events report the end.
        """
        wait_s = grace_s + 15.0 + self._timeout_s
        answer = self.request("stop", run=run, task=task, grace_s=grace_s, wait=wait, wait_s=wait_s)
        ends: dict[str, str] = shaped(dict[str, str], answer)
        return ends

    def renew(self, run: str, *, lease_s: float = 600.0, wait_s: float | None = None) -> Sequence[YardstickReading]:
        """Extend the lease of a run to `lease_s` from now; 0 ends it. `wait_s`: seconds for the answer.

        Returns the last readings of the host's yardstick, which an agent takes while tasks run.
        """
        answer = self.request("renew", run=run, lease_s=lease_s, wait_s=wait_s)
        renewed: RenewedLease = shaped(RenewedLease, answer)
        return renewed.yardstick

    def list(self, run: str | None = None) -> Sequence[ListedRun]:
        """Return all runs, or one, with their tasks."""
        return named_runs(self.request("list", run=run))

    def leader(self, fence: str) -> Leader:
        """Return which process drives the runs of a fence."""
        led: Leader = shaped(Leader, self.request("leader", fence=fence))
        return led

    def lead(self, fence: Fence) -> None:
        """Drive the runs of a fence: every order carries it from now on; refused (fenced) if another process does."""
        self.request("lead", fence=asdict(fence))
        self.fence = fence

    def measure(self, *, pss: bool = False, each: bool = False) -> HostMeasurement:
        """Return the resources that host and tasks use now.

        `pss` counts shared memory once, and takes longer; `each` adds processor seconds and memory of each process.
        """
        measurement: HostMeasurement = shaped(HostMeasurement, self.request("measure", pss=pss, each=each))
        return measurement

    def measuring(self, *, every_s: float = 1.0) -> Subscription[HostMeasurement]:
        """Return measurements at an interval, without end."""
        return self.watching(
            "measure", unfold=lambda item: [(0, shaped(HostMeasurement, item))], ahead=8, every_s=every_s
        )

    def watch(self, run: str, *, since: int = 0) -> Subscription[Event]:
        """Return the events of a run after number `since`, and those to come, until it is over.

        `Subscription.last` is the number from which to go on after AgentGone: no event is missed or repeated.
        """
        return self.watching("watch", unfold=_events, last=since, run=run, since=since)

    def follow(self, run: str, *, task: str, file: str = "log", offset: int = 0) -> Subscription[str]:
        """Return the complete lines of a file of a task, and those to come, until the task has ended.

        `Subscription.last` is the offset from which to go on after AgentGone.
        """
        return self.watching("follow", unfold=_lines, last=offset, run=run, task=task, file=file, offset=offset)

    def read(self, run: str, *, task: str, file: str, offset: int = 0, n_bytes: int = 1 << 20) -> FilePiece:
        """Return a piece of a file of a task, at most 4 MiB."""
        answer = self.request("read", run=run, task=task, file=file, offset=offset, n_bytes=n_bytes)
        piece: Data = shaped(Data, answer)
        try:
            data = base64.b64decode(piece.data, validate=True)
        except ValueError:
            raise AgentRefused(f"what came of {file} is not base64", kind="malformed") from None
        if len(data) > n_bytes:
            raise AgentRefused(f"{len(data)} bytes of {file} came, more than the {n_bytes} asked for", kind="malformed")
        return FilePiece(piece.offset, data, piece.size)

    def gc(self, *, older_s: float = 86400.0, dry_run: bool = False) -> Sequence[FolderRow]:
        """Remove the folders of runs that have been over for `older_s` seconds; return a row for each folder."""
        rows: Sequence[FolderRow] = shaped(
            list[FolderRow], self.request("gc", older_s=older_s, dry_run=dry_run, wait_s=600.0)
        )
        return rows

    def shutdown(self) -> None:
        """End the agent, and wait for its end; refused (busy) while a task runs. A bridge starts another agent."""
        self.request("shutdown")
        self.await_end()
        self.close()

    def restart(self) -> None:
        """Replace the agent by the installed one; tasks go on. Connect again afterwards."""
        restart(self)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def restart(link: AgentLink) -> None:
    """Replace an agent of any protocol by the installed one, and end the connection."""
    link.await_greeting()
    link.request("restart", python=link.bridge.python, path=link.bridge.path, wait_s=60.0)
    link.close()


def _events(item: Any) -> list[tuple[int, Event]]:
    """Return the events of an item, each with its number."""
    return [(event.n, event) for event in shaped(list[Event], item)]


def _lines(item: Any) -> list[tuple[int, str]]:
    """Return the lines of an item, each with the offset of the next one."""
    piece: FileLines = shaped(FileLines, item)
    raw = [line.encode(errors="surrogateescape") for line in piece.lines]
    ends = [*(piece.offset + n for n in accumulate(len(line) + 1 for line in raw[:-1])), piece.next]
    return [(end, line.decode(errors="replace")) for end, line in zip(ends, raw, strict=True)]


def _listed(gpus: Gpus | None) -> Any:
    """Return GPUs in the form of a request."""
    if gpus is None or isinstance(gpus, int):
        return gpus
    return list(gpus)

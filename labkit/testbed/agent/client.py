"""Ask the agent of a host, over any stream of bytes that leads to its bridge."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any, Final, Protocol

from labkit.testbed.agent.build import version
from labkit.testbed.agent.errors import AgentError, AgentGone, AgentRefused, AgentTimeout, AgentVersion
from labkit.testbed.agent.watching import Watching
from labkit.testbed.agent.wire import MARK, MAX_LINE, PROTOCOL, Lines, Refused, pack, unpack

NOISE: Final = 1 << 16
"""Bytes that a login shell may say before the bridge begins."""


class Stream(Protocol):
    """Bytes both ways; `read` waits for at least one byte, and returns none at the end."""

    def read(self, n: int, /) -> bytes:
        """Return up to so many bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all of them."""

    def close(self) -> None:
        """End both directions."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file.

    Attributes
    ----------
    offset : int
        Of its first byte; behind what was asked for where the file has a hole.
    data : bytes
        Empty at the end.
    size : int
        Of the whole file, in bytes.
    """

    offset: int
    data: bytes
    size: int


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


class Agent:
    """The agent of a host.

    Every method may raise AgentRefused, AgentTimeout and AgentGone. Methods may be called from several threads.

    Parameters
    ----------
    stream : Stream
        To the bridge on that host.
    timeout_s : float
        For each answer, where a method has none of its own.

    Attributes
    ----------
    hello : dict
        What agent and host are: protocol, labkit, build, python, host, pid, boot, folder, cores, memory_mb, gpus,
        wall_s (its clock, when it answered), boot_s.
    bridge : dict
        What the labkit installed there is: protocol, build, python, path.

    Raises
    ------
    AgentVersion
        If the agent speaks another protocol; `Agent.connect` restarts it.
    """

    def __init__(self, stream: Stream, *, timeout_s: float = 20.0) -> None:
        self._start_reading(stream, timeout_s)
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _start_reading(self, stream: Stream, timeout_s: float) -> None:
        self._stream, self._timeout_s = stream, timeout_s
        self._numbers = count(1)
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._waiting: dict[int, _Answer | Watching[Any]] = {}
        self._gone: AgentError | None = None
        self._began = threading.Event()
        self.hello: dict[str, Any] = {}
        self.bridge: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read, name="agent-reader", daemon=True)
        self._reader.start()

    def _greet(self) -> None:
        if not self._began.wait(self._timeout_s):
            raise AgentTimeout(f"the bridge did not begin within {self._timeout_s:g} s")
        try:
            self.hello = self.request("hello", protocol=PROTOCOL)
        except AgentRefused as error:
            if error.kind != "protocol":
                raise
            raise AgentVersion(str(error), kind=error.kind) from None

    @classmethod
    def connect(cls, dial: Callable[[], Stream], *, renew: bool = True, timeout_s: float = 20.0) -> Agent:
        """Connect; an agent of another labkit than the one installed there is replaced, its tasks go on.

        Parameters
        ----------
        dial : callable
            Opens a stream to the bridge.
        renew : bool
            False leaves an agent as it is, if it speaks our protocol.
        timeout_s : float
            For each answer.
        """
        agent = cls.__new__(cls)
        agent._start_reading(dial(), timeout_s)
        try:
            agent._greet()
        except AgentVersion:
            if not renew:
                agent.close()
                raise
        except BaseException:
            agent.close()
            raise
        if agent.hello and not (renew and agent.outdated):
            return agent
        agent.restart()
        return cls(dial(), timeout_s=timeout_s)

    @property
    def outdated(self) -> bool:
        """Whether another agent is installed there than the one that runs."""
        return bool(self.hello.get("build") != self.bridge.get("build"))

    # --- verbs

    def start(
        self,
        run: str,
        *,
        task: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
        gpus: Sequence[int | str] | None = None,
        files: Mapping[str, bytes] | None = None,
        nice: int = 0,
        lease_s: float = 600.0,
    ) -> dict[str, Any]:
        """Start a task: a process with a folder of its own.

        Parameters
        ----------
        run, task : str
            Names: letters, digits, ``. _ -``, at most 80. The run is made if there is none, with a lease.
        argv : sequence of str
            Program and arguments; no shell.
        env : mapping
            Its environment, beside a small base (PATH, HOME, ...).
        cores : sequence of int, optional
            It may run on those alone.
        gpus : sequence, optional
            It sees those alone; an empty one hides all, None leaves them as they are.
        files : mapping
            Path in its folder to contents, written before it starts, readable by its owner alone.
        nice : int
            0 to 19.
        lease_s : float
            The run goes on for at least so long from now without `renew`.

        Returns
        -------
        dict
            pid, folder.
        """
        sent = {path: {"data": base64.b64encode(data).decode()} for path, data in (files or {}).items()}
        return dict(
            self.request(
                "start", run=run, task=task, argv=[str(word) for word in argv], env=dict(env or {}),
                cores=None if cores is None else [int(core) for core in cores],
                gpus=None if gpus is None else list(gpus), files=sent, nice=nice, lease_s=lease_s,
            )
        )  # fmt: skip

    def tell(self, run: str, *, task: str, message: Any, timeout_s: float = 30.0) -> Any:
        """Hand a message to a task, and return its answer; one that only begins to listen is waited for."""
        wait_s = timeout_s + self._timeout_s
        return self.request("tell", run=run, task=task, message=message, timeout_s=timeout_s, wait_s=wait_s)

    def stop(self, run: str, *, task: str | None = None, grace_s: float = 5.0, wait: bool = True) -> dict[str, str]:
        """End a task, or a whole run, which then is over; return how each ended once nothing of them is left.

        They are asked by SIGTERM, and killed after `grace_s`. Without `wait`, events tell the end.
        """
        wait_s = grace_s + 15.0 + self._timeout_s
        return dict(self.request("stop", run=run, task=task, grace_s=grace_s, wait=wait, wait_s=wait_s))

    def renew(self, run: str, *, lease_s: float = 600.0) -> None:
        """Let a run go on for so long from now; 0 ends it."""
        self.request("renew", run=run, lease_s=lease_s)

    def list(self, run: str | None = None) -> list[dict[str, Any]]:
        """Return runs (or one) with their tasks: run, over, over_s, lease_left_s, last_event, tasks by name."""
        return list(self.request("list", run=run))

    def measure(self, *, pss: bool = False) -> dict[str, Any]:
        """Return what host and tasks use now; `pss` counts shared memory once, and takes longer."""
        return dict(self.request("measure", pss=pss))

    def measuring(self, *, every_s: float = 1.0) -> Watching[dict[str, Any]]:
        """Return a measurement each so many seconds, without end."""
        return self._watch("measure", ahead=8, every_s=every_s)

    def watch(self, run: str, *, since: int = 0) -> Watching[dict[str, Any]]:
        """Return the events of a run after a number, and those to come, until it is over.

        `Watching.last` is the number from which to go on after AgentGone: nothing is missed, nothing comes twice.
        """
        return self._watch("watch", unfold=lambda item: [(each["n"], each) for each in item], last=since,
                           run=run, since=since)  # fmt: skip

    def follow(self, run: str, *, task: str, file: str = "log", offset: int = 0) -> Watching[str]:
        """Return the complete lines of a file of a task as they come, until the task has ended.

        `Watching.last` is the offset from which to go on after AgentGone.
        """
        return self._watch("follow", unfold=_lines, last=offset, run=run, task=task, file=file, offset=offset)

    def read(self, run: str, *, task: str, file: str, offset: int = 0, n_bytes: int = 1 << 20) -> Piece:
        """Return a piece of a file of a task, at most 4 MiB."""
        said = self.request("read", run=run, task=task, file=file, offset=offset, n_bytes=n_bytes)
        return Piece(said["offset"], base64.b64decode(said["data"]), said["size"])

    def shutdown(self) -> None:
        """End the agent; refused (busy) while anything runs. The next bridge starts another one."""
        self.request("shutdown")
        self.close()

    def restart(self) -> None:
        """Let the agent become the one that is installed there; tasks go on. Connect again afterwards."""
        self.request("restart", python=self.bridge.get("python"), path=self.bridge.get("path"), wait_s=60.0)
        self.close()

    def close(self) -> None:
        """End the connection; whatever was started goes on."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self._end(AgentGone("the connection to the agent was closed"))
        if threading.current_thread() is not self._reader:
            self._reader.join(5.0)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests

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

    def _watch(
        self,
        verb: str,
        *,
        unfold: Callable[[Any], Sequence[tuple[int, Any]]] | None = None,
        last: int = 0,
        ahead: int = 64,
        **arguments: Any,
    ) -> Watching[Any]:
        watching: Watching[Any] = Watching(unfold or (lambda item: [(0, item)]), last=last, ahead=ahead)
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

    def _send(self, verb: str, arguments: Mapping[str, Any], answer: _Answer | Watching[Any]) -> int:
        number = next(self._numbers)
        line = pack({"id": number, "verb": verb, **arguments})
        if len(line) > MAX_LINE:
            raise AgentRefused(f"{verb}: {len(line)} bytes; at most {MAX_LINE} fit into a request", kind="oversized")
        with self._lock:
            if self._gone is not None:
                raise self._gone
            self._waiting[number] = answer
        try:
            with self._writing:
                self._stream.write(line)
        except (OSError, ValueError) as error:
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))
        return number

    # --- what is read

    def _read(self) -> None:
        lines, noise = Lines(2 * MAX_LINE), bytearray()
        try:
            while data := self._stream.read(1 << 16):
                lines.feed(data)
                while (line := lines.take()) is not None:
                    self._hear(line, noise)
        except (OSError, ValueError, Refused, EOFError) as error:
            self._end(AgentGone(f"the connection to the agent is gone: {error}"))
        else:
            said = bytes(noise).decode(errors="replace").strip()
            hint = "" if self._began.is_set() else f" before the bridge began{': ' + said[-500:] if said else ''}"
            self._end(AgentGone(f"the connection to the agent ended{hint}"))

    def _hear(self, line: bytes, noise: bytearray) -> None:
        if not self._began.is_set():
            if line.startswith(MARK):
                self.bridge = unpack(line.removeprefix(MARK))
                self._began.set()
            elif len(noise) < NOISE:
                noise += line + b"\n"
            return
        said = unpack(line)
        number = said.get("id")
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
        for answer in waiting:
            answer.finish(None, self._gone)


def _error(said: Mapping[str, str]) -> AgentRefused:
    return AgentRefused(said.get("message", "?"), kind=said.get("kind", "?"))


def _lines(item: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the lines of an item, each with the offset of the next one."""
    raw = [line.encode(errors="surrogateescape") for line in item["lines"]]
    ends = [*(item["offset"] + n for n in accumulate(len(line) + 1 for line in raw[:-1])), item["next"]]
    return [(end, line.decode(errors="replace")) for end, line in zip(ends, raw, strict=True)]


class LocalBridge:
    """A stream to the agent of a folder on this very machine, without SSH.

    Parameters
    ----------
    folder : Path
        Of the agent.
    start : bool
        Start an agent if there is none.
    """

    def __init__(self, folder: Path | str, *, start: bool = True) -> None:
        argv = [sys.executable, "-m", "labkit.testbed.agent.bridge", str(folder)] + ([] if start else ["--no-start"])
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def read(self, n: int) -> bytes:
        """Return up to so many bytes."""
        assert self.process.stdout is not None
        data = b"" if self.process.stdout.closed else self.process.stdout.read(n) or b""
        if not data:
            self.process.stdout.close()
        return data

    def write(self, data: bytes) -> None:
        """Write all of them."""
        assert self.process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[self.process.stdin.write(left) or 0 :]

    def close(self) -> None:
        """End the bridge; the agent goes on."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def installed() -> str:
    """Return the version of this labkit, to be compared with `hello["labkit"]`."""
    return version()

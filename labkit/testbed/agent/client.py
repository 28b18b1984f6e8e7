"""A client of the agent of a host, over any stream of bytes to its bridge."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from labkit.testbed.agent.errors import AgentRefused, AgentVersion
from labkit.testbed.agent.fences import Fence
from labkit.testbed.agent.link import AgentLink, ByteStream
from labkit.testbed.agent.shapes import (
    ClaimedGpus,
    Data,
    Event,
    FileLines,
    FolderRow,
    GpuAsk,
    Hello,
    HostMeasurement,
    Leader,
    ListedRun,
    RenewedLease,
    StartedTask,
    YardstickReading,
    named_runs,
    shaped,
)
from labkit.testbed.agent.watching import Subscription
from labkit.testbed.agent.wire import PROTOCOL

Gpus = int | Sequence[int | str] | Sequence[GpuAsk]
"""A number of GPUs; numbers or identifiers of some; or a number of some: ``[{"n": 1, "of": [0, 1]}]``."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A piece of a file.

    Attributes
    ----------
    offset : int
        Offset of its first byte; larger than requested if the file has a hole there.
    data : bytes
        Empty at the end.
    size : int
        Of the whole file, in bytes.
    """

    offset: int
    data: bytes
    size: int


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
        self.begun()
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
        self.ended()
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
    link.begun()
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

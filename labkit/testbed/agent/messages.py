"""The messages of agent, bridge and client: JSON lines, their types, names, and refusals.

The agent replies with these types (`pack`), and a client decodes them (`shaped`): a host may send anything. A field
that an older agent does not send has a default.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final, TypedDict

from annotated_types import Ge, Gt, Le, Len, Predicate

PROTOCOL: Final = 2
"""Incremented when agents and clients of different versions would misunderstand each other."""
MARK: Final = b"labkit-agent-bridge "
"""Begin of the first line of a bridge; output of the login shell before it is dropped."""
MAX_LINE: Final = 8 << 20
"""Most bytes of one request or reply."""
NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")
Count = Annotated[int, Ge(0), Le(1 << 62)]
Number = Annotated[float, Ge(-1e15), Le(1e15)]
Text = Annotated[str, Len(0, 1 << 16)]


class Refusal(Exception):  # noqa: N818 - a refusal, not a fault
    """The agent does not carry out a request; `kind` is one word for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message

    def to_json(self) -> dict[str, str]:
        """Return it for a reply."""
        return {"kind": self.kind, "message": self.message}


def pack(message: Any) -> bytes:
    r"""Return a line of JSON; a message of `labkit.testbed.agent.messages` becomes an object.

    >>> from labkit.testbed.agent.messages import StartedTask
    >>> pack({"id": 1, "ok": StartedTask(7, "/f")})
    b'{"id":1,"ok":{"pid":7,"folder":"/f","cold":false}}\n'
    """
    return json.dumps(message, separators=(",", ":"), default=_fields).encode() + b"\n"


def _fields(message: Any) -> dict[str, Any]:
    if not is_dataclass(message):
        raise TypeError(f"a {type(message).__name__} is no message")
    return {each.name: getattr(message, each.name) for each in fields(message)}


def unpack(line: bytes) -> dict[str, Any]:
    """Read a line of JSON that must be an object; Refusal if it is not."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refusal("malformed", f"this line is not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise Refusal("malformed", f"expected a JSON object, got {type(message).__name__}")
    return message


def check_name(text: object, what: str) -> str:
    """Return a name, if it can be neither a path that leads out of a folder nor a word of a shell.

    >>> check_name("worker-3.a", "task")
    'worker-3.a'
    >>> check_name("../etc", "task")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    labkit.testbed.agent.messages.Refusal: task '../etc' is no name: letters, digits, ...
    """
    if not isinstance(text, str) or not NAME.fullmatch(text):
        shown = repr(text) if len(repr(text)) < 100 else repr(text)[:97] + "..."
        raise Refusal("name", f"{what} {shown} is no name: letters, digits, . _ - (not first a dot), at most 80")
    return text


class Lines:
    """Cuts a stream of bytes into lines, none longer than `limit`."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit, self._buffer, self._seen = limit, bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the next complete line without its end, or None.

        Raise Refusal if a line is too long; the stream cannot be used any more.
        """
        end = self._buffer.find(b"\n", self._seen)
        if end < 0:
            self._seen = len(self._buffer)
        if (self._seen if end < 0 else end) > self._limit:
            raise Refusal("oversized", f"a line has more than {self._limit} bytes")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._seen = 0
        return line


def now_s() -> float:
    """Return seconds since the host was started; they count on while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Return seconds since 1970, comparable between hosts."""
    return round(time.time_ns() / 1e9, 3)


def _is_line(value: object) -> bool:
    """Return whether a value is text of at most 16 MiB; bytes that are no UTF-8 may be in it as surrogates."""
    try:
        return isinstance(value, str) and len(value.encode(errors="surrogateescape")) <= 1 << 24
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return False


Line = Annotated[Any, Predicate(_is_line)]


class GpuAsk(TypedDict):
    """A request for `n` of some GPUs by number."""

    n: int
    of: list[int]


@dataclass(frozen=True, slots=True)
class Bridge:
    """First line of a bridge: build, Python and search path of the labkit that is installed on its host."""

    build: Text = ""
    python: Text | None = None
    path: Text | None = None


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU of a host; `held_by` names tasks, RUN/TASK."""

    index: Count
    name: Text | None = None
    uuid: Text | None = None
    memory_mb: Number | None = None
    mig: bool = False
    held_by: list[Text] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hello:
    """What agent and host are: the build of labkit that the agent runs, and an id of the host's start (`boot`).

    `wall_s` is the clock of the host when it answered, `boot_s` seconds since its start.
    """

    build: Text
    labkit: Text
    host: Text
    pid: Count
    boot: Text
    machine: Text
    folder: Text
    n_runs: Count
    n_clients: Count
    protocol: Count = 0
    python: Text = ""
    cores: list[Count] = field(default_factory=list)
    memory_mb: Number = 0.0
    wall_s: Number = 0.0
    boot_s: Number = 0.0
    gpus: list[HeldGpu] = field(default_factory=list)
    gpus_absent: Text = ""


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task of a run; `how` it ended is empty while it runs."""

    phase: Text
    how: Text | None = None
    started_s: Number | None = None
    ended_s: Number | None = None
    name: Text = ""
    pid: Count = 0
    code: int | None = None
    signal: Text | None = None
    argv: list[Text] = field(default_factory=list)
    cores: list[Count] | None = None
    gpus: list[Text] | None = None
    leaving: list[Text] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run that an agent lists; `over` is why it is over, empty while it goes on."""

    run: Text
    over: Any
    last_event: Count
    tasks: dict[str, ListedTask] = field(default_factory=dict)
    over_s: Number | None = None
    lease_left_s: Number = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run on a host; fields beyond `task` depend on its kind."""

    n: Count
    kind: Text
    task: Text | None = None
    wall_s: Number = 0.0
    boot_s: Number = 0.0
    pid: Count = 0
    code: int | None = None
    signal: Text | None = None
    how: Text | None = None
    why: Text | None = None
    lease_s: Number | None = None
    grace_s: Number | None = None
    cores: list[Count] | None = None
    gpus: list[Text] | None = None


@dataclass(frozen=True, slots=True)
class FileLines:
    """Lines of a file, the offset of the first one, and that behind the last one."""

    offset: Count
    next: Count
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a file in base64, its offset, and the size of the whole file."""

    offset: Count
    data: Line
    size: Count


@dataclass(frozen=True, slots=True)
class Used:
    """Resources that a task uses; `processes` are processor seconds and `processes_mb` memory by pid, if requested."""

    run: Text
    task: Text
    n_processes: Count
    cpu_percent: Number
    cpu_s: Number
    rss_mb: Number
    gpu_memory_mb: Number
    pss_mb: Number | None = None
    processes: dict[str, Number] = field(default_factory=dict)
    processes_mb: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostUse:
    """Resources that a host has and uses; `cpu_percent` is 100 for one busy core, `busy_s` counts from its start."""

    cpu_percent: Number
    busy_s: Number
    memory_mb: Number
    free_memory_mb: Number
    load: Number = 0.0
    free_disk_mb: Number = 0.0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Load of a GPU; None: the GPU does not report it."""

    index: Count
    name: Text | None = None
    uuid: Text | None = None
    memory_mb: Number | None = None
    used_mb: Number | None = None
    busy_percent: Number | None = None
    memory_busy_percent: Number | None = None
    pcie_tx_mb_s: Number | None = None
    pcie_rx_mb_s: Number | None = None
    power_w: Number | None = None
    mig: bool = False
    processes: dict[str, Number | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs of a host, or why there are none: a line of `labkit.testbed.agent.gpus`."""

    gpus: list[GpuUse] = field(default_factory=list)
    absent: Text = ""


@dataclass(frozen=True, slots=True)
class HostMeasurement:
    """Use of a host and its tasks over the last `over_s` seconds; `n_missed` measurements were left out before it."""

    boot_s: Number
    host: HostUse
    tasks: list[Used]
    wall_s: Number = 0.0
    over_s: Number = 0.0
    gpus: list[GpuUse] = field(default_factory=list)
    gpus_absent: Text = ""
    n_missed: Count = 0


@dataclass(frozen=True, slots=True)
class YardstickReading:
    """Processor seconds that a fixed piece of work took at a moment, and cores of the host that were busy before it."""

    boot_s: Number
    work_s: Annotated[float, Gt(0), Le(1e6)]
    busy_cores: Annotated[float, Ge(0), Le(1e6)] = 0.0


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """How long a run may go on without another call, and the last readings of the host's yardstick."""

    lease_left_s: Number = 0.0
    yardstick: list[YardstickReading] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Leader:
    """Which process drives a run: its generation (0: none), whether it is connected, and its orders so far."""

    generation: Annotated[int, Ge(0), Le(1 << 52)] = 0
    token: Text = ""
    by: Text = ""
    there: bool = False
    n_orders: Count = 0


@dataclass(frozen=True, slots=True)
class StartedTask:
    """Process and folder of a task that was started; `cold`: without a fork server, which was not there yet."""

    pid: Count
    folder: Text
    cold: bool = False


@dataclass(frozen=True, slots=True)
class ClaimedGpus:
    """Identifiers of the GPUs that a task holds, by number."""

    gpus: dict[str, Text]


@dataclass(frozen=True, slots=True)
class FolderRow:
    """Whether the folder of a run was removed, or is to be, and why."""

    n_bytes: Count = 0
    removed: bool = False
    run: Text = ""
    remove: bool = False
    why: Text = ""
    age_s: Number | None = None
    n_files: Count = 0


def shaped(kind: Any, answer: Any) -> Any:
    """Decode a message of an agent as a type of this module; fields that the type does not have are ignored.

    Raise AgentRefused if it has another form: where, and what was expected.
    """
    from pydantic import ValidationError

    from labkit.testbed.errors import AgentRefused  # an agent, which decodes nothing, goes without labkit.core

    try:
        return _adapter(kind).validate_python(answer)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(readable(str(part))[:40] for part in fault["loc"][:6])
        raise AgentRefused(
            f"the agent's answer has not the form that was asked for: {where}: {fault['msg'][:200]}", kind="malformed"
        ) from None


def named_runs(answer: Any) -> list[ListedRun]:
    """Return a list of runs, decoded; each run and task has a name that a run or task can have."""
    from labkit.testbed.errors import AgentRefused

    runs: list[ListedRun] = shaped(list[ListedRun], answer)
    for listed in runs:
        for name in (listed.run, *listed.tasks):
            if not NAME.fullmatch(name):
                raise AgentRefused(
                    f"the agent reports {readable(name)[:80]!r}, a name that no run and no task can have",
                    kind="malformed",
                )
    return runs


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def readable(text: str, *, at_most: int = 500) -> str:
    """Return the beginning of a text from a host, in one line without control characters."""
    return "".join(letter if letter.isprintable() else " " if letter in "\n\t" else "�" for letter in text[:at_most])

"""The shapes of what an agent says, checked here: a host may say anything.

Only what is used here is looked at; what an agent says besides stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le, Len, Predicate

from labkit.testbed.agent.errors import AgentRefused
from labkit.testbed.agent.wire import NAME

T = TypeVar("T")
Count = Annotated[int, Ge(0), Le(1 << 62)]
Number = Annotated[float, Ge(-1e15), Le(1e15)]
Text = Annotated[str, Len(0, 1 << 16)]


def _is_line(said: object) -> bool:
    """Tell whether it is a text of at most 16 MiB; bytes that are no UTF-8 may be in it as surrogates."""
    try:
        return isinstance(said, str) and len(said.encode(errors="surrogateescape")) <= 1 << 24
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return False


Line = Annotated[Any, Predicate(_is_line)]


@dataclass(frozen=True)
class Bridge:
    """What a bridge says of itself."""

    build: Text = ""
    python: Text | None = None
    path: Text | None = None


@dataclass(frozen=True)
class Hello:
    """Who an agent is."""

    build: Text
    labkit: Text
    host: Text
    pid: Count
    boot: Text
    machine: Text
    folder: Text
    n_runs: Count
    n_clients: Count


@dataclass(frozen=True)
class ListedTask:
    """A task of a run."""

    phase: Text
    how: Text | None = None
    started_s: Number | None = None


@dataclass(frozen=True)
class ListedRun:
    """A run that an agent lists."""

    run: Text
    over: Any
    last_event: Count
    tasks: dict[str, ListedTask] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """What happened on a host."""

    n: Count
    kind: Text
    task: Text | None = None


@dataclass(frozen=True)
class FileLines:
    """Lines of a file."""

    offset: Count
    next: Count
    lines: list[Line]


@dataclass(frozen=True)
class Data:
    """A piece of a file."""

    offset: Count
    data: Line
    size: Count


@dataclass(frozen=True)
class Used:
    """What a task uses."""

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


@dataclass(frozen=True)
class HostUse:
    """What a host has and uses."""

    cpu_percent: Number
    busy_s: Number
    memory_mb: Number
    free_memory_mb: Number


@dataclass(frozen=True)
class HostMeasurement:
    """What was measured."""

    boot_s: Number
    host: HostUse
    tasks: list[Used]


@dataclass(frozen=True)
class StartedTask:
    """A task that was started."""

    pid: Count
    folder: Text


@dataclass(frozen=True)
class FolderRow:
    """What became of a folder."""

    n_bytes: Count = 0
    removed: bool = False


def shaped(kind: Any, said: Any) -> Any:
    """Return what an agent said, if it has a shape.

    Raises
    ------
    AgentRefused
        If it has not: where, and what was expected.
    """
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(said)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(readable(str(part))[:40] for part in fault["loc"][:6])
        raise AgentRefused(
            f"the agent's answer has not the form that was asked for: {where}: {fault['msg'][:200]}", kind="malformed"
        ) from None
    return said


def named_runs(said: Any) -> Any:
    """Return a list of runs, if it is one and each run and task has a name that it can have."""
    for run in shaped(list[ListedRun], said):
        for name in (run["run"], *run["tasks"]):
            if not NAME.fullmatch(name):
                raise AgentRefused(
                    f"the agent tells of {readable(name)[:80]!r}, a name that no run and no task can have",
                    kind="malformed",
                )
    return said


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def readable(text: str, *, at_most: int = 500) -> str:
    """Return the beginning of a text from a host, in one line without control characters."""
    return "".join(letter if letter.isprintable() else " " if letter in "\n\t" else "�" for letter in text[:at_most])

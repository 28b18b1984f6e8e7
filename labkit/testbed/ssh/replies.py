"""The replies of labkit's programs on hosts: one type for each question, with one decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from annotated_types import Ge, Le, Len

from labkit.testbed.errors import HostMessageError
from labkit.testbed.ssh.host_messages import Count, Number, answer_in
from labkit.testbed.ssh.outcomes import NO_PROGRAM, HostAnswer, HostOutcome, failure

T = TypeVar("T")
Text = Annotated[str, Len(0, 4096)]


@dataclass(frozen=True)
class ProgramFault:
    """Reply of a program that failed; `error` is empty if it did not."""

    error: Text = ""
    hint: Text = ""


@dataclass(frozen=True)
class RunAges:
    """When each run of a host was last written to, by name."""

    runs: dict[str, Number]


@dataclass(frozen=True)
class Looked:
    """What is installed on a host; see `labkit/testbed/onhost/inspect.py`."""

    python: tuple[Count, Count, Count]
    executable: Text
    same: bool
    have: frozenset[str] = frozenset()
    versions: dict[str, Text] = field(default_factory=dict)
    wheels: dict[str, Count] = field(default_factory=dict)
    base: Text = ""


@dataclass(frozen=True)
class Installed:
    """The Python of an environment that was made."""

    base: Annotated[str, Len(1, 4096)]


@dataclass(frozen=True)
class Placed:
    """Hash of the labkit that is in use now."""

    placed: Text


@dataclass(frozen=True)
class Swept:
    """What was removed."""

    removed: list[Text]
    parts: Count
    bytes: Count


@dataclass(frozen=True)
class Clock:
    """The time of a host."""

    time_s: Number


@dataclass(frozen=True)
class Deployed:
    """The labkit in use on a host."""

    hash: Text
    python: Text


@dataclass(frozen=True)
class HostFacts:
    """Facts about a host; see `labkit/testbed/onhost/examine.py`."""

    python: Annotated[str, Len(1, 40)]
    cores: Count
    memory_gb: Number
    free_gb: Number
    folder: Text
    writable: bool
    mode: Count | None
    deployed: Deployed
    agent: Text
    gpus: list[Text] = field(default_factory=list)
    limits: Text = ""


@dataclass(frozen=True)
class Torch:
    """Result of an import of torch."""

    version: Text
    gpus: Count
    error: Text


@dataclass(frozen=True)
class EchoPort:
    """Port that a host listens on, or why it cannot."""

    port: Annotated[int, Ge(1), Le(65535)] | None = None
    word: Annotated[str, Len(0, 64)] = ""
    error: Text | None = None


@dataclass(frozen=True)
class Dialled:
    """Seconds of a round trip to another host, or why it failed."""

    rtt_s: Number | None = None
    error: Text | None = None


@dataclass(frozen=True)
class Poured:
    """Bytes that another host received in some seconds, or why it failed."""

    bytes: Count | None = None
    seconds: Number | None = None
    error: Text | None = None


def reply_to(answer: HostAnswer, kind: type[T], *, program: str) -> T | HostOutcome:
    """Return the reply of a program on a host, or the outcome of its failure.

    Parameters
    ----------
    answer : HostAnswer
        Answer of the host.
    kind : type
        Type of the reply.
    program : str
        Name of the program, for messages.
    """
    if answer.error is not None:
        return failure(answer.host, answer.error)
    if answer.exited == NO_PROGRAM:
        hint = "install it there, or name the right one in the inventory: ssh = { python = ... }"
        return HostOutcome(answer.host, False, f"there is no program {program}", hint)
    if answer.exited != 0:
        return HostOutcome(answer.host, False, f"{program}: {answer.why}", "run it again")
    try:
        output = answer.stdout.encode(errors="replace")
        fault = answer_in(output, ProgramFault)
        if fault.error:
            return HostOutcome(answer.host, False, fault.error, fault.hint)
        return answer_in(output, kind)
    except HostMessageError as error:
        return HostOutcome(answer.host, False, f"{program}: {error}", failure(answer.host, error).hint)

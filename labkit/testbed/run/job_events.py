"""The events and the result that a job writes on its host, each with one type and one decoder, and what they say.

A host may write anything. The format of events is that of `labkit.elastic`; fields that this package does not use are
not checked.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le, Len

from labkit.core.events import Cause, Quantity, Role
from labkit.elastic.process.causes import cause_named
from labkit.testbed.agent.messages import Text, readable
from labkit.testbed.errors import AgentRefused

if TYPE_CHECKING:
    from pydantic import ConfigDict

MEMBER: Final = re.compile(r"(worker|ps)-(\d{1,9})")


class MemberName(NamedTuple):
    """A worker or PS of a job."""

    role: Role
    number: int

    @classmethod
    def of(cls, name: object) -> MemberName | None:
        """Return the member of a name such as worker-3; None if it is no name of a member.

        >>> MemberName.of("ps-2"), MemberName.of("ps-two")
        (MemberName(role=<Role.PS: 1>, number=2), None)
        """
        match = MEMBER.fullmatch(str(name))
        if match is None or int(match[2]) > np.iinfo(np.int32).max:
            return None
        return cls(Role.WORKER if match[1] == "worker" else Role.PS, int(match[2]))

    def __str__(self) -> str:
        return f"{'worker' if self.role == Role.WORKER else 'ps'}-{self.number}"


@dataclass(slots=True)
class EventQuantities:
    """Quantities in the events of one job since they were last taken."""

    where: dict[MemberName, tuple[str, int]] = field(default_factory=dict)
    """Host and process number."""
    compute_s: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    step_s: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    n_bytes: dict[MemberName, float] = field(default_factory=lambda: defaultdict(float))
    cores: dict[MemberName, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory_gb: dict[MemberName, float] = field(default_factory=dict)

    def note(self, event: Mapping[str, Any]) -> None:
        """Add an event of the elastic runtime; events of another host must have been checked before."""
        member = MemberName.of(event.get("name"))
        if member is None:
            return
        if event["event"] == "started":
            self.where[member] = str(event["host"]), int(event["pid"])
        elif event["event"] == "left":
            self.where.pop(member, None)
        elif event["event"] == "stepped":
            self.compute_s[member].append(float(event["compute_s"]))
            self.step_s[member].append(float(event["compute_s"]) + float(event["wait_s"]))
        elif event["event"] == "served":
            self.n_bytes[member] += float(event["bytes"])
            if "update_s" in event:
                self.compute_s[member].append(float(event["update_s"]))
        elif event["event"] == "used":
            self._note_used(member, event)

    def _note_used(self, member: MemberName, event: Mapping[str, Any]) -> None:
        if isinstance(event.get("cores"), int | float):
            self.cores[member].append(float(event["cores"]))
        if isinstance(event.get("memory_gb"), int | float):
            self.memory_gb[member] = float(event["memory_gb"])

    def taken(self) -> dict[tuple[MemberName, Quantity], float]:
        """Return the quantities by (member, Quantity) since the last call, and start anew."""
        quantities = {(m, Quantity.COMPUTE_S): float(np.mean(s)) for m, s in self.compute_s.items() if m in self.where}
        quantities |= {(m, Quantity.STEP_S): float(np.mean(s)) for m, s in self.step_s.items() if m in self.where}
        total = sum(self.n_bytes.values())
        if total > 0:
            quantities |= {(m, Quantity.LOAD): n / total for m, n in self.n_bytes.items() if m in self.where}
        quantities |= {(m, Quantity.CORES): float(np.mean(c)) for m, c in self.cores.items() if m in self.where}
        quantities |= {(m, Quantity.MEMORY_GB): gb for m, gb in self.memory_gb.items() if m in self.where}
        for each in (self.compute_s, self.step_s, self.n_bytes, self.cores, self.memory_gb):
            each.clear()
        return quantities


MOST: Final = 1 << 53
"""Largest number of steps, and largest time in seconds, that is accepted."""
Steps = Annotated[float, Ge(0), Le(MOST)]
Count = Annotated[int, Ge(0), Le(MOST)]
Number = Annotated[float, Ge(-MOST), Le(MOST)]
Texts = Annotated[list[Text], Len(0, 16)]
OTHER: Final = "other"
REPORT_S: Final = 1.0
"""Seconds between two reports of a job's progress."""
WINDOW_S: Final = 3.0
"""Seconds over which a speed is measured."""
OVER: Final = "training has ended"
"""Reason of a scaling that was dropped because the job is done, which is no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvent:
    """An update is complete: number of the parameters that it was computed from, and its loss on the host's clock."""

    time: Number
    version: Count
    loss: float | Literal["nan", "inf", "-inf"]
    """JSON has no NaN and no infinity: the runtime writes them as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeganEvent:
    """Training begins, or continues, at a version."""

    version: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEvent:
    """A checkpoint keeps a version."""

    version: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledEvent:
    """A scaling is complete."""

    scaling: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedEvent:
    """A scaling failed, or was not needed any more."""

    scaling: Count
    why: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsavedEvent:
    """A checkpoint could not be written."""

    why: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHostEvent:
    """A host of the job was lost; its other members go on."""

    why: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedEvent:
    """A member has other cores or memory from now on; `unable` lists what could not be set."""

    unable: Texts
    name: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEvent:
    """The process of a member runs; its role is worker or server."""

    name: Text
    host: Text
    pid: Count
    site: Text = ""
    role: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftEvent:
    """A member has ended; `expected`: it was ordered to."""

    name: Text
    reason: Text
    expected: bool = False
    cause: Text | None = None
    code: Annotated[int, Ge(-MOST), Le(MOST)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedEvent:
    """A worker has made a step: seconds in which it computed, and in which it waited for others."""

    name: Text
    compute_s: Number
    wait_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEvent:
    """A server has taken in gradients since its last report; `update_s` are the seconds of an update."""

    name: Text
    bytes: Number
    update_s: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedEvent:
    """Cores and memory that a member uses; None: unknown."""

    name: Text
    cores: Number | None = None
    memory_gb: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEvent:
    """An event that this package does not use."""

    event: Text


JobEvent = (
    LossEvent | BeganEvent | SavedEvent | ScaledEvent | DroppedEvent | UnsavedEvent | LostHostEvent | ResizedEvent
    | StartedEvent | LeftEvent | SteppedEvent | ServedEvent | UsedEvent | OtherEvent
)  # fmt: skip


KINDS: Final[Mapping[str, type[JobEvent]]] = {
    "loss": LossEvent, "began": BeganEvent, "saved": SavedEvent, "scaled": ScaledEvent, "dropped": DroppedEvent,
    "unsaved": UnsavedEvent, "lost_host": LostHostEvent, "resized": ResizedEvent, "started": StartedEvent,
    "left": LeftEvent, "stepped": SteppedEvent, "served": ServedEvent, "used": UsedEvent,
}  # fmt: skip
"""The type of an event by its name in the file, its field `event`."""


def event_of(line: str) -> JobEvent:
    """Return an event of a job's elastic runtime.

    Raises
    ------
    AgentRefused
        If the line has another form: a fault of the host, not of the connection. The message names field and value.

    >>> event_of('{"event": "saved", "time": 2.0, "version": 100}')
    SavedEvent(version=100)
    >>> event_of('{"event": "saved", "version": "all"}')
    Traceback (most recent call last):
    ...
    labkit.testbed.errors.AgentRefused: the events of the job on its host are not what labkit writes: \
saved.version: Input should be a valid integer, not 'all'
    """
    from pydantic import ValidationError

    try:
        event: JobEvent = _decoder().validate_json(line, strict=True)
    except ValidationError as error:
        raise _refused("events", _fault(error)) from None
    except UnicodeError:
        raise _refused("events", "a line is not UTF-8") from None
    return event


def columns_of(event: JobEvent) -> dict[str, object]:
    """Return the fields of an event by name, without those that it lacks, as `labkit.elastic` writes them.

    >>> columns_of(ServedEvent(name="ps-0", bytes=8.0))
    {'event': 'served', 'name': 'ps-0', 'bytes': 8.0}
    """
    name = next((name for name, kind in KINDS.items() if kind is type(event)), OTHER)
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return {"event": name, **{name: value for name, value in values.items() if value is not None}}


@cache
def _decoder() -> Any:
    """Return the decoder of a line: the field `event` says which type it has."""
    from pydantic import Discriminator, Tag, TypeAdapter

    tagged = [Annotated[kind, Tag(name)] for name, kind in {**KINDS, OTHER: OtherEvent}.items()]
    any_of: Any = Annotated[reduce(or_, tagged), Discriminator(_kind)]
    return TypeAdapter(any_of)


def _kind(value: Any) -> str:
    kind = value.get("event") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) and kind in KINDS else OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job writes at its end, result.json."""

    __pydantic_config__: ClassVar[ConfigDict] = {"strict": True}

    steps: Steps | None = None
    """Updates that are complete; None: unknown."""
    done: bool = False
    """Whether all requested updates are complete."""
    digest: str | None = None
    """Of the parameters."""
    first_loss: float | None = None
    last_loss: float | None = None
    """`first_loss` and `last_loss`: of the first and the last update."""
    failure: str | None = ""
    """Why it failed; empty: it did not."""
    own: bool = False
    """Whether it would fail like that on any host."""
    cause: str = ""
    """Name of the `labkit.core.Cause` of a failure, in lower case."""


def result_of(data: bytes) -> JobResult:
    """Decode the result of a job; AgentRefused if it has another form."""
    from pydantic import TypeAdapter, ValidationError

    try:
        result = TypeAdapter(JobResult).validate_json(data)
    except ValidationError as error:
        raise _refused("result", _fault(error)) from None
    return replace(result, failure=readable(result.failure or "", at_most=4000))


def _fault(error: Any) -> str:
    """Return the first fault that pydantic found: field, what was expected, and the value."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part)[:40] for part in fault["loc"][:6]) or "the line"
    return readable(f"{where}: {fault['msg'][:200]}, not {str(fault['input'])[:60]!r}")


def _refused(of: str, why: str) -> AgentRefused:
    return AgentRefused(f"the {of} of the job on its host are not what labkit writes: {why}", kind="malformed")


@dataclass(frozen=True, slots=True)
class LostTask:
    """A worker or PS that ended unexpectedly: its host, and its exit code, NaN if unknown."""

    member: MemberName
    host: str
    code: float


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A report on a job, for the scheduler."""

    what: str
    """began, scaled, progressed, resized (a process has other cores or memory from now on; why: what could not be set),
    lost_task (it is replaced), lost_host (the other members go on), dropped (a scaling that failed), unsaved (a
    checkpoint that could not be written or copied here), restored (from another checkpoint than the newest copy here,
    which is damaged)."""
    steps: float
    """Updates done."""
    speed: float = float("nan")
    """Updates per second, NaN where unknown."""
    loss: float = float("nan")
    """NaN where there is none."""
    why: str = ""
    """Reason, in words."""
    host: str = ""
    """Host of a failure; empty: no host is involved."""
    own: bool = False
    """Whether a job that failed reports itself that it cannot train."""
    generation: int = 0
    """Start of the job that this belongs to."""
    cause: Cause = Cause.UNKNOWN
    task: LostTask | None = None


@dataclass(slots=True)
class Progress:
    """Folds the events of one job, one at a time.

    Progress is reported every `REPORT_S` seconds, and after the last update.
    """

    steps: int = 0
    """Updates done."""
    saved: int = 0
    """Updates that a checkpoint keeps."""
    n_steps: float = float("inf")
    """Updates that the job is to make."""
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _reported_s: float = float("-inf")
    _began: bool = False
    _hosts: dict[str, str] = field(default_factory=dict)
    """Member -> host."""

    def note(self, event: JobEvent) -> JobUpdate | None:
        """Take in an event; return the report that follows from it, if any."""
        match event:
            case LossEvent():
                return self._stepped(event.time, event.version + 1, float(event.loss))
            case BeganEvent():
                return self._note_begin(event.version)
            case StartedEvent():
                self._hosts[event.name] = event.host
            case LeftEvent(expected=False):
                return self._lost(event)
            case SavedEvent():
                self.saved = max(self.saved, event.version)
            case _:
                return self._changed(event)
        return None

    def _changed(self, event: JobEvent) -> JobUpdate | None:
        """Return the report of a change of the job's members or checkpoints, if it is one."""
        match event:
            case ScaledEvent():
                self._recent.clear()
                return JobUpdate("scaled", self.steps)
            case ResizedEvent():
                unable = "; ".join(event.unable)
                return JobUpdate("resized", self.steps, why=f"{event.name} cannot have {unable}" if unable else "")
            case DroppedEvent() if event.why != OVER:
                return JobUpdate("dropped", self.steps, why=event.why)
            case LostHostEvent():
                return JobUpdate("lost_host", self.steps, why=event.why)
            case UnsavedEvent():
                return JobUpdate("unsaved", self.steps, why=event.why)
        return None

    def _lost(self, event: LeftEvent) -> JobUpdate | None:
        member = MemberName.of(event.name)
        if member is None:
            return None
        host, code = self._hosts.get(event.name, ""), event.code
        lost = LostTask(member, host, float(code) if code is not None and abs(code) < 1 << 31 else float("nan"))
        why = f"{event.name}{f' on {host}' if host else ''}: {event.reason}"
        return JobUpdate("lost_task", self.steps, why=readable(why), cause=cause_named(event.cause), task=lost)

    @property
    def speed(self) -> float:
        """Updates per second over the last `WINDOW_S`; NaN before there are two."""
        if len(self._recent) < 2:
            return float("nan")
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else float("nan")

    def _note_begin(self, version: int) -> JobUpdate | None:
        """Note that training begins, or continues at a version after a failure."""
        self.steps = version
        self._recent.clear()
        what, self._began = ("progressed" if self._began else "began"), True
        return JobUpdate(what, version)

    def _stepped(self, at_s: float, steps: int, loss: float) -> JobUpdate | None:
        self.steps = max(self.steps, steps)
        self._recent.append((at_s, steps))
        while at_s - self._recent[0][0] > WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        if at_s - self._reported_s < REPORT_S and self.steps < self.n_steps:
            return None
        self._reported_s = at_s
        return JobUpdate("progressed", self.steps, self.speed, loss)

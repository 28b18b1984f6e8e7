"""The events and the result that a job writes on its host, each with one type and one decoder.

A host may write anything. The format of events is that of `labkit.elastic`; fields that this package does not use are
not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from annotated_types import Ge, Le, Len

from labkit.testbed.agent.errors import AgentRefused
from labkit.testbed.agent.shapes import Text, readable

if TYPE_CHECKING:
    from pydantic import ConfigDict

MOST: Final = 1 << 53
"""Largest number of steps, and largest time in seconds, that is accepted."""
Steps = Annotated[float, Ge(0), Le(MOST)]
Count = Annotated[int, Ge(0), Le(MOST)]
Number = Annotated[float, Ge(-MOST), Le(MOST)]
Texts = Annotated[list[Text], Len(0, 16)]


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
OTHER: Final = "other"


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
    labkit.testbed.agent.errors.AgentRefused: the events of the job on its host are not what labkit writes: \
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
    """What a job writes at its end, result.json.

    Attributes
    ----------
    steps : float, optional
        Updates that are complete; None: unknown.
    done : bool
        Whether all requested updates are complete.
    digest : str, optional
        Of the parameters.
    first_loss, last_loss : float, optional
        Of the first and the last update.
    failure : str or None
        Why it failed; empty: it did not.
    own : bool
        Whether it would fail like that on any host.
    cause : str
        Name of the `labkit.core.Cause` of a failure, in lower case.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"strict": True}

    steps: Steps | None = None
    done: bool = False
    digest: str | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    failure: str | None = ""
    own: bool = False
    cause: str = ""


def result_of(data: bytes) -> JobResult:
    """Return what a job wrote at its end.

    Raises
    ------
    AgentRefused
        If it has another form.
    """
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

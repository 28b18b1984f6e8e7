"""The events and the result that a job writes on its host, checked: a host may write anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

from annotated_types import Ge, Le

from labkit.testbed.agent.errors import AgentRefused
from labkit.testbed.agent.shapes import readable

MOST: Final = 1 << 53
"""Largest number of steps, and largest time in seconds, that is accepted."""
Steps = Annotated[float, Ge(0), Le(MOST)]
MOST_TEXTS: Final = 16
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("time", "version"), "began": ("version",), "saved": ("version",), "scaled": ("scaling",),
    "dropped": ("scaling",), "stepped": ("compute_s", "wait_s"), "served": ("bytes",), "started": ("pid",),
}  # fmt: skip
"""Fields that an event of a kind must have, all numbers; a loss may be NaN."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "stepped": ("name",), "served": ("name",), "started": ("name", "host"), "left": ("name", "reason"),
}  # fmt: skip
"""Fields that an event of a kind must have, all text."""


def event_of(line: str) -> dict[str, Any]:
    """Return an event of a job's elastic runtime.

    Its format is that of `labkit.elastic`; fields that this package does not use are not checked.

    Raises
    ------
    AgentRefused
        If the line has another form: a fault of the host, not of the connection.

    >>> event_of('{"event": "saved", "time": 2.0, "version": 100}')["version"]
    100
    """
    event = _object(line)
    kind = event.get("event")
    if not isinstance(kind, str):
        raise _refused("events", "an event has no name")
    for name in NEEDS.get(kind, ()):
        _number(event.get(name), f"'{kind}' has no {name}")
    for name in WORDS.get(kind, ()):
        if not isinstance(event.get(name), str):
            raise _refused("events", f"'{kind}' has no {name}")
    if kind == "served" and "update_s" in event:
        _number(event["update_s"], "'served' has no number of seconds of an update")
    if kind == "loss" and not isinstance(event.get("loss"), int | float):
        raise _refused("events", "'loss' has no loss")
    if kind == "resized" and not _texts(event.get("unable")):
        raise _refused("events", "'resized' has no list of what could not be set")
    return event


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

    __pydantic_config__: ClassVar[dict[str, Any]] = {"strict": True}

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
        fault = error.errors(include_input=False, include_url=False)[0]
        raise _refused("result", f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg'][:200]}") from None
    return replace(result, failure=readable(result.failure or "", at_most=4000))


def _object(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise _refused("events", "a line is no JSON object")
    return event


def _texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_TEXTS and all(isinstance(each, str) for each in value)


def _number(value: object, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST or math.isnan(value):
        raise _refused("events", why)


def _refused(of: str, why: str) -> AgentRefused:
    return AgentRefused(f"the {of} of the job on its host are not what labkit writes: {why}", kind="malformed")

"""What a job on a host writes of itself, checked: its events, and its result. A host may write anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from labkit.testbed.agent.errors import AgentRefused
from labkit.testbed.agent.shapes import readable

MOST: Final = 1 << 53
"""No number of steps, and no second, is larger."""
MOST_TEXTS: Final = 16
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("time", "version"), "began": ("version",), "saved": ("version",), "scaled": ("scaling",),
    "dropped": ("scaling",), "stepped": ("compute_s", "wait_s"), "served": ("bytes",), "started": ("pid",),
}  # fmt: skip
"""What events must have that are heeded here, all of them numbers; a loss may be NaN."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "stepped": ("name",), "served": ("name",), "started": ("name", "host"), "left": ("name", "reason"),
}  # fmt: skip
"""What they must have that is text."""


def event_of(line: str) -> dict[str, Any]:
    """Return an event of a job's elastic runtime.

    Raises
    ------
    AgentRefused
        If it is none: the host's fault, not that of the connection.

    >>> event_of('{"event": "saved", "time": 2.0, "version": 100}')["version"]
    100
    """
    said = _object(line, "events")
    kind = said.get("event")
    if not isinstance(kind, str):
        raise _refused("events", "an event has no name")
    for name in NEEDS.get(kind, ()):
        _number(said.get(name), f"'{kind}' has no {name}")
    for name in WORDS.get(kind, ()):
        if not isinstance(said.get(name), str):
            raise _refused("events", f"'{kind}' has no {name}")
    if kind == "served" and "update_s" in said:
        _number(said["update_s"], "'served' has no number of seconds of an update")
    if kind == "loss" and not isinstance(said.get("loss"), int | float):
        raise _refused("events", "'loss' has no loss")
    if kind == "resized" and not _texts(said.get("unable")):
        raise _refused("events", "'resized' does not say what cannot be had")
    return said


def result_of(data: bytes) -> dict[str, Any]:
    """Return what a job wrote at its end: its steps, and why it failed, if it did.

    Raises
    ------
    AgentRefused
        If it is of another form.
    """
    said = _object(data, "result")
    if said.get("steps") is not None:
        _number(said["steps"], "its steps are no number", of="result")
    failure = said.get("failure")
    if failure is not None and not isinstance(failure, str):
        raise _refused("result", "its failure is no text")
    return {**said, "steps": said.get("steps"), "failure": None if failure is None else readable(failure, at_most=4000)}


def _object(text: str | bytes, of: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise _refused(of, "a line is no JSON object")
    return said


def _texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_TEXTS and all(isinstance(each, str) for each in value)


def _number(value: object, why: str, *, of: str = "events") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST or math.isnan(value):
        raise _refused(of, why)


def _refused(of: str, why: str) -> AgentRefused:
    return AgentRefused(f"the {of} of the job on its host are not what labkit writes: {why}", kind="malformed")

"""The numbers in the events of a job, one row each: what its logs and `Result` have of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

BEFORE = "validation/"
"""Beginning of the names of what was measured by a validation."""


class LogRow(NamedTuple):
    """One number: of which step (updates done), when (seconds since 1970), its name, and its value."""

    step: int
    seconds: float
    name: str
    value: float


def rows_of(event: Mapping[str, Any]) -> Iterator[LogRow]:
    """Yield the numbers of an event of a job.

    >>> [*rows_of({"event": "loss", "version": 0, "time": 5.0, "loss": 0.5})]
    [LogRow(step=1, seconds=5.0, name='loss', value=0.5)]
    """
    kind = event["event"]
    if kind == "loss":
        yield LogRow(int(event["version"]) + 1, event["time"], "loss", event["loss"])
    elif kind in ("metrics", "validated"):
        step, before = (int(event["version"]), BEFORE) if kind == "validated" else (int(event["version"]) + 1, "")
        for name, value in event["values"].items():
            yield LogRow(step, event["time"], f"{before}{name}", value)

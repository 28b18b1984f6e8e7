"""The columns of the event that a report of a member becomes."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final

from labkit.elastic.protocol.messages.reports import Report

NOTHING: Final[tuple[object, ...]] = (None, {}, [])
"""Values of an optional field that a report does not have."""


def columns_of(report: Report) -> dict[str, Any]:
    """Return the columns of the event that a report becomes: its fields, without optional ones that it does not have.

    >>> from labkit.elastic.protocol.messages.reports import Paused
    >>> columns_of(Paused(7, era=2))
    {'era': 2, 'version': 7}
    """
    kind: Any = type(report)
    values = ((name, getattr(report, name), optional) for name, optional in _fields(kind))
    return {name: value for name, value, optional in values if value not in NOTHING or not optional}


@cache
def _fields(kind: Any) -> list[tuple[str, bool]]:
    """Return the fields of a report, and whether they are optional: None or empty by default."""
    return [(field.name, field.default is None or field.default_factory is not MISSING) for field in fields(kind)]

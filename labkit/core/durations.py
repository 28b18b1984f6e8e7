"""Spans of time as people type them."""

from __future__ import annotations

import re
from typing import Final

from labkit.core.errors import InputError
from labkit.core.text import shortened

SECONDS_OF: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
"""Seconds of each unit that people type."""
SPAN: Final = re.compile(
    r"(?:\d{1,9}(?:\.\d{1,9})?(?:min|s|m|h|d)?)(?:\d{1,9}(?:\.\d{1,9})?(?:min|s|m|h|d))*", re.ASCII
)


def seconds_of(text: str, *, what: str) -> float:
    """Return the seconds of a span of time as people type it: 90, 90s, 15min, 1h, 2h30m, 1.5d.

    Raise InputError if it is none, or not above 0.

    >>> seconds_of("90", what="--time-limit"), seconds_of("2h30m", what="--time-limit")
    (90.0, 9000.0)
    """
    plain = text.strip().lower().replace(" ", "")
    parts = re.findall(r"([\d.]+)(min|s|m|h|d)?", plain) if SPAN.fullmatch(plain) else []
    seconds = sum(float(number) * SECONDS_OF[unit or "s"] for number, unit in parts)
    if not seconds > 0:
        raise InputError(f"{what} is '{shortened(text)}'; expected a time such as 90s, 45min, 1h or 2h30m.")
    return seconds

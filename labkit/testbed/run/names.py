"""Run names on hosts: the record's id plus eight hex digits, so that equal ids do not collide."""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.core.errors import InputError, unknown

LONGEST = 50
"""Most letters of a record's name that are kept."""


def called(run: str, names: Iterable[str]) -> list[str]:
    """Return the names on hosts that `run` means: that very name, or else the names of the record of that name.

    >>> called("fifo-0", ["fifo-0-5b1e22aa", "fifo-0-more", "fifo-01"])
    ['fifo-0-5b1e22aa']
    """
    known = list(names)
    of_record = re.compile(re.escape(run[:LONGEST]) + "-[0-9a-f]{8}")
    return [run] if run in known else [name for name in known if of_record.fullmatch(name)]


def no_such(run: str, names: Iterable[str]) -> InputError:
    """Return the error for a run that no host has."""
    known = sorted(set(names))
    return unknown("run", run, known) if known else InputError(f"no host has a run '{run}', nor any other.")

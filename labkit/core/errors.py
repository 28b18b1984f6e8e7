"""Every error that labkit raises on purpose.

LabkitError
├── InputError          what a user gave is wrong: a name, a unit, a value, a file
│   ├── TraceError      faults of a trace, gathered, each with file, line and column
│   └── ProfileError    measurements that cannot be fitted
├── PlacementError      a placement that overfills a device group or names an unknown job
├── StalledError        jobs wait, nothing runs and nothing will arrive
├── StaleSnapshotError  a snapshot was read after its session had moved on
├── TruthError          a scheduler read what only a backend may know
├── SolverError         a program that could not be solved
│   ├── InfeasibleError what it asks for cannot be had together
│   └── UnboundedError  its objective has no limit
├── SweepError          a sweep cannot go on: a cell failed and was not to, no worker starts
└── StoppedError        a user stopped the run

A message names the thing, its value, what was expected, and the nearest remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LabkitError(Exception):
    """Anything that labkit raises on purpose; the command line prints it in one line and exits with 2."""


class InputError(LabkitError, ValueError):
    """What a user gave is wrong."""


class TraceError(InputError):
    """Faults of a trace, all told at once."""


class ProfileError(InputError):
    """Measurements that cannot be fitted."""


class PlacementError(LabkitError, ValueError):
    """A placement that the cluster cannot hold."""


class StalledError(LabkitError, RuntimeError):
    """Jobs wait, nothing runs, and nothing will ever change."""


class StaleSnapshotError(LabkitError, RuntimeError):
    """A column of an old snapshot was read for the first time after the session had moved on."""


class TruthError(LabkitError, AttributeError):
    """A scheduler read what only a backend may know."""


class SolverError(LabkitError, RuntimeError):
    """A program that could not be solved."""


class InfeasibleError(SolverError, ValueError):
    """What a program asks for cannot be had together; `rows` are positions of what contradicts itself."""

    def __init__(self, message: str, *, rows: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(int(row) for row in rows)


class UnboundedError(SolverError, ValueError):
    """The objective of a program has no limit; `columns` are positions of what grows for ever."""

    def __init__(self, message: str, *, columns: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.columns = tuple(int(column) for column in columns)


class SweepError(LabkitError, RuntimeError):
    """A sweep cannot go on; the cells that are done are kept."""


class StoppedError(LabkitError, RuntimeError):
    """A user stopped the run; what had not come out by then did not happen."""


def unknown(thing: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a misspelt name, with the nearest known one.

    >>> str(unknown("scheduler", "srft", ["fifo", "srtf"]))
    "unknown scheduler 'srft'. Did you mean 'srtf'? Known: fifo, srtf."
    """
    names = sorted(known)
    plain = {known_name.lower(): known_name for known_name in names}
    near = get_close_matches(name.lower(), plain, n=1)
    hint = f" Did you mean '{plain[near[0]]}'?" if near else ""
    return InputError(f"unknown {thing} '{name}'.{hint} Known: {', '.join(names)}.")

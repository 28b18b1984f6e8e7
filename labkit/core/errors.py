"""Every error that labkit raises on purpose.

LabkitError
├── InputError          what a user gave is wrong: a name, a unit, a value, a file
│   ├── TraceError      faults of a trace, gathered, each with file, line and column
│   └── ProfileError    measurements that cannot be fitted
├── PlacementError      a placement that overfills a device group or names an unknown job
├── TakenOverError      another process drives a run on machines from now on
├── EndedError          a run on machines was ended on its hosts from elsewhere
├── StalledError        jobs wait, nothing runs and nothing will arrive, or all that happens leads nowhere
├── StaleSnapshotError  a snapshot was read after its session had moved on
├── TruthError          a scheduler read what only a backend may know
├── SolverError         a program that could not be solved
│   ├── InfeasibleError what it asks for cannot be had together
│   └── UnboundedError  its objective has no limit
├── ComparisonError     schedulers failed in a comparison; it holds the records of the others
├── SweepError          a sweep cannot go on: a cell failed and was not to, no worker starts
└── StoppedError        a user stopped the run

A message names the thing, its value, what was expected, and the nearest remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from labkit.core.raised import raised_at
from labkit.core.text import shortened


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


class TakenOverError(LabkitError, RuntimeError):
    """Another process drives this run on its hosts from now on; `by` says which."""

    def __init__(self, run: str, by: str) -> None:
        super().__init__(f"run '{run}' was taken over by {by}; it continues there, and nothing more is done here.")
        self.by = by


class EndedError(LabkitError, RuntimeError):
    """A run on machines was ended on its hosts from elsewhere."""


class StalledError(LabkitError, RuntimeError):
    """Jobs wait, nothing runs, and nothing will ever change; or what happens never lets a job complete."""


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


class ComparisonError(LabkitError, RuntimeError):
    """Schedulers failed in a comparison; `failed` maps their names to errors, `records` are those of the others."""

    def __init__(self, failed: Mapping[str, Exception], records: Sequence[Any]) -> None:
        message = "; ".join(f"{name}: {_message(error)}" for name, error in failed.items())
        kept = f"; the records of the {len(records)} others are in .records" if records else ""
        super().__init__(f"{len(failed)} of {len(failed) + len(records)} schedulers failed: {message}{kept}")
        self.failed, self.records = dict(failed), list(records)


class SweepError(LabkitError, RuntimeError):
    """A sweep cannot go on; the cells that are done are kept."""


class StoppedError(LabkitError, RuntimeError):
    """A user stopped the run; what had not come out by then did not happen."""


def _message(error: Exception) -> str:
    """Return the message of an error of labkit's; of any other, its type too."""
    message = str(error) if isinstance(error, LabkitError) else f"{type(error).__name__}: {error}"
    return message + raised_at(error)


MOST_NAMED: Final = 10
"""Of more known names than this, only the nearest ones are listed."""
NEAREST: Final = 5


def unknown(thing: str, name: str, known: Iterable[str], *, listing: str = "") -> InputError:
    """Return the error for a misspelt name, with the nearest known ones; `listing` is the command that lists all.

    >>> str(unknown("scheduler", "srft", ["fifo", "srtf"]))
    "unknown scheduler 'srft'. Did you mean 'srtf'? Known: fifo, srtf."
    """
    names = sorted(known)
    plain = {known_name.lower(): known_name for known_name in names}
    near = get_close_matches(name[:100].lower(), plain, n=1)
    hint = f" Did you mean '{plain[near[0]]}'?" if near else ""
    closest = get_close_matches(name[:100].lower(), plain, n=NEAREST, cutoff=0.0)
    shown = names if len(names) <= MOST_NAMED else [plain[each] for each in closest]
    more = f", and {len(names) - len(shown)} others" if len(shown) < len(names) else ""
    full = f" `{listing}` lists all." if listing and more else ""
    return InputError(f"unknown {thing} '{shortened(name)}'.{hint} Known: {', '.join(shown)}{more}.{full}")

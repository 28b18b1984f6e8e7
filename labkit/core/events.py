"""What happened: the event log, one row type for everything.

Events say what happened, not what was asked. A batch of events is a structured numpy array of dtype `EVENT`
in order of time; the log is one such array that grows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Ints

if TYPE_CHECKING:
    import pandas as pd

    from labkit.core.placement import Placement

Events = NDArray[Any]
"""A structured array of dtype `EVENT`."""


class Kind(IntEnum):
    """The kinds of event, and what their `value` and `speed` mean."""

    ARRIVED = 0
    """A job was submitted."""
    DECIDED = 1
    """A scheduler answered; value: the number of jobs whose gang it set."""
    PLACED = 2
    """`value` tasks of a role now sit in a device group; a job's rows come together and replace its earlier ones.
    `partner`: who shares the GPUs of its workers, until one of the two is placed anew or gives its tasks back."""
    STARTED = 3
    """A job that held no tasks trains from now on; value: steps done; speed: steps/s from now on (NaN: unknown)."""
    RESCALED = 4
    """A running job goes on with another gang; value: steps done; speed: steps/s from now on."""
    PROGRESSED = 5
    """A measurement of a running job; value: steps done; speed: steps/s from now on."""
    PAUSED = 6
    """A job that holds tasks makes no progress until it starts, is rescaled or progresses again; value: steps done."""
    PREEMPTED = 7
    """A job lost its tasks because a scheduler took them; value: steps done."""
    COMPLETED = 8
    """A job is done and gave its tasks back; value: steps done."""
    FAILED = 9
    """A job lost its tasks because a machine failed; value: steps done that are safe."""
    LEFT = 10
    """A machine is gone."""
    JOINED = 11
    """A machine is (back) in the cluster."""
    LOSS = 12
    """A running job reported its training loss; value: the loss."""
    DROPPED = 13
    """A job was given up and gave its tasks back: it has no JCT; value: steps done."""
    RELAXED = 14
    """A scheduler gave up a goal of a job that cannot be met, such as its SLO; the job goes on."""
    CUT = 15
    """A job was placed with fewer tasks than its scheduler gave it, for want of room; value: how many are missing."""


NEWS: Final = (Kind.ARRIVED, Kind.COMPLETED, Kind.FAILED, Kind.LEFT, Kind.JOINED, Kind.DROPPED)
"""The kinds after which a scheduler should decide anew."""


class Role(IntEnum):
    """What a task does."""

    WORKER = 0
    PS = 1


EVENT: Final = np.dtype(
    [
        ("time_s", np.float64),
        ("kind", np.int8),
        ("role", np.int8),
        ("job", np.int32),
        ("machine", np.int32),
        ("group", np.int32),
        ("partner", np.int32),
        ("value", np.float64),
        ("speed", np.float64),
    ],
    align=True,
)
"""One event: -1 where a job, machine, device group, role or partner does not apply, NaN where a number does not."""


def events(n: int = 0) -> Events:
    """Return `n` blank events."""
    blank = np.empty(n, dtype=EVENT)
    blank[:] = (np.nan, -1, -1, -1, -1, -1, -1, np.nan, np.nan)
    return blank


NO_EVENTS: Final = events()


def relaxed(jobs: Ints, *, time_s: float) -> Events:
    """Return that a goal of each of some jobs was given up."""
    rows = events(len(jobs))
    rows["time_s"], rows["kind"], rows["job"] = time_s, Kind.RELAXED, jobs
    return rows


def asides(placement: Placement, happened: Events, *, time_s: float) -> list[Events]:
    """Return what is to be told beside what a decision changed: goals that were given up, gangs that were cut."""
    parts = [relaxed(placement.relaxed, time_s=time_s)] if len(placement.relaxed) else []
    if len(placement.missing) and placement.missing.any():
        placed = happened["job"][happened["kind"] == Kind.PLACED]
        short = (placement.missing > 0) & np.isin(placement.set_jobs, placed)
        rows = events(int(short.sum()))
        rows["time_s"], rows["kind"], rows["job"] = time_s, Kind.CUT, placement.set_jobs[short]
        rows["value"] = placement.missing[short]
        parts.append(rows)
    return parts


class EventLog:
    """An event table that grows by appending batches."""

    def __init__(self) -> None:
        self._rows = np.empty(1024, dtype=EVENT)
        self._n = 0

    def append(self, batch: Events) -> None:
        """Add a batch at the end."""
        end = self._n + len(batch)
        if end > len(self._rows):
            grown = np.empty(max(end, 2 * len(self._rows)), dtype=EVENT)
            grown[: self._n] = self._rows[: self._n]
            self._rows = grown
        self._rows[self._n : end] = batch
        self._n = end

    def __len__(self) -> int:
        return self._n

    @property
    def rows(self) -> Events:
        """All events so far, a read-only view."""
        view = self._rows[: self._n]
        view.flags.writeable = False
        return view


def to_frame(rows: Events) -> pd.DataFrame:
    """Return the event table: seq, time_s, kind, role, job, machine, group, partner, value, speed."""
    import pandas as pd

    columns: dict[str, Any] = {"seq": np.arange(len(rows)), "time_s": rows["time_s"]}
    for name, enum in (("kind", Kind), ("role", Role)):
        codes: NDArray[np.int8] = rows[name]
        columns[name] = pd.Categorical.from_codes(codes, pd.Index([member.name.lower() for member in enum]))
    columns |= {name: rows[name] for name in ("job", "machine", "group", "partner", "value", "speed")}
    return pd.DataFrame(columns)


def from_frame(frame: pd.DataFrame) -> Events:
    """Return the events of a table that `to_frame` made; one without partners is of an older labkit."""
    rows = events(len(frame))
    for name in ("time_s", "job", "machine", "group", "value", "speed"):
        rows[name] = frame[name].to_numpy()
    if "partner" in frame:
        rows["partner"] = frame["partner"].to_numpy()
    kinds = {kind.name.lower(): int(kind) for kind in Kind}
    roles = {role.name.lower(): int(role) for role in Role}
    rows["kind"] = frame["kind"].astype(str).map(kinds).to_numpy()
    rows["role"] = frame["role"].astype(object).map(roles).fillna(-1).to_numpy()
    return rows

"""What happened: the event log, one row type for everything.

Events say what happened, not what was asked. A batch of events is a structured numpy array of dtype `EVENT`
in order of time; the log is one such array that grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Ints

if TYPE_CHECKING:
    import pandas as pd

    from labkit.core.placement import Placement, Reason, Repairs

Events = Any  # mypy would try the many ways to read an array at each field that is read: a quarter of its time
"""A structured numpy array of dtype `EVENT`."""


class Kind(IntEnum):
    """The kinds of event, and what their `value` and `speed` mean."""

    ARRIVED = 0
    """A job was submitted."""
    DECIDED = 1
    """A scheduler answered; value: the number of jobs whose tasks it changed; on machines, of those that it named."""
    PLACED = 2
    """`value` tasks of a role now sit in a device group; a job's rows come together and replace its earlier ones.
    `partner`: the job that shares the GPUs of its workers, until one of the two is placed anew or gives its tasks back.
    `cpus`, `memory_gb`: cores and GB of each of these tasks; NaN: as declared."""
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
    """A job is done and gave its tasks back; value: steps done. Where its time limit ended it, `cause` says so."""
    FAILED = 9
    """A job lost its tasks because a machine or the job itself failed: `cause`; value: steps done that are safe."""
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
    RESIZED = 16
    """A job that holds tasks goes on with other cores or memory for them, in the same places; value: steps done. Its
    PLACED rows come before; where it trains at another speed from now on, PROGRESSED follows."""
    MEASURED = 17
    """What tasks of a role use, or how fast they are: value of a `quantity`, of one `task` or (-1) of all together."""
    TASK_FAILED = 18
    """A task ended that should not have: why is its `cause`; value: its exit status, NaN where it is not known."""
    FELL_BACK = 19
    """The fallback of a scheduler decided in its place; value: why, a `Doubt`."""
    FORWARDED = 20
    """A job was placed with all of its tasks outside the pod that it belonged to: the one where it arrived
    (`Jobs.home`), or where it was forwarded to before. It belongs to pod `value` from now on, where most of these tasks
    sit."""
    REPAIRED = 21
    """A task was replaced where it was, or the blocks of a job's servers were spread anew (`task` -1); value: a
    `Repair`. A job that trains is rescaled with it."""
    EXPLAINED = 22
    """Why a decision changed a job; value: the number of its text in the run's list of reasons; speed: the steps/s that
    the scheduler predicts from then on (NaN: none)."""
    YARDSTICK = 23
    """How fast a machine is at the moment; value: processor seconds of a fixed piece of work; `cpus`: cores of the
    machine that were busy before it."""


NEWS: Final = (Kind.ARRIVED, Kind.COMPLETED, Kind.FAILED, Kind.LEFT, Kind.JOINED, Kind.DROPPED)
"""The kinds after which a scheduler should decide anew."""


class Doubt(IntEnum):
    """Why a fallback decided in the place of a scheduler that was trained."""

    NOT_FINITE = 0
    """What it gave out was not finite."""
    STARVED = 1
    """It gave a job nothing for too long, although there was room for it or others held more than they need."""
    WORSE = 2
    """With the speeds that were observed, it would have done worse than its fallback over the last window."""
    UNTRIED = 3
    """It has shown so few gangs that nothing can be said of others: its fallback gets one slot, to show more."""


class Role(IntEnum):
    """What a task does."""

    WORKER = 0
    PS = 1


class Quantity(IntEnum):
    """What was measured of a task; and what the row of all tasks of a role (`task` -1) tells of them."""

    CORES = 0
    """Cores in use, mean since the last measurement; of all tasks: their sum."""
    MEMORY_GB = 1
    """Memory in use; of all tasks: the largest."""
    STEP_S = 2
    """Seconds from one step of a worker to its next, with all that it waits for; of all tasks: the largest."""
    COMPUTE_S = 3
    """Seconds of it in which the worker computes its gradient; of a PS: seconds that an update of the size of the whole
    model takes it, whatever its load; of all tasks: the largest, of the slowest."""
    LOAD = 4
    """Part of the job's gradient bytes that a PS takes in, 0 to 1; of all tasks: the largest, of the hottest PS."""


class Cause(IntEnum):
    """Why a job or a task failed, or lost what it held."""

    UNKNOWN = 0
    """How it ended could not be seen."""
    KILLED = 1
    """By a signal from outside; nothing says that memory ran out."""
    OUT_OF_MEMORY = 2
    """It got no memory, or the kernel killed it for its memory."""
    HOST_LOST = 3
    """Its machine failed, or cannot be reached."""
    PREEMPTED = 4
    """A scheduler took its tasks."""
    ERROR = 5
    """It ended with an error of its own, or could not be started."""
    STALLED = 6
    """It made no progress for too long."""
    UNREACHABLE = 7
    """It could not be reached by the others of its job, while its machine could."""
    NO_ROOM = 8
    """What it stood on was given to others."""
    DECLINED = 9
    """A scheduler refused it for good."""
    TIME_LIMIT = 10
    """It had run for as long as it may."""


EVENT: Final = np.dtype(
    [
        ("time_s", np.float64),
        ("kind", np.int8),
        ("role", np.int8),
        ("quantity", np.int8),
        ("cause", np.int8),
        ("job", np.int32),
        ("machine", np.int32),
        ("group", np.int32),
        ("partner", np.int32),
        ("cpus", np.float32),
        ("memory_gb", np.float32),
        ("task", np.int32),
        ("value", np.float64),
        ("speed", np.float64),
    ],
    align=True,
)
"""One event: -1 where a job, machine, device group, role, partner, task (its number within the role), quantity or
cause does not apply, NaN where a number does not."""

_AS_BYTES: Final = np.dtype((np.void, EVENT.itemsize))
"""An event as so many bytes: numpy copies records field by field, which takes ten times as long."""


def _bytes_of(rows: Events) -> NDArray[np.void]:
    """Return events as so many bytes each, a view where they lie side by side."""
    return np.ndarray(len(rows), _AS_BYTES, np.ascontiguousarray(rows))  # `view` looks at all fields first


def copied(rows: Events) -> Events:
    """Return a copy of some events."""
    return np.ndarray(len(rows), EVENT, _bytes_of(rows).copy())


def joined(batches: Sequence[Events]) -> Events:
    """Return batches of events as one; a single one as it is."""
    if len(batches) < 2:
        return batches[0] if batches else NO_EVENTS
    return np.concatenate([_bytes_of(batch) for batch in batches]).view(EVENT)


def events(n: int = 0) -> Events:
    """Return `n` blank events."""
    blank = np.empty(n, dtype=EVENT)
    blank[:] = (np.nan, -1, -1, -1, -1, -1, -1, -1, -1, np.nan, np.nan, -1, np.nan, np.nan)
    return blank


NO_EVENTS: Final = events()


def relaxed(jobs: Ints, *, time_s: float) -> Events:
    """Return that a goal of each of some jobs was given up."""
    rows = events(len(jobs))
    rows["time_s"], rows["kind"], rows["job"] = time_s, Kind.RELAXED, jobs
    return rows


def explained(reasons: Sequence[Reason], texts: Sequence[int], *, time_s: float) -> Events:
    """Return why jobs were changed, with the numbers of the texts."""
    rows = events(len(reasons))
    rows["time_s"], rows["kind"], rows["value"] = time_s, Kind.EXPLAINED, texts
    rows["job"], rows["speed"] = [reason.job for reason in reasons], [reason.speed for reason in reasons]
    return rows


def repaired(repairs: Repairs, *, time_s: float) -> Events:
    """Return that tasks were repaired, in the order of the decision."""
    rows = events(len(repairs))
    rows["time_s"], rows["kind"], rows["value"] = time_s, Kind.REPAIRED, repairs["kind"]
    for name in ("job", "role", "task"):
        rows[name] = repairs[name]
    return rows


def fell_back(doubts: Ints, *, time_s: float) -> Events:
    """Return that a fallback decided, for each reason."""
    rows = events(len(doubts))
    rows["time_s"], rows["kind"], rows["value"] = time_s, Kind.FELL_BACK, doubts
    return rows


def asides(placement: Placement, happened: Events, *, time_s: float) -> list[Events]:
    """Return the events beside the changes of a decision: fallbacks, relaxed goals, gangs that were cut."""
    parts = [fell_back(placement.doubts, time_s=time_s)] if len(placement.doubts) else []
    if len(placement.relaxed):
        parts.append(relaxed(placement.relaxed, time_s=time_s))
    if len(placement.missing) and placement.missing.any():
        placed = happened["job"][happened["kind"] == Kind.PLACED]
        short = (placement.missing > 0) & np.isin(placement.set_jobs, placed)
        rows = events(int(short.sum()))
        rows["time_s"], rows["kind"], rows["job"] = time_s, Kind.CUT, placement.set_jobs[short]
        rows["value"] = placement.missing[short]
        parts.append(rows)
    return parts


LARGE: Final = 4096
"""Batches with as many events are kept as they are until the log is read: it need not grow for each."""


class EventLog:
    """An event table that grows by appending batches."""

    def __init__(self) -> None:
        self._rows = np.empty(1024, dtype=EVENT)
        self._bytes = _bytes_of(self._rows)
        self._parts: list[Events] = []
        self._n, self._n_joined = 0, 0

    def append(self, batch: Events) -> None:
        """Add a batch at the end; a large one is not to be changed from then on."""
        if len(batch) >= LARGE:
            self._parts.append(batch)
            self._n += len(batch)
            return
        if self._parts:
            self._join()
        self._add(batch, room_for=2 * len(self._rows))
        self._n = self._n_joined

    def _join(self) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            self._add(part, room_for=self._n)

    def _add(self, batch: Events, *, room_for: int) -> None:
        end = self._n_joined + len(batch)
        if end > len(self._rows):
            self._rows = np.empty(max(end, room_for), dtype=EVENT)
            grown = _bytes_of(self._rows)
            grown[: self._n_joined] = self._bytes[: self._n_joined]
            self._bytes = grown
        self._bytes[self._n_joined : end] = _bytes_of(batch)
        self._n_joined = end

    def __len__(self) -> int:
        return self._n

    def __deepcopy__(self, memo: dict[int, Any]) -> EventLog:
        copied_log = EventLog()  # field by field, its bytes would no longer be those of its rows
        copied_log.append(self.rows.copy())
        return copied_log

    @property
    def rows(self) -> Events:
        """All events so far, a read-only view."""
        if self._parts:
            self._join()
        view = self._rows[: self._n]
        view.flags.writeable = False
        return view


NAMED: Final[Mapping[str, type[IntEnum]]] = {"kind": Kind, "role": Role, "quantity": Quantity, "cause": Cause}
"""Columns whose codes tables show by name."""
PLAIN: Final = ("time_s", "job", "machine", "group", "partner", "cpus", "memory_gb", "task", "value", "speed")
"""The other columns."""
LATER: Final = ("partner", "cpus", "memory_gb", "task", "quantity", "cause")
"""Columns that tables of an older labkit lack: there they do not apply to any event."""


def names(enum: type[IntEnum]) -> list[str]:
    """Return the names that tables show for an enumeration, in its order."""
    return [member.name.lower() for member in enum]


def positions(codes: NDArray[np.int8], enum: type[IntEnum]) -> NDArray[np.int8]:
    """Return where in `names` each code is, -1 for none: codes may have gaps."""
    where = np.full(max(enum) + 2, -1, np.int8)  # the last for code -1
    where[[int(member) for member in enum]] = np.arange(len(enum))
    found: NDArray[np.int8] = where[codes]
    return found


def to_frame(rows: Events) -> pd.DataFrame:
    """Return the event table: seq, then the fields of `EVENT`; kind, role, quantity and cause by name."""
    import pandas as pd

    columns: dict[str, Any] = {"seq": np.arange(len(rows))}
    for name in EVENT.names or ():
        columns[name] = rows[name]
        if name in NAMED:
            enum = NAMED[name]
            columns[name] = pd.Categorical.from_codes(positions(rows[name], enum), pd.Index(names(enum)))
    return pd.DataFrame(columns)


def from_frame(frame: pd.DataFrame) -> Events:
    """Return the events of a table that `to_frame` made; one of an older labkit lacks some columns."""
    rows = events(len(frame))
    for name in EVENT.names or ():
        if name in LATER and name not in frame:
            continue
        if name in NAMED:
            codes = {member.name.lower(): int(member) for member in NAMED[name]}
            rows[name] = frame[name].astype(object).map(codes).fillna(-1).to_numpy()
        else:
            rows[name] = frame[name].to_numpy()
    return rows

"""What each job was doing from when to when: stretches with their steps, Gantt lanes, rescalings, configurations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS
from labkit.results.intervals import by_job, end_s, gantt, is_kind, placements
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd


class Doing(StrEnum):
    """What a job is doing."""

    WAITING = "waiting"
    """It holds no tasks: it has arrived, or was preempted."""
    STARTING = "starting"
    """It holds tasks and has not made a step with them."""
    RESCALING = "rescaling"
    """It is to go on with another gang: it is paused, or trains on as it was until the change is done."""
    TRAINING = "training"
    """It makes steps."""
    RECOVERY = "recovery"
    """It lost its tasks to a failure and does not train yet, or does again what it lost."""
    FINISHING = "finishing"
    """All its steps are done, and it still holds its tasks."""
    OVER = "over"


Gang = tuple[int, int]
"""Workers and PSs."""

_GANG: Final = (Kind.STARTED, Kind.RESCALED)
_ENDS: Final = (Kind.PREEMPTED, Kind.FAILED, Kind.COMPLETED, Kind.DROPPED)
_WITH_STEPS: Final = (*_GANG, Kind.PROGRESSED, Kind.PAUSED, Kind.RESIZED, *_ENDS)
"""The kinds whose value is the number of steps done."""

_THEN: Final = {
    Kind.ARRIVED: Doing.WAITING,
    Kind.PREEMPTED: Doing.WAITING,
    Kind.FAILED: Doing.RECOVERY,
    Kind.PAUSED: Doing.RESCALING,
    **dict.fromkeys((*_GANG, Kind.PROGRESSED), Doing.TRAINING),
    **dict.fromkeys((Kind.COMPLETED, Kind.DROPPED), Doing.OVER),
}


@dataclass(frozen=True, slots=True)
class _Mark:
    """An event at which a job may begin to do something else, and the steps done by then."""

    time_s: float
    kind: Kind
    steps: float
    speed: float
    gang: Gang


@dataclass(slots=True)
class _Piece:
    """What a job did between two marks."""

    doing: Doing
    gang: Gang
    start_s: float
    end_s: float
    reached: tuple[float, float]  # steps done at its start, and at its end
    useful_steps: float = 0.0  # of them, how many count: those that were lost do not
    lost_s: float = 0.0


def stretches(rows: Events) -> pd.DataFrame:
    """Return the states of each job from its arrival to its end, or to the end of the log.

    Between two events that tell steps they are spread evenly over the time. A training job that is placed anew goes on
    with the gang that it had, until it says that it was rescaled.

    Returns
    -------
    DataFrame
        A row per piece, job after job, in order of time and without gaps: job, doing (`Doing`), n_workers, n_ps (with
        which gang it trains; while it is rescaled, the one that it has afterwards), start_s, end_s, steps (made, and
        not lost later), lost_s (of the piece, seconds for steps that were lost).
    """
    import pandas as pd

    found: list[tuple[Any, ...]] = []
    until_s = end_s(rows)
    for job, marks in _lives(rows):
        for piece in _pieces(marks, until_s):
            place = piece.gang if piece.doing in (Doing.TRAINING, Doing.RESCALING) else (0, 0)
            found.append((job, piece.doing, *place, piece.start_s, piece.end_s, piece.useful_steps, piece.lost_s))
    names = ["job", "doing", "n_workers", "n_ps", "start_s", "end_s", "steps", "lost_s"]
    return pd.DataFrame(found, columns=names).astype(dict.fromkeys(names[4:], np.float64))


def _lives(rows: Events) -> Iterator[tuple[int, list[_Mark]]]:
    """Yield the marks of each job in order of the log."""
    job = rows["job"]
    placed, begins = placements(rows)
    counts = np.zeros((len(rows), 2), np.int64)
    first_row = np.flatnonzero(begins)[np.cumsum(begins)[placed] - 1]
    np.add.at(counts, (first_row, rows["role"][placed]), rows["value"][placed].astype(np.int64))
    index = by_job(rows, begins | is_kind(rows, Kind.ARRIVED, *_WITH_STEPS))
    cuts = np.flatnonzero(np.diff(job[index])) + 1
    for mine in np.split(index, cuts) if len(index) else []:
        steps = _steps(rows[mine])
        yield (
            int(job[mine[0]]),
            [
                _Mark(float(row["time_s"]), Kind(row["kind"]), float(done), float(row["speed"]), (int(w), int(p)))
                for row, done, (w, p) in zip(rows[mine], steps, counts[mine], strict=True)
            ],
        )


def _steps(rows: Events) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the steps done at each event of a job; one that does not say stands on the line between two that do."""
    reported = np.where(is_kind(rows, *_WITH_STEPS), rows["value"], np.nan)
    reported[rows["kind"] == Kind.ARRIVED] = 0.0
    known = np.isfinite(reported)
    return np.where(known, reported, np.interp(rows["time_s"], rows["time_s"][known], reported[known], left=0.0))


def _pieces(marks: list[_Mark], until_s: float) -> list[_Piece]:
    last = marks[-1]
    ends = [*marks, _Mark(max(until_s, last.time_s), Kind.PROGRESSED, last.steps, 0.0, (0, 0))]
    walk = _Walk()
    for mark, after in pairwise(ends):
        walk.pass_by(mark)
        if walk.doing == Doing.OVER:
            break
        walk.go(mark, after)
    pieces = walk.pieces
    _count(pieces, [mark.steps for mark in ends[1 : len(pieces) + 1]])
    if last.kind == Kind.COMPLETED and last.steps > 0:
        _finish(pieces, last.steps)
    return pieces


class _Walk:
    """Goes through the marks of a job and notes what it is doing."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []
        self.doing = Doing.WAITING
        self._trains: Gang = (0, 0)
        self._placed_gang: Gang = (0, 0)
        self._changing_since = -1  # piece in which it was placed anew, and has not been rescaled yet
        self._before = -1  # the same before it was placed last

    def pass_by(self, mark: _Mark) -> None:
        """Note what an event changes."""
        if mark.kind == Kind.PLACED:
            self._before = self._changing_since
            self._placed(mark.gang)
            return
        if mark.kind == Kind.RESIZED:  # in the same places: it goes on with what it was doing
            self._changing_since = self._before
            return
        self.doing = _THEN[mark.kind]
        if mark.kind == Kind.RESCALED and self._changing_since >= 0:
            for piece in self.pieces[self._changing_since :]:
                piece.doing, piece.gang = Doing.RESCALING, self._placed_gang
        if mark.kind in (*_GANG, *_ENDS):
            self._trains, self._changing_since = self._placed_gang, -1

    def _placed(self, gang: Gang) -> None:
        self._placed_gang = gang
        if self.doing == Doing.WAITING:
            self.doing = Doing.STARTING
        elif self.doing in (Doing.TRAINING, Doing.RESCALING) and self._changing_since < 0:
            self._changing_since = len(self.pieces)

    def go(self, mark: _Mark, after: _Mark) -> None:
        """Note what it does until the next mark."""
        steps = (mark.steps, _reached(mark, after))
        self.pieces.append(_Piece(self.doing, self._trains, mark.time_s, after.time_s, steps))


def _reached(mark: _Mark, after: _Mark) -> float:
    """Return the steps done when the next event came: one that failed had done more than what is safe."""
    if after.kind != Kind.FAILED:
        return after.steps
    predicted = mark.steps + mark.speed * (after.time_s - mark.time_s) if mark.speed > 0 else mark.steps
    return max(after.steps, predicted)


def _count(pieces: list[_Piece], safe_steps: list[float]) -> None:
    """Count the steps of each piece that were not lost later; `safe_steps`: the steps done after it."""
    safe = np.inf
    for piece, steps in zip(reversed(pieces), reversed(safe_steps), strict=True):
        safe = min(safe, steps)
        if piece.doing not in (Doing.TRAINING, Doing.RESCALING):
            continue
        before, reached = piece.reached
        piece.useful_steps = max(min(reached, safe) - before, 0.0)
        done = max(reached, before) - before
        lost = 1 - piece.useful_steps / done if done > 0 else float(before > safe)
        piece.lost_s = lost * (piece.end_s - piece.start_s)


def _finish(pieces: list[_Piece], steps: float) -> None:
    """Mark the pieces at the end of a job in which no step was left to do."""
    for piece in reversed(pieces):
        if piece.doing != Doing.TRAINING or piece.reached[0] < steps:
            return
        piece.doing = Doing.FINISHING


def lanes(record: RunRecord) -> pd.DataFrame:
    """Return the spans in which each job held tasks, and in which it made steps: id, start_s, end_s, workers, works.

    Rows with `works` False are the tasks that it held, whatever it did with them; those with True lie on them.
    """
    import pandas as pd

    bars = gantt(record.events, record.jobs, record.cluster)
    held = bars[bars["role"] == "worker"]
    held = held.groupby(["id", "start_s", "end_s"], as_index=False, sort=False).agg(workers=("count", "sum"))
    pieces = stretches(record.events)
    at_work = (pieces["doing"] == Doing.TRAINING) | ((pieces["doing"] == Doing.RESCALING) & (pieces["steps"] > 0))
    worked = pieces[at_work].rename(columns={"n_workers": "workers"})
    worked["id"] = record.jobs.id[worked["job"]].astype(str)
    columns = ["id", "start_s", "end_s", "workers"]
    parts = [_joined(held[columns]).assign(works=False), _joined(worked[columns]).assign(works=True)]
    both = pd.concat(parts, ignore_index=True)
    return both[both["end_s"] > both["start_s"]].reset_index(drop=True)


def _joined(rows: pd.DataFrame) -> pd.DataFrame:
    """Join rows of a job that follow each other with as many workers."""
    rows = rows.sort_values(["id", "start_s"], kind="stable")
    same = (rows[["id", "workers"]] == rows[["id", "workers"]].shift()).all(axis=1)
    same &= rows["start_s"] == rows["end_s"].shift()
    chains = rows.assign(chain=(~same).cumsum()).groupby("chain", as_index=False)
    joined = chains.agg(
        id=("id", "first"), start_s=("start_s", "first"), end_s=("end_s", "last"), workers=("workers", "first")
    )
    return joined.drop(columns="chain")


def rescalings(rows: Events) -> pd.DataFrame:
    """Return a row per rescaling of a job that had started to train, in order of the log.

    Returns
    -------
    DataFrame
        job, time_s (when it was done), steps (made by then), n_workers and n_ps (as they were decided last).
    """
    import pandas as pd

    found: list[tuple[int, float, float, int, int]] = []
    decided: dict[int, tuple[float, list[int]]] = {}
    seen = rows[is_kind(rows, Kind.PLACED, Kind.RESCALED)]
    columns = (seen[name].tolist() for name in ("job", "time_s", "kind", "role", "value"))
    for job, time_s, kind, role, value in zip(*columns, strict=True):
        if kind == Kind.PLACED:
            if job not in decided or decided[job][0] != time_s:
                decided[job] = time_s, [0, 0]
            decided[job][1][role] += int(value)
        else:
            gang = decided[job][1]
            found.append((job, time_s, value, gang[Role.WORKER], gang[Role.PS]))
    return pd.DataFrame(found, columns=["job", "time_s", "steps", "n_workers", "n_ps"])


_HAS: Final = (*_GANG, Kind.RESIZED)
"""After these, a job trains with the tasks that it was placed with last."""


def configurations(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return a row for each time in which a job trained with one configuration.

    Returns
    -------
    DataFrame
        job (its id), start_s, end_s, n_workers, worker_cores, n_ps, ps_cores (mean of a task), cores (in all), steps
        (made meanwhile), steps_per_s.
    """
    import pandas as pd

    started = np.unique(rows["job"][rows["kind"] == Kind.STARTED]).tolist()
    found = [row for job in started for row in _of(rows, jobs, job)]
    columns = ["job", "start_s", "end_s", "n_workers", "worker_cores", "n_ps", "ps_cores", "cores", "steps"]
    table = pd.DataFrame(found, columns=columns)
    seconds = (table["end_s"] - table["start_s"]).clip(lower=1e-9)
    return table.assign(steps_per_s=table["steps"] / seconds)


def _of(rows: Events, jobs: Jobs, job: int) -> list[tuple[object, ...]]:
    """Return the configurations of one job, without their speeds."""
    mine = rows[rows["job"] == job]
    mine = mine[np.isin(mine["kind"], (*_WITH_STEPS, Kind.PLACED))]
    found: list[tuple[object, ...]] = []
    holds: tuple[int, float, int, float] | None = None
    since, steps, name = 0.0, 0.0, str(jobs.id[job])

    def close(time_s: float, done: float) -> None:
        if holds is not None and time_s > since:
            n_workers, worker, n_ps, ps = holds
            cores = round(n_workers * worker + n_ps * ps, 6)
            found.append((name, since, time_s, *holds, cores, done - steps))

    for row in mine[mine["kind"] != Kind.PLACED]:
        kind, time_s, done = int(row["kind"]), float(row["time_s"]), float(row["value"])
        if kind not in (*_HAS, *_ENDS):
            continue
        close(time_s, done)
        holds = None if kind in _ENDS else _placed(mine, jobs, job, until_s=time_s)
        since, steps = time_s, done
    changes = mine[mine["kind"] != Kind.PLACED]
    if len(changes):
        close(float(changes["time_s"][-1]), float(changes["value"][-1]))
    return found


def _placed(rows: Events, jobs: Jobs, job: int, *, until_s: float) -> tuple[int, float, int, float]:
    """Return workers and the mean cores of one, servers and the mean cores of one, as placed last by a time."""
    placed = rows[(rows["kind"] == Kind.PLACED) & (rows["time_s"] <= until_s)]
    last = placed[placed["time_s"] == placed["time_s"].max(initial=-np.inf)]
    sizes: list[float] = []
    for role, demand in ((Role.WORKER, jobs.worker_demand), (Role.PS, jobs.ps_demand)):
        those = last[last["role"] == role]
        n = int(those["value"].sum())
        cores = np.where(np.isnan(those["cpus"]), demand[job, CPUS], those["cpus"])
        sizes += [n, round(float((cores * those["value"]).sum()) / n, 6) if n else 0.0]
    return int(sizes[0]), sizes[1], int(sizes[2]), sizes[3]

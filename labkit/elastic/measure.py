"""Costs of steps, scalings and faults, computed from the events of a job: one row each, times in seconds.

Every function takes the events of `Result.events` or `Job.events`, and returns a table; with no such event, an empty
one with the same columns. Times of day become seconds since the first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

Event = Mapping[str, Any]

NEIGHBOURS: Final = 20
"""Steps before, and as many after, from which the usual time is computed."""

STEP_COLUMNS: Final = ("at_s", "name", "version", "compute_s", "wait_s")
SCALING_COLUMNS: Final = (
    "scaling", "strategy", "servers", "workers", "at_s", "duration_s", "start_s", "registration_s", "assignment_s",
    "migration_s", "update_s", "suspended_s", "late_s", "steps_lost", "lost_s", "blocks", "bytes",
)  # fmt: skip
FAULT_COLUMNS: Final = ("name", "role", "cause", "at_s", "detect_s", "recover_s", "lost_steps", "pause_s")


# --- steps


def steps(events: Iterable[Event]) -> pd.DataFrame:
    """Return the seconds that each worker computed and waited in each step, in order of time.

    Returns
    -------
    DataFrame
        at_s (end of the step), name of the worker, version with which it computed, compute_s, wait_s (until it had the
        next version), and other columns that workers report, such as staleness. A repeated step has several rows.
    """
    log = list(events)
    rows = [{**e, "at_s": e["time"] - log[0]["time"]} for e in log if e["event"] == "stepped"]
    table = pd.DataFrame(rows, columns=None if rows else STEP_COLUMNS).drop(columns=["time", "event"], errors="ignore")
    more = [name for name in table.columns if name not in STEP_COLUMNS]
    return table[[*STEP_COLUMNS, *more]].sort_values("at_s", kind="stable", ignore_index=True)


class _Done(NamedTuple):
    """Steps in order of time: end of each at all workers, its version, and the longest wait of a worker in it."""

    at_s: np.ndarray
    version: np.ndarray
    wait_s: np.ndarray

    @classmethod
    def of(cls, events: Sequence[Event]) -> _Done:
        """Return each step once: the first time that it was complete."""
        table = steps(events)
        first = table.drop_duplicates(["name", "version"])
        whole = first.groupby("version").agg(at_s=("at_s", "max"), wait_s=("wait_s", "max")).reset_index()
        whole = whole.sort_values("at_s", kind="stable")
        return cls(*(whole[column].to_numpy() for column in ("at_s", "version", "wait_s")))

    def usual_s(self, before: float) -> float:
        """Return the mean time of the steps before a moment; NaN if there are too few."""
        last = int(np.searchsorted(self.at_s, before))
        times = self.at_s[max(last - NEIGHBOURS - 1, 0) : last]
        return float((times[-1] - times[0]) / (len(times) - 1)) if len(times) > 2 else np.nan

    def lost(self, begin: float, end: float) -> tuple[float, float]:
        """Return the steps and the seconds lost between the step before a span of time and the step after it.

        The expected number of steps is that at the pace of the steps before the span.
        """
        usual_s = self.usual_s(begin)
        first, last = int(np.searchsorted(self.at_s, begin)) - 1, int(np.searchsorted(self.at_s, end))
        if first < 0 or last >= len(self.at_s):
            return np.nan, np.nan
        seconds = self.at_s[last] - self.at_s[first] - usual_s * (last - first)
        return float(seconds / usual_s), float(seconds)


def waits(events: Iterable[Event]) -> pd.DataFrame:
    """Return the longest wait of a worker in each step, and how much longer than usual it was.

    Returns
    -------
    DataFrame
        version, at_s (end of the step at all workers), step_s (since the one before), wait_s; extra_s: that beyond the
        median of up to 20 quiet steps before and 20 after; doing: "migration" in a step during which blocks moved,
        "scaling" in another during which a scaling was under way, "" in a quiet one.
    """
    told = list(events)
    done = _Done.of(told)
    table = pd.DataFrame({"version": done.version, "at_s": done.at_s, "wait_s": done.wait_s})
    table.insert(2, "step_s", np.diff(done.at_s, prepend=np.nan))
    doing = np.full(len(table), "", dtype=object)
    for span in _spans(told):
        doing[_under_way(done.at_s, *span.whole)] = "scaling"
        if span.migration is not None:
            doing[_under_way(done.at_s, *span.migration)] = "migration"
    quiet = np.flatnonzero(doing == "")
    usual = [np.nan] * len(table)
    for i in range(len(table) if len(quiet) else 0):
        here = int(np.searchsorted(quiet, i))
        usual[i] = float(np.median(done.wait_s[quiet[max(here - NEIGHBOURS, 0) : here + NEIGHBOURS]]))
    return table.assign(extra_s=done.wait_s - np.array(usual), doing=doing.astype(str))


def _under_way(at_s: np.ndarray, begin: float, end: float) -> slice:
    first, last = np.searchsorted(at_s, [begin, end])
    return slice(int(first), int(last) + 1)


# --- scalings


def scalings(events: Iterable[Event]) -> pd.DataFrame:
    """Return the duration of each completed scaling, by the steps of DL2 [1]_, and its cost.

    Returns
    -------
    DataFrame
        scaling (number), strategy, servers and workers (requested), at_s, duration_s (in total);

        start_s: until the new processes had joined, which the paper does not count;
        registration_s: until all other members were connected to them;
        assignment_s: to decide which blocks move, and to write that down;
        migration_s: until the new owners had all blocks;
        update_s: until the workers used the new owners: with "suspend" the time for which they stood still (it overlaps
        the migration, as in the paper's Fig. 12), else the time after the migration;

        suspended_s: time for which a worker stood still, mean of all (the paper's Fig. 11): 0 for a hand-over;
        late_s: the largest wait of any worker in the steps of the migration, beyond the median of neighbouring steps;
        steps_lost, lost_s: steps not done from the beginning to the step after the end, and the seconds that they
        take, against the pace before it;
        blocks, bytes: what moved, optimizer state included.

        NaN where a strategy has no such step.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", section 5, Fig. 11 and 12.
    """
    told = list(events)
    spans = _spans(told)
    if not spans:
        return pd.DataFrame(columns=SCALING_COLUMNS)
    done, waited = _Done.of(told), waits(told)
    return pd.DataFrame([_scaling(span, done, waited) for span in spans], columns=SCALING_COLUMNS)


def _spans(events: Sequence[Event]) -> list[_Span]:
    started = {e["scaling"] for e in events if e["event"] == "registration"}
    return [_Span(e["scaling"], events) for e in events if e["event"] == "scaled" and e["scaling"] in started]


class _Span:
    def __init__(self, number: int, events: Sequence[Event]) -> None:
        self.zero, self.all = events[0]["time"], events
        self.note = {e["event"]: e for e in events if e.get("scaling") == number}
        began = self.note["registration"]["time"]
        self.new = [str(name) for name in self.note.get("assignment", {}).get("new", ())]
        started = [e["time"] for e in events if e["event"] == "started" and e["name"] in self.new]
        self.begin, self.scaled = min([began, *started]), self.note["scaled"]["time"]
        self.end = max([self.scaled, *(e["time"] for e in self._after_it())])

    def _after_it(self) -> list[Event]:
        """Return for each worker that stood still, or was started again, the event with which it went on."""
        if self.note["scaled"]["strategy"] == "checkpoint":
            started = [e for e in self.all if e["event"] == "started" and self.begin <= e["time"] <= self.scaled]
            names = {e["name"] for e in started}
            ready = (e for e in self.all if e["event"] == "ready" and e["time"] >= self.scaled)
            return _first_by_name(e for e in ready if e["name"] in names)
        return [e for e, _ in self.standstills()]

    def standstills(self) -> list[tuple[Event, float]]:
        """Return the events of workers that stood still while blocks moved, and the seconds for which they did."""
        if self.note["scaled"]["strategy"] != "suspend" or "migration" not in self.note:
            return []
        version = self.note["migration"].get("version")
        found = self._standstills_during() if version is None else self._standstills_at(version)
        return [(e, float(e["seconds"])) for e in found]

    def _standstills_at(self, version: int) -> list[Event]:
        """Return the events of workers that stood still at a version; a worker reports it when it goes on."""
        until = min((other for other in _holds(self.all) if other > version), default=np.inf)
        return [e for e in self.all if e["event"] == "held" and version <= e["version"] < until]

    def _standstills_during(self) -> list[Event]:
        """Return the events of workers that stopped during the migration, in asynchronous training."""
        start_s, ended = (self.note[event]["time"] for event in ("migration", "update"))
        names = {e["name"] for e in self.all if e["event"] == "holds" and start_s <= e["time"] <= ended}
        later = [e for e in self.all if e["event"] == "held" and e["time"] >= start_s and e["name"] in names]
        return _first_by_name(later)

    def suspended_s(self) -> float:
        """Return the seconds for which a worker stood still, mean of all."""
        if self.note["scaled"]["strategy"] == "checkpoint":
            stood = [e["time"] for e in self.all if e["event"] == "holds" and self.begin <= e["time"] <= self.scaled]
            went = [e["time"] for e in self._after_it()]
            return float(np.mean(went) - np.mean(stood)) if stood and went else np.nan
        return float(np.mean([seconds for _, seconds in self.standstills()] or [0.0]))

    @property
    def whole(self) -> tuple[float, float]:
        """Begin and end, in seconds since the job's first event."""
        return self.begin - self.zero, self.end - self.zero

    @property
    def migration(self) -> tuple[float, float] | None:
        """Begin and end of the migration of blocks; None if no block moved."""
        if "migration" not in self.note or not self.note["assignment"]["blocks"]:
            return None
        return self.note["migration"]["time"] - self.zero, self.note["update"]["time"] - self.zero

    def moved_bytes(self) -> int:
        """Return the bytes handed over; the sender may report them some milliseconds after the receiver."""
        if self.migration is None:
            return 0
        since, until = (self.zero + at_s for at_s in self.migration)
        reports = (e for e in self.all if e["event"] == "handed_over" and since <= e["time"] <= until + 1)
        each = {e["block"]: e["bytes"] for e in reversed(list(reports))}  # the next scaling may move them back soon
        return sum(list(each.values())[-self.note["assignment"]["blocks"] :])

    def step_times(self) -> dict[str, float]:
        """Return the seconds of each of the four steps, and of the start before them."""
        if "migration" not in self.note:
            return {}
        joined = [e["time"] for e in self.all if e["event"] == "joined" and e["name"] in self.new]
        up = max([self.begin, *joined])
        assigned, migration, update = (self.note[event]["time"] for event in ("assignment", "migration", "update"))
        words = [e["time"] for e in self.all if e["event"] in ("met", "ready") and up <= e["time"] <= assigned]
        met = max(words, default=up) if self.new else self.note["registration"]["time"]
        stood = max((seconds for _, seconds in self.standstills()), default=self.scaled - update)
        return {
            "start_s": up - self.begin, "registration_s": met - up, "assignment_s": assigned - met,
            "migration_s": update - migration, "update_s": stood,
        }  # fmt: skip


def _scaling(span: _Span, done: _Done, waited: pd.DataFrame) -> dict[str, Any]:
    begin, end = span.whole
    lost, lost_s = done.lost(begin, end)
    late: Iterable[float] = waited["extra_s"].iloc[_under_way(done.at_s, *span.migration)] if span.migration else []
    request = span.note["registration"]
    return {
        **{column: request[column] for column in ("scaling", "strategy", "servers", "workers")},
        "at_s": begin, "duration_s": end - begin, **span.step_times(), "suspended_s": span.suspended_s(),
        "late_s": max(late, default=np.nan), "steps_lost": lost, "lost_s": lost_s,
        "blocks": span.note.get("assignment", {}).get("blocks", 0), "bytes": span.moved_bytes(),
    }  # fmt: skip


def _holds(events: Iterable[Event]) -> list[int]:
    """Return the versions at which workers had to stand still."""
    return [e["version"] for e in events if e["event"] in ("migration", "saving") and e.get("version") is not None]


def _first_by_name(events: Iterable[Event]) -> list[Event]:
    first: dict[str, Event] = {}
    for event in events:
        first.setdefault(str(event["name"]), event)
    return list(first.values())


# --- faults


def faults(events: Iterable[Event], *, killed: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return the cost of each death of a process.

    Parameters
    ----------
    events : iterable of dict
        Events of a job.
    killed : mapping, optional
        Times (seconds since 1970) at which processes were killed, by name, where known.

    Returns
    -------
    DataFrame
        name, role, cause (name of a `labkit.core.Cause`), at_s (detection);
        detect_s: from its end to the detection, NaN where the end is unknown;
        recover_s: from the detection until a step was complete that had not been complete before;
        lost_steps: complete steps that had to be repeated;
        pause_s: the longest time around it without a step complete, beyond the usual time of a step.
    """
    told = list(events)
    dead = [e for e in told if e["event"] == "left" and not e["expected"]]
    if not dead:
        return pd.DataFrame(columns=FAULT_COLUMNS)
    zero, done = told[0]["time"], _Done.of(told)
    back = [(e["time"] - zero, int(e["version"])) for e in told if e["event"] == "began"]
    every = np.sort(steps(told)["at_s"].to_numpy())
    rows = []
    for death in dead:
        at_s, name = death["time"] - zero, str(death["name"])
        ended_s = (killed or {}).get(name, death["time"]) - zero
        row = {
            "name": name,
            "role": death["role"],
            "cause": death.get("cause"),
            "at_s": at_s,
            **_recovery(at_s, done, back),
        }
        row["detect_s"] = at_s - ended_s if name in (killed or {}) else np.nan
        row["pause_s"] = _pause(every, ended_s, until=at_s + row["recover_s"]) - done.usual_s(ended_s)
        rows.append(row)
    return pd.DataFrame(rows, columns=FAULT_COLUMNS)


def _recovery(at_s: float, done: _Done, back: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return the seconds until training was as far as before, and the number of steps that were repeated."""
    before = done.version[done.at_s <= at_s]
    reached = int(before.max()) + 1 if len(before) else 0
    following = done.at_s[(done.at_s > at_s) & (done.version >= reached)]
    if not len(following):
        return {"recover_s": np.nan, "lost_steps": 0}
    restarts = [version for when, version in back if at_s < when <= following[0]]
    return {"recover_s": float(following[0] - at_s), "lost_steps": max(reached - min(restarts, default=reached), 0)}


def _pause(every: np.ndarray, ended_s: float, *, until: float) -> float:
    """Return the longest span without a step that ends after a death and begins before the recovery from it."""
    return float(max((b - a for a, b in pairwise(every) if b > ended_s and a < until), default=np.nan))

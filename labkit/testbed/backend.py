"""The backend over SSH: a placement becomes processes on hosts, and what happens to them becomes events."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core import checks
from labkit.core.complaints import complaint
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import NEWS, NO_EVENTS, Events, Kind, Role, asides, events
from labkit.core.jobs import Jobs
from labkit.core.ledger import DONE, HOLDING, Ledger
from labkit.core.placement import Placement
from labkit.testbed.agent.wire import Refused, check_name
from labkit.testbed.inventory import Inventory
from labkit.testbed.progress import REPORT_S, Told
from labkit.testbed.training import Place, Training, place_of, site_names
from labkit.testbed.venue import Venue

STATE: Final = "testbed.json"
NOTES: Final = "notes.txt"
MOST_FAILURES: Final = 5
"""A job that fails so often on end without a step is given up."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What came in from a thread, and at which second of the run."""

    at_s: float
    told: Told | None = None
    job: int = -1
    host: str = ""
    up: bool = True


class _Inbox:
    """What threads have told, in order."""

    def __init__(self) -> None:
        self._items: deque[_Heard] = deque()
        self._more = threading.Condition()

    def put(self, heard: _Heard) -> None:
        with self._more:
            self._items.append(heard)
            self._more.notify_all()

    def taken(self) -> list[_Heard]:
        """Return all that has come, and forget it."""
        with self._more:
            items = list(self._items)
            self._items.clear()
            return items

    def wait(self, seconds: float) -> None:
        """Wait until there is something, or for so long."""
        with self._more:
            self._more.wait_for(lambda: bool(self._items), max(seconds, 0.0))

    def __bool__(self) -> bool:
        return bool(self._items)


class SshBackend:
    """Jobs that train on machines over SSH.

    What it tells is what happened: tasks are placed once the decision is taken, a job starts once it trains. Between
    decisions it tells once a second how far each job is, so `advance` may return before there are news.

    Parameters
    ----------
    jobs : Jobs
        What arrives, at which second of the run.
    inventory : Inventory
        Where it runs.
    run : str
        Name of the run on the hosts: letters, digits, `. _ -`.
    folder : Path
        Of the run here: what is needed to attach to it, and checkpoints.
    training : Training
        How jobs train.

    Attributes
    ----------
    live : bool
        True: `advance` may return without news.
    notes : list of str
        What went wrong on the way, in words.

    Raises
    ------
    InputError
        If a job cannot train, a host cannot be used (all that cannot are named), or the run's name cannot be one.
    """

    live = True

    def __init__(
        self,
        jobs: Jobs,
        inventory: Inventory,
        *,
        run: str,
        folder: Path,
        training: Training | None = None,
        lease_s: float = 600.0,
        began_at: float | None = None,
    ) -> None:
        _refuse_name(run)
        self.jobs, self.inventory, self.cluster = jobs, inventory, inventory.cluster()
        self.training = training or Training()
        self.run, self.folder = run, folder
        self.notes: list[str] = []
        self._inbox = _Inbox()
        self._ledger = Ledger(jobs, self.cluster)
        self._first_row, self._mate = np.full(len(jobs), -1, np.int32), np.full(len(jobs), -1, np.int32)
        self._n_arrived = 0
        self._n_failures: dict[int, tuple[int, float]] = {}
        self._done_early: dict[int, float] = {}
        self._training: set[int] = set()
        self._steps = np.zeros(len(jobs))
        self._history, self._told_s = NO_EVENTS, 0.0
        self._places: dict[int, Place] = {}
        self._began_at = wall_s() if began_at is None else began_at
        self._zero_s = time.monotonic()
        self._begun = began_at is not None
        self._venue = Venue(
            inventory, jobs=jobs, training=self.training, run=run, folder=folder / "checkpoints", lease_s=lease_s,
            changed=self._host_changed,
        )  # fmt: skip
        self.hosts = self._venue.hosts
        self._deployments = [self._venue.deployment(number, tell=self._heard) for number in range(len(jobs))]

    # --- the protocol of backends

    @property
    def now_s(self) -> float:
        """Seconds since the run began: since `advance` was first called, so pre-runs of schedulers do not count."""
        return time.monotonic() - self._zero_s if self._begun else 0.0

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        quiet = not self._inbox and not self._ledger.n_holding and all(self.hosts.up.values())
        return quiet and self._n_arrived == len(self.jobs)

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision: processes begin to start, move and stop; what comes of it follows in `advance`.

        Raises
        ------
        PlacementError
            If it names an unknown job or overfills a device group; nothing is changed then.
        """
        self._refuse(placement)
        rows: list[Events] = [_row(Kind.DECIDED, value=float(len(placement.set_jobs)))]
        for number in placement.set_jobs.tolist():
            rows += self._set(number, placement)
        rows += asides(placement, np.concatenate(rows), time_s=np.nan)
        told = self._told(rows)
        self._remember()
        return told

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Wait until `until_s`, until there are news, or for a second."""
        if not self._begun:
            self._begun, self._zero_s, self._began_at = True, time.monotonic(), wall_s()
            self._remember()
        if len(self._history):
            history, self._history = self._history, NO_EVENTS
            return history
        rows: list[Events] = []
        tick_s = self.now_s + REPORT_S
        while True:
            rows += self._due()
            for heard in self._inbox.taken():
                rows += _at(self._events_of(heard), heard.at_s)
            now_s = self.now_s
            if now_s >= min(until_s, tick_s) or (stop_at_event and any(row["kind"][0] in NEWS for row in rows)):
                return self._told(rows)
            if self.idle and not np.isfinite(until_s):
                return self._told(rows)
            self._inbox.wait(min(until_s, tick_s, self._next_arrival_s()) - now_s)

    def close(self, *, end: bool = True) -> None:
        """Let go of the hosts; with `end`, all that runs there for this run is ended."""
        self._venue.close(end=end)

    def __enter__(self) -> SshBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- decisions

    def _refuse(self, placement: Placement) -> None:
        ledger, book = self._ledger, self._ledger.book
        if len(placement.partner) not in (0, len(placement.set_jobs)):
            raise PlacementError(
                f"the placement sets {len(placement.set_jobs)} jobs and has {len(placement.partner)} partners; give "
                "one for each, -1 for none, or no partners at all."
            )
        book.ensure(len(placement))
        fault, where = checks.check(
            placement.set_jobs, placement.partner, placement.job, placement.role, placement.group, placement.count,
            ledger.belief, DONE, book.held, book.tasks, book.free, book.demand, ledger.up,
            self.cluster.group_machine.astype(np.int32), self._first_row, self._mate,
        )  # fmt: skip
        self._first_row[:] = self._mate[:] = -1
        if fault != checks.OK:
            raise PlacementError(complaint(fault, where, placement, self.jobs, self.cluster, book.free))

    def _set(self, number: int, placement: Placement) -> list[Events]:
        """Bring about the gang of one job; return what is to be told at once."""
        mine = placement.job == number
        phase = self._ledger.belief["phase"][number]
        if not mine.any():
            if phase != HOLDING:
                return []
            self._let_go(number)
            self._deployments[number].want(None)
            return [_row(Kind.PREEMPTED, job=number, value=self._steps[number], speed=0.0)]
        columns = {name: getattr(placement, name)[mine] for name in ("role", "group", "count")}
        place = place_of(self.cluster, **columns)
        if phase == HOLDING and place == self._places.get(number):
            return []
        partner = -1
        if len(placement.partner):
            partner = int(placement.partner[placement.set_jobs == number][0])
        rows = [
            _row(Kind.PLACED, job=number, role=role, group=group, value=float(count), partner=partner)
            for role, group, count in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        if number in self._done_early:  # it came to its end while it was told to stop
            steps = self._done_early.pop(number)
            return [*rows, _row(Kind.COMPLETED, job=number, value=steps, speed=0.0)]
        self._places[number] = place
        self._deployments[number].want(place)
        return rows

    # --- what happened

    def _heard(self, job: int, told: Told) -> None:
        self._inbox.put(_Heard(self.now_s, told=told, job=job))

    def _host_changed(self, host: str, up: bool) -> None:
        self._inbox.put(_Heard(self.now_s, host=host, up=up))

    def _next_arrival_s(self) -> float:
        return float(self.jobs.arrival_s[self._n_arrived]) if self._n_arrived < len(self.jobs) else np.inf

    def _due(self) -> list[Events]:
        """Return the jobs that have arrived by now."""
        rows = []
        while self._next_arrival_s() <= self.now_s:
            rows.append(_row(Kind.ARRIVED, job=self._n_arrived, time_s=self.now_s))
            self._n_arrived += 1
        return rows

    def _events_of(self, heard: _Heard) -> list[Events]:
        if heard.told is None:
            return self._host_came(heard.host) if heard.up else self._host_went(heard.host)
        told, job = heard.told, heard.job
        self._steps[job] = told.steps
        if told.why:
            self._note(f"job {self.jobs.id[job]} {told.what}: {told.why}")
        if job not in self._places:
            if told.what == "done":
                self._done_early[job] = told.steps
            return []
        if told.what in ("done", "failed"):
            return self._came_to_an_end(job, told)
        return self._went_on(job, told)

    def _went_on(self, job: int, told: Told) -> list[Events]:
        if told.what == "dropped":
            return self._stays(job)
        if told.what not in ("began", "scaled", "progressed"):
            return []
        if job not in self._training:
            self._training.add(job)
            self._remember()  # it has a home now
            return [_row(Kind.STARTED, job=job, value=told.steps, speed=self._speed(job, told))]
        if told.what == "scaled":
            return [_row(Kind.RESCALED, job=job, value=told.steps, speed=self._speed(job, told))]
        return self._progressed(job, told)

    def _stays(self, job: int) -> list[Events]:
        """Return that a job is where it was, after a scaling that came to nothing.

        Where its place was given to others meanwhile, it stops and has to be placed again.
        """
        place = self._deployments[job].place
        if place is None or place == self._places[job]:
            return []  # something else was decided since
        rows = self._seats(job, place)
        if self._fits(job, np.concatenate(rows)):
            self._places[job] = place
            return rows
        self._deployments[job].want(None)
        self._note(f"job {self.jobs.id[job]} stops: where it was, others were placed meanwhile")
        return self._came_to_an_end(job, Told("failed", self._deployments[job].progress.saved))

    def _seats(self, job: int, place: Place) -> list[Events]:
        """Return that the tasks of a job sit in a place; the PS of a job that asks for none is ours alone."""
        names = site_names(self.cluster)
        return [
            _row(Kind.PLACED, job=job, role=role, group=names.index(site), value=float(counts[role]))
            for site, counts in place.items()
            for role in (Role.WORKER, Role.PS)
            if counts[role] and (role == Role.WORKER or self.jobs.n_ps[job])
        ]

    def _fits(self, job: int, rows: Events) -> bool:
        """Return whether there is room for a job where nobody else was placed."""
        free = self._ledger.book.free_without(np.array([job], np.int32))
        np.subtract.at(free, rows["group"], self._ledger.book.demand[rows["role"], job] * rows["value"][:, None])
        return bool((free >= -1e-9).all())

    def _progressed(self, job: int, told: Told) -> list[Events]:
        rows = [_row(Kind.PROGRESSED, job=job, value=told.steps, speed=self._speed(job, told))]
        if np.isfinite(told.loss):
            rows.append(_row(Kind.LOSS, job=job, value=told.loss))
        return rows

    def _speed(self, job: int, told: Told) -> float:
        """Return the speed that was measured; where none was yet, the last one known."""
        return told.speed if np.isfinite(told.speed) else float(self._ledger.belief["speed"][job])

    def _let_go(self, job: int) -> None:
        self._places.pop(job, None)
        self._training.discard(job)

    def _came_to_an_end(self, job: int, told: Told) -> list[Events]:
        self._let_go(job)
        if told.what == "done":
            self._venue.backups.forget(self._deployments[job].task)
            return [_row(Kind.COMPLETED, job=job, value=told.steps, speed=0.0)]
        n, steps = self._n_failures.get(job, (0, -1.0))
        n = n + 1 if told.steps <= steps else 1
        self._n_failures[job] = n, told.steps
        kind = Kind.DROPPED if n >= MOST_FAILURES else Kind.FAILED
        return [_row(kind, job=job, value=told.steps, speed=0.0)]

    def _host_came(self, host: str) -> list[Events]:
        for deployment in self._deployments:
            deployment.host_back(host)
        machine = self.cluster.machines.index(host)
        return [] if self._ledger.up[machine] else [_row(Kind.JOINED, machine=machine)]

    def _host_went(self, host: str) -> list[Events]:
        """Return what is left of the jobs that had tasks there, and that the machine is gone."""
        machine = self.cluster.machines.index(host)
        if not self._ledger.up[machine]:
            return []
        rows: list[Events] = []
        for job, place in list(self._places.items()):
            left = {site: counts for site, counts in place.items() if site.rpartition("/")[0] != host}
            whole = any(w for w, _ in left.values()) and any(s for _, s in left.values())
            if self._deployments[job].home != host and left == place:
                continue
            rest = left if whole and self._deployments[job].home != host else None
            self._deployments[job].host_lost(host, rest)
            rows += self._gone_on(job, rest)
        return [*rows, _row(Kind.LEFT, machine=machine)]

    def _gone_on(self, job: int, rest: Place | None) -> list[Events]:
        """Return that a job goes on with what is left, or failed."""
        if rest is None:
            self._note(f"job {self.jobs.id[job]} failed: its host was lost")
            self._let_go(job)
            return [_row(Kind.FAILED, job=job, value=float(self._deployments[job].progress.saved), speed=0.0)]
        self._places[job] = rest
        return [*self._seats(job, rest), _row(Kind.RESCALED, job=job, value=self._steps[job], speed=float("nan"))]

    def _told(self, rows: list[Events]) -> Events:
        """Fold what happened into what is known here, and return it in order of time."""
        if not rows:
            return NO_EVENTS
        batch = np.concatenate(rows)
        now_s = self.now_s
        batch["time_s"] = np.clip(np.where(np.isnan(batch["time_s"]), now_s, batch["time_s"]), self._told_s, now_s)
        batch = batch[np.argsort(batch["time_s"], kind="stable")]
        self._told_s = float(batch["time_s"][-1])
        self._ledger.fold(batch)
        return batch

    def _note(self, what: str) -> None:
        """Keep a sentence for people."""
        line = f"{self.now_s:.1f} s: {what}"
        self.notes.append(line)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / NOTES).open("a") as file:
            file.write(line + "\n")

    # --- going on after this process

    def go_on(self, history: Events, *, homes: dict[str, str], places: dict[str, dict[str, list[int]]]) -> None:
        """Take over a run of another process: its events so far are the first that `advance` returns."""
        self._history = history
        self._ledger.fold(history)
        last_s = self._told_s = float(history["time_s"][-1]) if len(history) else 0.0
        self._zero_s = time.monotonic() - max(wall_s() - self._began_at, last_s)
        self._n_arrived = int(np.count_nonzero(history["kind"] == Kind.ARRIVED))
        self._steps[:] = self._ledger.belief["steps"]
        for name, up in zip(self.cluster.machines, self._ledger.up.tolist(), strict=True):
            if not up:
                self._host_changed(name, True)
        for job in np.flatnonzero(self._ledger.belief["phase"] == HOLDING).tolist():
            _, role, group, count = self._ledger.book.of(np.array([job], np.int32))
            place = place_of(self.cluster, role=role, group=group, count=count)
            self._places[job] = place
            if np.isfinite(self._ledger.belief["first_start_s"][job]):
                self._training.add(job)
            if home := homes.get(str(job)):
                was = {site: (w, s) for site, (w, s) in places.get(str(job), {}).items()}
                self._deployments[job].adopt(home, was or place)
            self._deployments[job].want(place)
        for deployment in self._deployments:
            deployment.doubt(self.hosts.up)

    def _remember(self) -> None:
        """Write down what a process after this one must know to attach."""
        homes = {str(d.number): d.home for d in self._deployments if d.home}
        state = {
            "run": self.run, "inventory": str(self.inventory.path.absolute()), "began_at": self._began_at,
            "training": self.training.to_json(), "homes": homes, "lease_s": self.hosts.lease_s,
            "places": {str(job): {site: list(c) for site, c in place.items()} for job, place in self._places.items()},
        }  # fmt: skip
        partial = self.folder / f".{STATE}"
        self.folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(state))
        partial.rename(self.folder / STATE)


def _refuse_name(run: str) -> None:
    try:
        check_name(run, "run")
    except Refused as error:
        raise InputError(f"a run's name: {error}.") from None


def wall_s() -> float:
    """Return the time of day, to go on counting in another process."""
    return datetime.now(UTC).timestamp()


def _at(rows: list[Events], time_s: float) -> list[Events]:
    """Let events have happened at a time."""
    for row in rows:
        row["time_s"] = time_s
    return rows


def _row(kind: Kind, **columns: Any) -> Events:
    row = events(1)
    row["kind"] = kind
    for name, value in columns.items():
        row[name] = value
    return row

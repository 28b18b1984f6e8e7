"""The backend over SSH: a placement becomes processes on hosts, and what happens to them becomes events."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core import checks
from labkit.core.book import NO_AMOUNTS
from labkit.core.complaints import complaint
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import NEWS, NO_EVENTS, Cause, Events, Kind, asides, joined, repaired
from labkit.core.jobs import Jobs
from labkit.core.ledger import DONE, HOLDING, Ledger
from labkit.core.placement import Placement, Repair, Repairs
from labkit.core.repairs import refuse_repairs
from labkit.testbed.agent.wire import Refusal, check_name
from labkit.testbed.inventory import Inventory
from labkit.testbed.run.amounts import given
from labkit.testbed.run.event_rows import at, row, wall_s
from labkit.testbed.run.events import Happenings
from labkit.testbed.run.inbox import Inbox, InboxItem
from labkit.testbed.run.measuring import RunMeasuring
from labkit.testbed.run.progress import REPORT_S, JobUpdate
from labkit.testbed.run.retries import Retries
from labkit.testbed.run.saved_state import STATE, SavedState
from labkit.testbed.run.session import TestbedSession
from labkit.testbed.run.training import TrainingTable, place_of

__all__ = ["NOTES", "STATE", "SshBackend"]
NOTES: Final = "notes.txt"
_AS_DECLARED: Final = {"cpus": NO_AMOUNTS, "memory_gb": NO_AMOUNTS}


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
    training : TrainingTable
        How jobs train.
    lease_s : float
        Seconds a host keeps the run alive without a sign of life from this process.
    retries : Retries
        How patient it is with jobs that fail and hosts that fail jobs.
    began_at : float, optional
        When the run began, in seconds since 1970, if it goes on.
    some : bool
        Be content with some of the hosts: the others leave, until they can be reached.

    Attributes
    ----------
    live : bool
        True: `advance` may return without news.
    notes : list of str
        What went wrong on the way, in words.
    dropped : dict
        Jobs that were given up, by id, and why.

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
        training: TrainingTable | None = None,
        lease_s: float = 600.0,
        retries: Retries | None = None,
        began_at: float | None = None,
        some: bool = False,
    ) -> None:
        _refuse_name(run)
        self.jobs, self.inventory, self.cluster = jobs, inventory, inventory.cluster()
        self.training = training or TrainingTable()
        self.run, self.folder = run, folder
        self.notes: list[str] = []
        self._inbox = Inbox()
        self._ledger = Ledger(jobs, self.cluster)
        self._first_row, self._mate = np.full(len(jobs), -1, np.int32), np.full(len(jobs), -1, np.int32)
        self._n_arrived = 0
        self._history, self._told_s = NO_EVENTS, 0.0
        self._began_at = wall_s() if began_at is None else began_at
        self._zero_s = time.monotonic()
        self._begun = began_at is not None
        self._venue = TestbedSession(
            inventory, jobs=jobs, training=self.training, run=run, folder=folder / "checkpoints", lease_s=lease_s,
            changed=self._host_changed, some=some,
        )  # fmt: skip
        self.hosts = self._venue.hosts
        self._happened = Happenings(
            jobs, self.cluster, ledger=self._ledger, hosts=self.hosts, backups=self._venue.backups,
            retries=retries or Retries(), now_s=lambda: self.now_s, note=self._note, remember=self._remember,
        )  # fmt: skip
        self._places, self._training = self._happened.places, self._happened.training
        self.dropped = self._happened.dropped
        for host, why in self.hosts.absent.items():
            self._host_changed(host, False, why)
        for note in self._venue.notes:
            self._note(note)
        every_s = self.training.measure_every_s
        self._measuring = RunMeasuring(self.hosts, every_s=every_s, tell=self._measured) if every_s else None
        self._deployments = [
            self._venue.deployment(number, tell=self._heard, hear=self._hear_of(number)) for number in range(len(jobs))
        ]
        self._happened.deployments = self._deployments

    # --- the protocol of backends

    @property
    def now_s(self) -> float:
        """Seconds since the run began: since `advance` was first called, so pre-runs of schedulers do not count."""
        return time.monotonic() - self._zero_s if self._begun else 0.0

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        there = all(self.hosts.up.values()) and not self._happened.aside
        quiet = not self._inbox and not self._ledger.n_holding and there
        return quiet and self._n_arrived == len(self.jobs)

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision: processes begin to start, move and stop; what comes of it follows in `advance`.

        Raises
        ------
        PlacementError
            If it names an unknown job or overfills a device group; nothing is changed then.
        """
        self._refuse(placement)
        rows: list[Events] = [row(Kind.DECIDED, value=float(len(placement.set_jobs)))]
        for number in placement.set_jobs.tolist():
            rows += self._set(number, placement)
        rows += asides(placement, joined(rows), time_s=np.nan)
        told = self._told(rows)
        if len(placement.repairs):
            told = joined([told, self._told(self._repair(placement.repairs))])
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
                rows += at(self._happened.of(heard), heard.at_s)
            now_s = self.now_s
            if now_s >= min(until_s, tick_s) or (stop_at_event and any(row["kind"][0] in NEWS for row in rows)):
                return self._told(rows)
            if self.idle and not np.isfinite(until_s):
                return self._told(rows)
            self._inbox.wait(min([until_s, tick_s, self._next_arrival_s(), *self._happened.aside.values()]) - now_s)

    def members(self, job: int) -> list[dict[str, Any]]:
        """Return name, role, site, pid and whether it has joined of each process that trains a job.

        Raises
        ------
        LabkitError
            If its home host cannot be reached.
        """
        return self._deployments[job].members()

    def close(self, *, end: bool = True) -> None:
        """Let go of the hosts; with `end`, all that runs there for this run is ended."""
        if end:
            self._remember(ended=True)
        if self._measuring is not None:
            self._measuring.close()
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
            placement.cpus, placement.memory_gb, ledger.belief, DONE, book.held, book.tasks, book.free, book.demand,
            ledger.up, self.cluster.group_machine.astype(np.int32), self._first_row, self._mate,
        )  # fmt: skip
        self._first_row[:] = self._mate[:] = -1
        if fault != checks.OK:
            raise PlacementError(complaint(fault, where, placement, self.jobs, self.cluster, book.free))
        refuse_repairs(placement, book.held, self.jobs)

    def _set(self, number: int, placement: Placement) -> list[Events]:
        """Bring about the gang of one job; return what is to be told at once."""
        mine = placement.job == number
        phase = self._ledger.belief["phase"][number]
        if not mine.any():
            if phase != HOLDING:
                return []
            self._happened.let_go(number)
            self._deployments[number].want(None)
            return [
                row(Kind.PREEMPTED, job=number, value=self._happened.steps[number], speed=0.0, cause=Cause.PREEMPTED)
            ]
        columns = {name: getattr(placement, name)[mine] for name in ("role", "group", "count")}
        place = place_of(self.cluster, **columns)
        sizes = {name: column[mine] for name in ("cpus", "memory_gb") if len(column := getattr(placement, name))}
        amounts = given(self.cluster, **columns, **(_AS_DECLARED | sizes))
        stays = phase == HOLDING and place == self._places.get(number)
        if stays and amounts == self._happened.amounts.get(number, []):
            return []
        partner = -1
        if len(placement.partner):
            partner = int(placement.partner[placement.set_jobs == number][0])
        each = {"role": columns["role"], "group": columns["group"], "value": columns["count"], **sizes}
        rows = [
            row(Kind.PLACED, job=number, partner=partner, **dict(zip(each, values, strict=True)))
            for values in zip(*(column.tolist() for column in each.values()), strict=True)
        ]
        if number in self._happened.done_early:  # it came to its end while it was told to stop
            steps = self._happened.done_early.pop(number)
            return [*rows, row(Kind.COMPLETED, job=number, value=steps, speed=0.0)]
        self._places[number], self._happened.amounts[number] = place, amounts
        if stays:
            self._happened.resizing.add(number)
        beside = f"job-{partner}" if partner >= 0 else None
        self._deployments[number].want(place, beside=beside, amounts=amounts)
        return rows

    def _repair(self, repairs: Repairs) -> list[Events]:
        """Let tasks be replaced and blocks be spread anew, once the processes of their jobs are in place."""
        for job in np.unique(repairs["job"]).tolist():
            mine = repairs[repairs["job"] == job]
            tasks = [(int(one["role"]), int(one["task"])) for one in mine[mine["kind"] == Repair.REPLACE]]
            balance = bool((mine["kind"] == Repair.BALANCE).any())
            self._deployments[job].repair(self._happened.rows_of(job), tasks, balance=balance)
        return [repaired(repairs, time_s=np.nan)]

    # --- what happened

    def _heard(self, job: int, told: JobUpdate) -> None:
        self._inbox.put(InboxItem(self.now_s, told=told, job=job))

    def _hear_of(self, number: int) -> Callable[[dict[str, Any]], None]:
        """Return who hears all events of a job: whoever measures, if anybody does."""
        return (lambda _: None) if self._measuring is None else partial(self._measuring.note, number)

    def _measured(self, rows: Events) -> None:
        self._inbox.put(InboxItem(self.now_s, rows=rows))

    def _host_changed(self, host: str, up: bool, why: str = "") -> None:
        self._inbox.put(InboxItem(self.now_s, host=host, up=up, why=why))

    def _next_arrival_s(self) -> float:
        return float(self.jobs.arrival_s[self._n_arrived]) if self._n_arrived < len(self.jobs) else np.inf

    def _due(self) -> list[Events]:
        """Return the jobs that have arrived by now, and the hosts that take jobs again."""
        rows = self._happened.due()
        while self._next_arrival_s() <= self.now_s:
            rows.append(row(Kind.ARRIVED, job=self._n_arrived, time_s=self.now_s))
            self._n_arrived += 1
        return rows

    def _told(self, rows: list[Events]) -> Events:
        """Fold what happened into what is known here, and return it in order of time."""
        if not rows:
            return NO_EVENTS
        batch = joined(rows)
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

    def go_on(self, history: Events, memory: SavedState) -> None:
        """Take over a run of another process: its events so far are the first that `advance` returns.

        Where that process ended the run on the hosts, jobs that were training go on from their newest checkpoints.
        """
        self.dropped.update(memory.dropped)
        self._ledger.fold(history)
        last_s = self._told_s = float(history["time_s"][-1]) if len(history) else 0.0
        self._n_arrived = int(np.count_nonzero(history["kind"] == Kind.ARRIVED))
        self._happened.steps[:] = self._ledger.belief["steps"]
        for deployment in self._deployments:
            deployment.progress.saved = int(memory.saved.get(str(deployment.number), 0))
        holding = np.flatnonzero(self._ledger.belief["phase"] == HOLDING).tolist()
        if memory.ended:
            self._zero_s, self._began_at = time.monotonic() - last_s, wall_s() - last_s  # nobody worked meanwhile
            self._history = joined([history, *self._interrupted(holding, memory)])
        else:
            self._zero_s = time.monotonic() - max(wall_s() - self._began_at, last_s)
            self._history = history
            for job in holding:
                self._adopt(job, memory)
        for name, up in zip(self.cluster.machines, self._ledger.up.tolist(), strict=True):
            if not up:
                self._happened.out.add(name)
            if not up and self.hosts.up[name]:
                self._host_changed(name, True)
        for deployment in self._deployments:
            deployment.doubt(self.hosts.up)
        self._remember()

    def _adopt(self, job: int, memory: SavedState) -> None:
        """Go on with a job that had tasks when the other process came to its end."""
        number = np.array([job], np.int32)
        _, role, group, count = self._ledger.book.of(number)
        cpus, memory_gb = self._ledger.book.amounts(number)
        place = place_of(self.cluster, role=role, group=group, count=count)
        amounts = given(self.cluster, role=role, group=group, count=count, cpus=cpus, memory_gb=memory_gb)
        self._places[job], self._happened.amounts[job] = place, amounts
        if np.isfinite(self._ledger.belief["first_start_s"][job]):
            self._training.add(job)
        if home := memory.homes.get(str(job)):
            was = {site: (w, s) for site, (w, s) in memory.places.get(str(job), {}).items()}
            self._deployments[job].adopt(home, was or place, amounts=amounts)
        self._deployments[job].want(place, amounts=amounts)

    def _interrupted(self, holding: list[int], memory: SavedState) -> list[Events]:
        """End what may be left of a run under its earlier name, and bring the checkpoints of its jobs here."""
        self.hosts.end(memory.run)
        rows = []
        for job in holding:
            deployment, home = self._deployments[job], memory.homes.get(str(job), "")
            why = "it did not train yet" if not home else f"host {home} cannot be reached"
            if self.hosts.up.get(home):
                why = deployment.fetch_from(home, run=memory.run)
            kept = deployment.progress.saved
            told = f"from its newest checkpoint, step {kept} or later" if kept or not why else "from its beginning"
            self._note(f"job {self.jobs.id[job]} was stopped and goes on {told}{f' ({why})' if why else ''}")
            columns = {"value": float(kept), "speed": 0.0, "time_s": self._told_s, "cause": Cause.KILLED}
            rows.append(row(Kind.FAILED, job=job, **columns))
        self._ledger.fold(joined(rows))
        return rows

    def _remember(self, *, ended: bool = False) -> None:
        """Write down what a process after this one must know to attach."""
        SavedState(
            run=self.run, inventory=str(self.inventory.path.absolute()), began_at=self._began_at,
            training=self.training.to_json(), lease_s=self.hosts.lease_s, ended=ended, dropped=self.dropped,
            homes={str(d.number): d.home for d in self._deployments if d.home},
            places={str(job): {site: list(c) for site, c in place.items()} for job, place in self._places.items()},
            saved={str(d.number): float(d.progress.saved) for d in self._deployments if d.progress.saved},
        ).write(self.folder)  # fmt: skip


def _refuse_name(run: str) -> None:
    try:
        check_name(run, "run")
    except Refusal as error:
        raise InputError(f"a run's name: {error}.") from None

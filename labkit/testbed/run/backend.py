"""The backend over SSH: starts and moves processes on hosts, turns reports into events, and saves what it must know."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np

from labkit.core.below import Below, read_plain
from labkit.core.book import NO_AMOUNTS
from labkit.core.complaints import PlacementChecks
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import NEWS, NO_EVENTS, Cause, Events, Kind, asides, joined, repaired
from labkit.core.jobs import Jobs
from labkit.core.ledger import DONE, HOLDING, Ledger
from labkit.core.placement import Placement, Repair, Repairs
from labkit.elastic.protocol.messages.clients import MemberStatus
from labkit.system.printing import printable
from labkit.testbed.agent.messages import Refusal, YardstickReading, check_name
from labkit.testbed.inventory import Inventory
from labkit.testbed.run.agents import AgentPool, RunFence
from labkit.testbed.run.events import Inbox, InboxItem, RunEvents, RunMeasuring
from labkit.testbed.run.job_events import REPORT_S, JobUpdate
from labkit.testbed.run.remote_job import RemoteJob
from labkit.testbed.run.retries import Retries
from labkit.testbed.run.session import TestbedSession
from labkit.testbed.run.tasks import at, row, task_resources, wall_s
from labkit.testbed.run.training import TrainingTable, place_of

if TYPE_CHECKING:
    from pydantic import ConfigDict

STATE: Final = "testbed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """State of a run on machines, written at every decision."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "ignore"}

    run: str
    """Its name on the hosts."""
    inventory: str
    """Path of the inventory's file."""
    began_at: float
    """When it began, in seconds since 1970."""
    training: dict[str, Any]
    """See `labkit.testbed.run.training.TrainingTable`."""
    lease_s: float = 600.0
    """Seconds a host keeps the run alive without a heartbeat from this process."""
    homes: dict[str, str] = field(default_factory=dict)
    """Job that runs -> host of its controller."""
    places: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Job -> device group -> workers and PSs."""
    saved: dict[str, float] = field(default_factory=dict)
    """Job -> updates that a checkpoint keeps."""
    ended: bool = False
    """Whether its processes on hosts were ended: a continued run has another name there."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Id of each job that was given up -> why."""
    fence: str = ""
    """Its first name on the hosts, by which their agents know which process drives it; empty: `run`."""
    generation: int = 0
    """Of the process that wrote this: that of who takes the run over is higher."""

    def write(self, folder: Path) -> None:
        """Write it into the folder of a run, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = f".{STATE}"
        with Below(folder) as below:
            below.remove(partial)
            with below.file(partial, mode=0o644) as file:
                file.write(json.dumps(asdict(self)).encode())
            below.rename(partial, to=STATE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from the folder of a run; InputError if it is not there, or damaged."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(read_plain(folder / STATE))
        except FileNotFoundError:
            raise InputError(
                f"run '{folder.name}' did not run on a testbed, or was cut off before anything began there: it has no "
                f"{STATE}."
            ) from None
        except ValidationError as error:
            fault = error.errors()[0]
            raise InputError(
                f"{folder / STATE} is damaged ({'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}); the "
                "run cannot continue. Its record can still be read: labkit report."
            ) from None


__all__ = ["NOTES", "STATE", "SshBackend"]
NOTES: Final = "notes.txt"
_AS_DECLARED: Final = {"cpus": NO_AMOUNTS, "memory_gb": NO_AMOUNTS}


class RunTakeover:
    """Takes over the jobs of a run of another process; `ledger`: after the events of the other process."""

    def __init__(
        self, jobs: Jobs, *, ledger: Ledger, run_events: RunEvents, hosts: AgentPool, note: Callable[[str], None]
    ) -> None:
        self._jobs, self._ledger, self._run_events, self._hosts, self._note = jobs, ledger, run_events, hosts, note

    def adopt(self, job: int, memory: SavedState) -> None:
        """Take over a job that had tasks when the other process ended."""
        run_events, cluster = self._run_events, self._run_events.cluster
        number = np.array([job], np.int32)
        _, role, group, count = self._ledger.book.of(number)
        cpus, memory_gb = self._ledger.book.amounts(number)
        place = place_of(cluster, role=role, group=group, count=count)
        amounts = task_resources(cluster, role=role, group=group, count=count, cpus=cpus, memory_gb=memory_gb)
        run_events.places[job], run_events.amounts[job] = place, amounts
        if np.isfinite(self._ledger.belief["first_start_s"][job]):
            run_events.training.add(job)
        if home := memory.homes.get(str(job)):
            was = {site: (w, s) for site, (w, s) in memory.places.get(str(job), {}).items()}
            run_events.deployments[job].adopt(home, was or place, amounts=amounts)
        run_events.deployments[job].set_target(place, amounts=amounts)

    def restart(self, holding: list[int], memory: SavedState, *, time_s: float) -> list[Events]:
        """End what is left of a run under its earlier name, and copy the checkpoints of its jobs here.

        Returns
        -------
        list of Events
            A FAILED row for each job in `holding`, at `time_s`, with the steps that its checkpoint keeps.
        """
        self._hosts.end(memory.run)
        rows = []
        for job in holding:
            deployment, home = self._run_events.deployments[job], memory.homes.get(str(job), "")
            why = "it did not train yet" if not home else f"host {home} cannot be reached"
            if self._hosts.up.get(home):
                why = deployment.fetch_from(home, run=memory.run)
            kept = deployment.progress.saved
            start = f"from its newest checkpoint, step {kept} or later" if kept or not why else "from its beginning"
            self._note(f"job {self._jobs.id[job]} was stopped and continues {start}{f' ({why})' if why else ''}")
            columns = {"value": float(kept), "speed": 0.0, "time_s": time_s, "cause": Cause.KILLED}
            rows.append(row(Kind.FAILED, job=job, **columns))
        self._ledger.fold(joined(rows))
        return rows


class SshBackend:
    """Jobs that train on machines over SSH.

    Events are what happened: tasks are placed once the decision is taken, a job starts once it trains. Between
    decisions the progress of each job is reported once a second, so `advance` may return without news. Raise InputError
    if a job cannot train, hosts cannot be used (all are named), or the run has no valid name.

    Attributes
    ----------
    live : bool
        True: `advance` may return without news.
    """

    live = True

    def __init__(
        self,
        jobs: Jobs,
        inventory: Inventory,
        *,
        run: str,  # name of the run on the hosts: letters, digits, `. _ -`
        folder: Path,  # folder of the run on this machine: the state that `attach` needs, and checkpoints
        training: TrainingTable | None = None,
        lease_s: float = 600.0,  # seconds a host keeps the run alive without a heartbeat from this process
        retries: Retries | None = None,  # limits for jobs that fail, and hosts that fail jobs
        began_at: float | None = None,  # when the run began, in seconds since 1970, if it continues an earlier one
        some: bool = False,  # start with the hosts that can be reached; the others join once they can
        fence: RunFence | None = None,  # the right to drive the run; by default that to begin one of this name
    ) -> None:
        _refuse_name(run)
        self._fence = fence or RunFence(run, run=folder.name)
        self.jobs, self.inventory, self.cluster = jobs, inventory, inventory.cluster()
        self.training = training or TrainingTable()
        self.run, self.folder = run, folder
        self.notes: list[str] = []  # problems on the way, in sentences
        self._inbox = Inbox()
        self._ledger = Ledger(jobs, self.cluster)
        none = np.full((2, len(jobs)), -1, np.int32)
        self._checks = PlacementChecks(jobs, self.cluster, first_row=none[0], mate=none[1])
        self._n_arrived = 0
        self._history, self._last_s = NO_EVENTS, 0.0
        self._began_at = wall_s() if began_at is None else began_at
        self._zero_s = time.monotonic()
        self._begun = began_at is not None
        self._session = TestbedSession(
            inventory, jobs=jobs, training=self.training, run=run, folder=folder / "checkpoints", lease_s=lease_s,
            changed=self._host_changed, some=some, fence=self._fence, on_reading=self._read,
        )  # fmt: skip
        self.hosts = self._session.hosts
        self._run_events = RunEvents(
            jobs, self.cluster, ledger=self._ledger, hosts=self.hosts, backups=self._session.backups,
            retries=retries or Retries(), now_s=lambda: self.now_s, note=self._note, remember=self._remember,
        )  # fmt: skip
        # `dropped`: id of each job that was given up -> why
        self._places, self.dropped = self._run_events.places, self._run_events.dropped
        self._note_start()
        every_s = self.training.measure_every_s
        self._measuring = (
            RunMeasuring(
                self.hosts, every_s=every_s, on_rows=self._measured, settled=lambda job: self._deployments[job].settled
            )
            if every_s
            else None
        )  # fmt: skip
        self._run_events.deployments = self._deployments = [self._deployment(number) for number in range(len(jobs))]

    def _note_start(self) -> None:
        """Report hosts that could not be reached, and remarks on the others."""
        for host, why in self.hosts.absent.items():
            self._host_changed(host, False, why)
        for note in self._session.notes:
            self._note(note)

    def _deployment(self, number: int) -> RemoteJob:
        on_event = {} if self._measuring is None else {"on_event": partial(self._measuring.note, number)}
        return self._session.deployment(number, on_update=self._put_update, **on_event)

    # --- the protocol of backends

    @property
    def now_s(self) -> float:
        """Seconds since the run began: since `advance` was first called, so pre-runs of schedulers do not count."""
        return time.monotonic() - self._zero_s if self._begun else 0.0

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        there = all(self.hosts.up.values()) and not self._run_events.aside
        quiet = not self._inbox and not self._ledger.n_holding and there
        return quiet and self._n_arrived == len(self.jobs)

    def apply(self, placement: Placement) -> Events:
        """Begin to carry out a decision: processes start, move and stop; `advance` returns the outcome.

        Raise PlacementError if it names an unknown job or overfills a device group; then nothing is changed.
        """
        self._refuse(placement)
        self._fence.refuse_lost()
        rows: list[Events] = [row(Kind.DECIDED, value=float(len(placement.set_jobs)))]
        for number in placement.set_jobs.tolist():
            rows += self._set(number, placement)
        rows += asides(placement, joined(rows), time_s=np.nan)
        events = self._folded(rows)
        if len(placement.repairs):
            events = joined([events, self._folded(self._repair(placement.repairs))])
        self._remember()
        return events

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Wait until `until_s`, until there is news, or for `REPORT_S` seconds; return the events."""
        if not self._begun:
            self._begun, self._zero_s, self._began_at = True, time.monotonic(), wall_s()
            self._remember()
        if len(self._history):
            history, self._history = self._history, NO_EVENTS
            return history
        rows: list[Events] = []
        tick_s = self.now_s + REPORT_S
        while True:
            self._fence.refuse_lost()
            rows += self._due()
            for item in self._inbox.take_all():
                rows += at(self._run_events.of(item), item.at_s)
            now_s = self.now_s
            if now_s >= min(until_s, tick_s) or (stop_at_event and any(row["kind"][0] in NEWS for row in rows)):
                return self._folded(rows)
            if self.idle and not np.isfinite(until_s):
                return self._folded(rows)
            self._inbox.wait(min([until_s, tick_s, self._next_arrival_s(), *self._run_events.aside.values()]) - now_s)

    @property
    def n_cold_starts(self) -> int:
        """Processes of jobs that were started on a host without a warm fork server."""
        return sum(each.n_cold for each in self._deployments)

    @property
    def taken_by(self) -> str:
        """Which process has taken the run over; empty: none."""
        return self._fence.taken_by

    def members(self, job: int) -> list[MemberStatus]:
        """Return the processes that train a job: name, role, site, pid, whether it has joined, and what it uses.

        Raise LabkitError if its home host cannot be reached.
        """
        return self._deployments[job].members()

    def close(self, *, end: bool = True) -> None:
        """Close the connections to the hosts; with `end`, end all processes of this run there, unless it is lost."""
        end = end and not self._fence.taken_by
        if end:
            self._remember(ended=True)
        if self._measuring is not None:
            self._measuring.close()
        self._session.close(end=end)

    def __enter__(self) -> SshBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- decisions

    def _refuse(self, placement: Placement) -> None:
        ledger, book = self._ledger, self._ledger.book
        if len(placement.declined):
            raise PlacementError(
                f"job {self.jobs.id[placement.declined[0]]} is declined, but on machines no job is given up by a "
                "decision; leave it waiting."
            )
        book.ensure(len(placement))
        self._checks.refuse(placement, book, phases=ledger.belief, over=DONE, up=ledger.up)
        self._checks.forget()

    def _set(self, number: int, placement: Placement) -> list[Events]:
        """Set the placement of one job; return the events that follow at once."""
        mine = placement.job == number
        phase = self._ledger.belief["phase"][number]
        if not mine.any():
            if phase != HOLDING:
                return []
            self._run_events.forget_tasks(number)
            self._deployments[number].set_target(None)
            return [
                row(Kind.PREEMPTED, job=number, value=self._run_events.steps[number], speed=0.0, cause=Cause.PREEMPTED)
            ]
        columns = {name: getattr(placement, name)[mine] for name in ("role", "group", "count")}
        place = place_of(self.cluster, **columns)
        sizes = {name: column[mine] for name in ("cpus", "memory_gb") if len(column := getattr(placement, name))}
        amounts = task_resources(self.cluster, **columns, **(_AS_DECLARED | sizes))
        stays = phase == HOLDING and place == self._places.get(number)
        if stays and amounts == self._run_events.amounts.get(number, []):
            return []
        partner = -1
        if len(placement.partner):
            partner = int(placement.partner[placement.set_jobs == number][0])
        each = {"role": columns["role"], "group": columns["group"], "value": columns["count"], **sizes}
        rows = [
            row(Kind.PLACED, job=number, partner=partner, **dict(zip(each, values, strict=True)))
            for values in zip(*(column.tolist() for column in each.values()), strict=True)
        ]
        if number in self._run_events.done_early:  # it was done before it stopped
            steps = self._run_events.done_early.pop(number)
            return [*rows, row(Kind.COMPLETED, job=number, value=steps, speed=0.0)]
        self._places[number], self._run_events.amounts[number] = place, amounts
        if stays:
            self._run_events.resizing.add(number)
        beside = f"job-{partner}" if partner >= 0 else None
        self._deployments[number].set_target(place, beside=beside, amounts=amounts)
        return rows

    def _repair(self, repairs: Repairs) -> list[Events]:
        """Replace tasks and rebalance blocks, once the processes of their jobs are in place."""
        for job in np.unique(repairs["job"]).tolist():
            mine = repairs[repairs["job"] == job]
            tasks = [(int(one["role"]), int(one["task"])) for one in mine[mine["kind"] == Repair.REPLACE]]
            balance = bool((mine["kind"] == Repair.BALANCE).any())
            self._deployments[job].repair(self._run_events.rows_of(job), tasks, balance=balance)
        return [repaired(repairs, time_s=np.nan)]

    # --- what happened

    def _put_update(self, job: int, update: JobUpdate) -> None:
        self._inbox.put(InboxItem(self.now_s, update=update, job=job))

    def _measured(self, rows: Events) -> None:
        self._inbox.put(InboxItem(self.now_s, rows=rows))

    def _read(self, host: str, reading: YardstickReading) -> None:
        machine = self.cluster.machines.index(host)
        rows = row(Kind.YARDSTICK, machine=machine, value=reading.work_s, cpus=reading.busy_cores)
        self._inbox.put(InboxItem(self.now_s, host=host, rows=rows))

    def _host_changed(self, host: str, up: bool, why: str = "") -> None:
        self._inbox.put(InboxItem(self.now_s, host=host, up=up, why=why))

    def _next_arrival_s(self) -> float:
        return float(self.jobs.arrival_s[self._n_arrived]) if self._n_arrived < len(self.jobs) else np.inf

    def _due(self) -> list[Events]:
        """Return rows for the jobs that have arrived by now, and the hosts that accept jobs again."""
        rows = self._run_events.due()
        while self._next_arrival_s() <= self.now_s:
            rows.append(row(Kind.ARRIVED, job=self._n_arrived, time_s=self.now_s))
            self._n_arrived += 1
        return rows

    def _folded(self, rows: list[Events]) -> Events:
        """Fold events into the ledger, and return them in order of time."""
        if not rows:
            return NO_EVENTS
        batch = joined(rows)
        now_s = self.now_s
        batch["time_s"] = np.clip(np.where(np.isnan(batch["time_s"]), now_s, batch["time_s"]), self._last_s, now_s)
        batch = batch[np.argsort(batch["time_s"], kind="stable")]
        self._last_s = float(batch["time_s"][-1])
        self._ledger.fold(batch)
        return batch

    def _note(self, what: str) -> None:
        """Add a sentence to `notes` and to the run's notes file."""
        line = f"{self.now_s:.1f} s: {what}"
        self.notes.append(line)
        self.folder.mkdir(parents=True, exist_ok=True)
        with Below(self.folder) as below, below.append(NOTES) as file:
            file.write(f"{printable(line)}\n".encode(errors="replace"))

    # --- going on after this process

    def go_on(self, history: Events, memory: SavedState) -> None:
        """Take over a run of another process: `advance` returns its events first.

        If that process ended the run on the hosts, jobs that were training restart from their newest checkpoints.
        """
        self.dropped.update(memory.dropped)
        self._ledger.fold(history)
        last_s = self._last_s = float(history["time_s"][-1]) if len(history) else 0.0
        self._n_arrived = int(np.count_nonzero(history["kind"] == Kind.ARRIVED))
        self._run_events.steps[:] = self._ledger.belief["steps"]
        for deployment in self._deployments:
            deployment.progress.saved = int(memory.saved.get(str(deployment.number), 0))
        holding = np.flatnonzero(self._ledger.belief["phase"] == HOLDING).tolist()
        takeover = RunTakeover(
            self.jobs, ledger=self._ledger, run_events=self._run_events, hosts=self.hosts, note=self._note
        )  # fmt: skip
        if memory.ended:
            self._zero_s, self._began_at = (
                time.monotonic() - last_s,
                wall_s() - last_s,
            )  # the time between counts for nothing
            self._history = joined([history, *takeover.restart(holding, memory, time_s=last_s)])
        else:
            self._zero_s = time.monotonic() - max(wall_s() - self._began_at, last_s)
            self._history = history
            for job in holding:
                takeover.adopt(job, memory)
        for name, up in zip(self.cluster.machines, self._ledger.up.tolist(), strict=True):
            if not up:
                self._run_events.out.add(name)
            if not up and self.hosts.up[name]:
                self._host_changed(name, True)
        for deployment in self._deployments:
            deployment.mark_stale(self.hosts.up)
        self._remember()

    def _remember(self, *, ended: bool = False) -> None:
        """Write the state that a later process needs to attach."""
        SavedState(
            run=self.run, inventory=str(self.inventory.path.absolute()), began_at=self._began_at,
            training=self.training.to_json(), lease_s=self.hosts.lease_s, ended=ended, dropped=self.dropped,
            homes={str(d.number): d.home for d in self._deployments if d.home},
            places={str(job): {site: list(c) for site, c in place.items()} for job, place in self._places.items()},
            saved={str(d.number): float(d.progress.saved) for d in self._deployments if d.progress.saved},
            fence=self._fence.name, generation=self._fence.generation,
        ).write(self.folder)  # fmt: skip


def _refuse_name(run: str) -> None:
    try:
        check_name(run, "run")
    except Refusal as error:
        raise InputError(f"a run's name: {error}.") from None

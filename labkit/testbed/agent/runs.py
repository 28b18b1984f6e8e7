"""The runs of a host: what is started, adopted and over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from labkit.system.proc import stat
from labkit.testbed.agent.ending import TaskReaper
from labkit.testbed.agent.forks import fork
from labkit.testbed.agent.keys import forget_keys
from labkit.testbed.agent.logs import bound_log
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.places import LABEL, RESULT, RUNS, TASK_SOCKET, inside, put_file
from labkit.testbed.agent.processes import Key, TaskProcesses
from labkit.testbed.agent.records import AgentRunRecord, Phase, TaskRecord, boot_id
from labkit.testbed.agent.run import OVER, AgentRun
from labkit.testbed.agent.shapes import ListedRun, ListedTask
from labkit.testbed.agent.spawn import SpawnRequest, environment, spawn
from labkit.testbed.agent.wire import Refusal, now_s, wall_s

LEASE_S: Final = 600.0
STOPPED, LEASE_OVER, RESTARTED = "stopped", "lease", "host restarted"
REOPENED: Final = (LEASE_OVER, RESTARTED)
"""A run that ended by itself is reopened when a task is started: its owner or the host was away."""
AWOKEN_S: Final = 60.0
"""Seconds that a lease has left at least after the host was suspended: its client may have been suspended too."""


@dataclass(frozen=True, slots=True)
class File:
    """A small file to write into the folder of a task."""

    names: list[str]
    data: bytes = field(repr=False)
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A request to start a task."""

    task: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cores: list[int] | None = None
    gpus: list[str] | None = None
    files: Sequence[File] = ()
    nice: int = 0
    lease_s: float = LEASE_S


class AgentRuns:
    """All runs in the folder of an agent.

    Parameters
    ----------
    folder : Path
        Of the agent.
    loop : Loop
        Calls when a process has ended.
    log : callable
        Takes a line for the agent's log.
    """

    def __init__(self, folder: Path, *, loop: Loop, log: Callable[[str], None]) -> None:
        self.folder, self.log = folder / RUNS, log
        self._root = str(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.boot = boot_id()
        self.processes = TaskProcesses(self._root)
        self.ender = TaskReaper(loop, processes=self.processes, ended=self.ended, log=log)
        self.all: dict[str, AgentRun] = {}

    def __iter__(self) -> Iterator[AgentRun]:
        return iter(list(self.all.values()))

    def get(self, run: str) -> AgentRun:
        """Return the run of that name."""
        if run not in self.all:
            raise Refusal("unknown_run", f"there is no run {run!r} on this host")
        return self.all[run]

    @property
    def busy(self) -> bool:
        """Whether any task runs."""
        return any(run.record.running for run in self)

    def started(self, key: Key) -> float:
        """Return when a task was started, in seconds since the start of the host."""
        return self.all[key.run].record.tasks[key.task].started_s

    # --- start

    def start(self, run: str, request: TaskRequest) -> TaskRecord:
        """Start a task; the run is made if there is none of that name.

        Raises
        ------
        Refusal
            If it runs already, the run was stopped, or it cannot be started.
        """
        here = self._open(run, request.lease_s)
        before = here.record.tasks.get(request.task)
        if before is not None and before.phase != Phase.ENDED:
            raise Refusal("exists", f"task {request.task!r} of run {run!r} runs already, as process {before.pid}")
        until_s = max(here.record.until_s, now_s() + request.lease_s)
        here.record.until_s, here.record.lease_s = until_s, request.lease_s
        task = TaskRecord(request.task, os.urandom(8).hex(), list(request.argv), request.cores, request.gpus)
        here.record.tasks[request.task] = task
        if not here.write():
            self._forget(here, task, before)
            raise Refusal("disk", f"the state could not be written to {self.folder}: is the disk full? Nothing started")
        try:
            self._spawn(here, task, request)
        except (Refusal, OSError) as error:
            raise self._failed(here, task, error) from None
        return task

    def _open(self, run: str, lease_s: float) -> AgentRun:
        if run in self.all:
            here = self.all[run]
            if here.record.over in REOPENED:
                self._reopen(here, lease_s)
            elif here.record.over:
                raise Refusal("over", f"run {run!r} is over ({here.record.over}); take another name")
            return here
        folder = self.folder / run
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Refusal("foreign", f"{folder} is there without {LABEL}: not made by labkit, or damaged") from None
        except OSError as error:
            raise Refusal("disk", f"{folder} cannot be made: {error.strerror}") from None
        return self._new(run, folder, lease_s)

    def _new(self, run: str, folder: Path, lease_s: float) -> AgentRun:
        record = AgentRunRecord(run, self.boot, lease_s, now_s() + lease_s)
        try:
            record.write(folder)
            here = AgentRun(record, folder, log=self.log)
        except OSError as error:
            with contextlib.suppress(OSError):
                (folder / LABEL).unlink(missing_ok=True)
                folder.rmdir()
            raise Refusal("disk", f"{folder} cannot be written: {error.strerror}. Nothing started") from None
        self.all[run] = here
        here.record_event("opened", lease_s=lease_s)
        return here

    def _reopen(self, here: AgentRun, lease_s: float) -> None:
        """Reopen a run that ended by itself; tasks of it that are being ended still end."""
        record, why = here.record, here.record.over
        record.over, record.over_s, record.boot = "", None, self.boot
        record.lease_s, record.until_s = lease_s, now_s() + lease_s
        here.record_event("reopened", why=why, lease_s=lease_s)

    @staticmethod
    def _forget(here: AgentRun, task: TaskRecord, before: TaskRecord | None) -> None:
        if before is None:
            del here.record.tasks[task.name]
        else:
            here.record.tasks[task.name] = before

    def _spawn(self, here: AgentRun, task: TaskRecord, request: TaskRequest) -> None:
        with inside(here.folder, [task.name], make=True):
            folder = here.folder / task.name
        for stale in (TASK_SOCKET, RESULT):
            (folder / stale).unlink(missing_ok=True)
        for file in request.files:
            put_file(folder, file.names, file.data, mode=file.mode)
        label = {"LABKIT_FOLDER": self._root, "LABKIT_RUN": here.record.run, "LABKIT_TASK": task.name}
        env = environment({**label, "LABKIT_START": task.token}, request.env, request.gpus)
        order = SpawnRequest(folder, request.argv, env, request.cores, request.nice)
        forked = fork(order, log=self.log)
        task.pid, task.server = (spawn(order), "") if forked is None else (forked.pid, str(forked.server))
        found = stat(task.pid)
        task.start = (found.start if found else 0) if forked is None else forked.start
        task.phase, task.started_s = Phase.RUNNING, round(now_s(), 3)
        here.record_event("started", task=task.name, pid=task.pid, cores=task.cores, gpus=task.gpus)
        self.ender.follow(Key(here.record.run, task.name), task.first_process, child=forked is None, forked=forked)

    def _failed(self, here: AgentRun, task: TaskRecord, error: Refusal | OSError) -> Refusal:
        refusal = error if isinstance(error, Refusal) else Refusal("cannot_start", f"task {task.name!r}: {error}")
        task.phase, task.how, task.ended_s = Phase.ENDED, refusal.message, wall_s()
        here.record_event("failed", task=task.name, why=refusal.message)
        return refusal

    # --- end

    def stop(self, run: str, task: str | None, *, grace_s: float) -> list[Key]:
        """Begin to end a task, or a whole run, which is over then; return the tasks that still run."""
        here = self.get(run)
        names = [task] if task is not None else list(here.record.tasks)
        keys = [Key(run, name) for name in names if here.task(name).phase != Phase.ENDED]
        if task is None:
            self.over(here, STOPPED)
        self._end(here, keys, grace_s)
        return keys

    def _end(self, here: AgentRun, keys: Sequence[Key], grace_s: float) -> None:
        for key in keys:
            here.record.tasks[key.task].phase = Phase.ENDING
        for key in keys:
            here.record_event("stopping", task=key.task, grace_s=grace_s)
        self.ender.end(keys, grace_s=grace_s)

    def over(self, here: AgentRun, why: str) -> None:
        """Note that a run is over: no task of it can start any more."""
        if not here.record.over:
            here.record.over, here.record.over_s = why, wall_s()
            here.write()
            self.close_if_done(here)

    def ended(self, key: Key, code: int | None, signal_name: str | None, how: str) -> None:
        """Note that no process of a task is left."""
        here = self.all[key.run]
        task = here.record.tasks[key.task]
        task.phase, task.ended_s = Phase.ENDED, wall_s()
        task.code, task.signal, task.how = code, signal_name, how
        bound_log(here.folder / task.name)
        here.record_event("ended", task=task.name, code=code, signal=signal_name, how=how)
        self.close_if_done(here)

    def close_if_done(self, here: AgentRun) -> None:
        """Write the last event of a run that is over and has no running task, and remove its keys."""
        if here.record.over and not here.record.running and here.events.last_kind != OVER:
            forget_keys(here.folder)
            here.record_event(OVER, why=here.record.over)
            here.events.close()

    # --- leases

    def renew(self, run: str, lease_s: float) -> float:
        """Extend the lease of a run; return its end."""
        here = self.get(run)
        if here.record.over:
            raise Refusal("over", f"run {run!r} is over ({here.record.over})")
        here.record.until_s, here.record.lease_s = now_s() + lease_s, lease_s
        here.write()
        return here.record.until_s

    def check_leases(self, *, slept_s: float, grace_s: float) -> None:
        """End runs whose lease is over; after the host was suspended, extend leases a little."""
        for here in self:
            record = here.record
            if record.over:
                continue
            if slept_s > 1.0:
                record.until_s = max(record.until_s, now_s() + AWOKEN_S)
            if now_s() >= record.until_s:
                here.record_event("lease_over", lease_s=record.lease_s)
                keys = [Key(record.run, task.name) for task in record.running]
                self.over(here, LEASE_OVER)
                self._end(here, keys, grace_s)

    # --- lists

    def listed(self) -> list[ListedRun]:
        """Return all runs, for a reply."""
        return [self.shown(here) for here in self]

    def shown(self, here: AgentRun) -> ListedRun:
        """Return a run, for a reply."""
        record = here.record
        left_s = 0.0 if record.over else round(record.until_s - now_s(), 3)
        tasks = {name: _shown(task) for name, task in record.tasks.items()}
        return ListedRun(
            run=record.run, over=record.over, over_s=record.over_s, lease_left_s=left_s, last_event=here.events.n,
            tasks=tasks,
        )  # fmt: skip


def _shown(task: TaskRecord) -> ListedTask:
    return ListedTask(**{each.name: getattr(task, each.name) for each in fields(ListedTask)})

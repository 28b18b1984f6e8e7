"""The runs of a host: their tasks are started, adopted from an earlier agent, and ended.

A task that is a program of labkit is forked by the user's fork server, which shares imported pages with it. A server
that does not run yet is started in the background; the task is then started as a plain process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.elastic.forkserver.protocol import ROOT, ForkError
from labkit.system.proc import Identity, alive, stat
from labkit.testbed.agent.folder_layout import (
    BOOT,
    EVENTS,
    LABEL,
    LOG,
    RESULT,
    RUNS,
    TASK_SOCKET,
    AgentRunRecord,
    Phase,
    TaskRecord,
    boot_id,
    forget_keys,
    inside,
    put_file,
)
from labkit.testbed.agent.log_files import EventFile, bound_log
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.messages import ListedRun, ListedTask, Refusal, now_s, wall_s
from labkit.testbed.agent.processes import Key, TaskProcesses, TaskReaper

BED: Final = ("LABKIT_BED", "LABKIT_BED_HOST", BOOT)
"""Environment variables of a laptop testbed: processes with them end with it."""
BASE: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR",
    "LD_LIBRARY_PATH", *BED,
)  # fmt: skip
"""Variables that a task inherits; LD_LIBRARY_PATH leads to the NVIDIA driver on some hosts."""
TO_LOG: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
"""Flags that open a task's log, a file of mode 0600."""
RESET: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PATIENCE_S: Final = 2.0
"""Seconds to wait for a running server; the agent serves no request meanwhile."""
UMASK: Final = 0o077
"""Of the agent, and so of its tasks."""
OVER: Final = "over"
"""Kind of the last event of a run."""
LEASE_S: Final = 600.0
STOPPED, LEASE_OVER, RESTARTED = "stopped", "lease", "host restarted"
REOPENED: Final = (LEASE_OVER, RESTARTED)
"""A run that ended by itself is reopened when a task is started: its owner or the host was away."""
AWOKEN_S: Final = 60.0
"""Seconds that a lease has left at least after the host was suspended: its client may have been suspended too."""
NEVER: Final = "the agent died while it started it"


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A process to start."""

    folder: Path
    argv: Sequence[str]
    env: Mapping[str, str]
    cores: Sequence[int] | None = None
    nice: int = 0


def environment(label: Mapping[str, str], requested: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Return the environment of a task: label, inherited variables, GPUs, and the requested variables."""
    base = {name: os.environ[name] for name in BASE if name in os.environ}
    seen = {} if gpus is None else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return {**label, **base, **seen, **requested, **label}


def spawn(order: SpawnRequest) -> int:
    """Start a process, and return its number once it executes the program.

    Raise Refusal if it cannot be started; nothing is left of it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(order, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        fault = pipe.read().decode()
    if fault:
        os.waitpid(pid, 0)
        raise Refusal("cannot_start", f"{order.argv[0]!r} cannot be started: {fault}")
    return pid


def _become(order: SpawnRequest, writing: int) -> NoReturn:
    """Become the requested program in the forked child; on failure report why."""
    try:
        os.setsid()
        os.chdir(order.folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(LOG, TO_LOG, 0o600)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        if order.cores is not None:
            os.sched_setaffinity(0, order.cores)
        os.nice(order.nice)
        os.execvpe(order.argv[0], list(order.argv), dict(order.env))
    except BaseException as error:
        with contextlib.suppress(BaseException):
            why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            os.write(writing, why.encode()[:4096] or b"?")
    os._exit(127)


def fork(order: SpawnRequest, *, log: Callable[[str], None]) -> forks.ForkedProcess | None:
    """Fork a task; None if it is to be started as a plain process: it is no program of this labkit, or has no server.

    `log`: takes a line for the agent's log: why a program of this labkit is not forked.
    """
    if not _is_ours(order):
        return None
    allowed = sorted(os.sched_getaffinity(0) if order.cores is None else order.cores)
    request = fork_protocol.ForkOrder(
        list(order.argv), dict(order.env), str(order.folder), allowed, order.nice, umask=UMASK
    )  # fmt: skip
    try:
        with _files(order.folder) as files:
            return forks.fork(request, files, wait=False, patience_s=PATIENCE_S, tell=log)
    except (ForkError, OSError):  # the plain start has a better message
        return None


def _is_ours(order: SpawnRequest) -> bool:
    """Return whether a task is a program of the same labkit and the same Python as the agent."""
    words = list(order.argv[:3])
    if len(words) < 3 or words[:2] != [sys.executable, "-m"] or words[2] not in fork_protocol.MODULES:
        return False
    path = order.env.get("PYTHONPATH")
    return path == os.environ.get("PYTHONPATH") or (path or "").split(os.pathsep)[0] == str(ROOT)


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[tuple[int, int, int]]:
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        log = os.open(folder / LOG, TO_LOG, 0o600)
        try:
            yield nothing, log, log
        finally:
            os.close(log)
    finally:
        os.close(nothing)


def watch(server: str, identity: Identity) -> forks.ForkedProcess | None:
    """Return a task that an earlier agent had forked; None if its end cannot be known."""
    return forks.watched(Path(server), identity.pid, identity.start) if server else None


class AgentRun:
    """A run."""

    def __init__(self, record: AgentRunRecord, folder: Path, *, log: Callable[[str], None]) -> None:
        self.record, self.folder, self._log = record, folder, log
        self.listeners: set[Callable[[], None]] = set()
        self.events = EventFile(folder / EVENTS, written=self._written)

    @property
    def complete(self) -> bool:
        """Whether no event will follow."""
        return self.events.last_kind == OVER and not self.events.waiting

    def task(self, name: str) -> TaskRecord:
        """Return the task of that name, also one that has ended."""
        if name not in self.record.tasks:
            known = ", ".join(sorted(self.record.tasks)) or "none"
            raise Refusal("unknown_task", f"run {self.record.run!r} has no task {name!r} here; it has: {known}")
        return self.record.tasks[name]

    def _written(self) -> None:
        for listener in list(self.listeners):
            listener()

    def write(self) -> bool:
        """Write the record; return False if the disk refuses it, which undoes nothing."""
        try:
            self.record.write(self.folder)
        except OSError as error:
            self._log(f"run {self.record.run}: the state could not be written: {error.strerror}")
            return False
        return True

    def record_event(self, kind: str, **values: Any) -> None:
        """Write the record, and an event; if the agent dies between the two, the next agent writes the event."""
        self.record.saying = {"n": self.events.n + 1, "kind": kind, "told": values}
        self.write()
        self.events.add(kind, **values)

    def catch_up(self) -> None:
        """Write the event that an earlier agent could not write any more."""
        saying = self.record.saying
        if saying is not None and saying["n"] > self.events.n:
            self.events.add(saying["kind"], **saying["told"])


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
    """All runs in the folder of an agent."""

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

        Raise Refusal if it runs already, the run was stopped, or it cannot be started.
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


def adopt(runs: AgentRuns) -> None:
    """Read all records, and follow the tasks that run according to them."""
    for folder in sorted(runs.folder.iterdir()):
        record = AgentRunRecord.read(folder) if folder.is_dir() and not folder.is_symlink() else None
        if record is None:
            runs.log(f"{folder.name!r} bears no label; left alone")
            continue
        here = AgentRun(record, folder, log=runs.log)
        here.catch_up()
        runs.all[record.run] = here
        _adopt_run(runs, here)
    _end_orphans(runs)


def _adopt_run(runs: AgentRuns, here: AgentRun) -> None:
    record = here.record
    restarted = record.boot != runs.boot
    for task in record.running:
        if restarted:
            runs.ended(Key(record.run, task.name), None, None, "unknown: the host was restarted")
        else:
            _adopt_task(runs, here, task)
    if restarted and not record.over:
        record.boot, record.until_s = runs.boot, now_s()
        runs.over(here, RESTARTED)
    runs.close_if_done(here)  # its agent may have died before it could


def _adopt_task(runs: AgentRuns, here: AgentRun, task: TaskRecord) -> None:
    key = Key(here.record.run, task.name)
    if task.phase == Phase.STARTING and not _found(runs, here, task):
        return
    child = _is_child(task.pid)
    if not child:
        here.record_event("adopted", task=task.name, pid=task.pid, alive=alive(task.first_process))
    runs.ender.follow(
        key, task.first_process, child=child, forked=None if child else watch(task.server, task.first_process)
    )
    if task.phase == Phase.ENDING:
        runs.ender.end([key], grace_s=0.0)


def _found(runs: AgentRuns, here: AgentRun, task: TaskRecord) -> bool:
    """Find a task whose agent died before it wrote the process number; False if it was never started."""
    found = runs.processes.leader(Key(here.record.run, task.name), task.token)
    if found is None:
        task.phase, task.how, task.ended_s = Phase.ENDED, NEVER, wall_s()
        here.record_event("failed", task=task.name, why=NEVER)
        return False
    task.phase, task.pid, task.start = Phase.RUNNING, found.pid, found.start
    here.record_event("started", task=task.name, pid=task.pid, cores=task.cores, gpus=task.gpus)
    return True


def _is_child(pid: int) -> bool:
    """Return whether this process is its parent: then it was exec'ed by the earlier agent, and gets the exit code."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _end_orphans(runs: AgentRuns) -> None:
    known = {Key(here.record.run, task.name) for here in runs for task in here.record.running}
    orphans = [key for key in runs.processes.find({}) if key not in known]
    for key in orphans:
        runs.log(f"task {key.task} of run {key.run} has no record; ended")
    runs.ender.end_unknown(orphans)

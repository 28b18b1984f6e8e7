"""What the events of one job change: its state here, its checkpoint on this machine, and reports of its progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.process import causes
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import AgentGone, AgentRefused, AgentTimeout, HostError
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_events import (
    DroppedEvent,
    JobEvent,
    JobResult,
    JobUpdate,
    Progress,
    SavedEvent,
    ScaledEvent,
    StartedEvent,
    event_of,
    result_of,
)
from labkit.testbed.run.job_launcher import NOTHING_THERE, GpuClaims, JobLauncher
from labkit.testbed.run.job_messages import StatusOrder, message_of
from labkit.testbed.run.tasks import TaskNumbers, TaskResources

EVENTS: Final = "job/events.jsonl"
LOG_TAIL: Final = 500
"""Bytes of the log that stand for the failure of a job without a result."""
START_S: Final = 120.0
"""Seconds that the process of a job may take until it accepts orders."""
RECONNECT_S: Final = 0.5
"""Seconds between two attempts to follow the events of a job."""


@dataclass(slots=True)
class JobScalings:
    """Placements of one job; not locked."""

    target: JobPlacement | None = None
    """Where its tasks are to sit; None: it is to stop."""
    requested: JobPlacement | None = None
    """Placement that its process was sent last; None: it does not run."""
    current: JobPlacement | None = None
    """Placement after the last scaling that is complete."""
    _under_way: dict[int, JobPlacement] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether the job runs at its target, and no scaling is under way."""
        return self.requested is not None and self.target == self.requested and not self._under_way

    def occupied(self) -> list[JobPlacement]:
        """Return the placements that may have processes now."""
        return [self.current or {}, *self._under_way.values()]

    def note_start(self, place: JobPlacement) -> None:
        """Note that the job starts with a placement."""
        self.requested, self.current = dict(place), dict(place)
        self._under_way.clear()

    def note_begin(self, scaling: int, place: JobPlacement) -> None:
        """Note that the job's process has begun a scaling, and its number."""
        self.requested = self._under_way[scaling] = dict(place)

    def note_outcome(self, scaling: int, *, scaled: bool) -> None:
        """Note the end of a scaling.

        If it failed and no later one is under way, the job is where it was: a target that equals the failed placement
        is reset to that.
        """
        place = self._under_way.pop(scaling, None)
        if place is not None and scaled:
            self.current = place
        elif place is not None and place == self.requested and not self._under_way:
            self.target = self.current if self.target == self.requested else self.target
            self.requested = self.current

    def note_lost_host(self, host: str, rest: JobPlacement) -> None:
        """Note that the tasks of a host are gone; `rest` is the new target."""
        self.target = dict(rest)
        self.current = {site: n for site, n in (self.current or {}).items() if site.rpartition("/")[0] != host}

    def note_end(self, *, keep_target: bool = True) -> None:
        """Note that the job runs no more."""
        self.requested = None
        if not keep_target:
            self.target = None


@dataclass(slots=True)
class RemoteJobState:
    """State of one job; `change` is held to change it, and notified of changes."""

    home: str = ""
    """Host of its controller; empty while it does not run."""
    scalings: JobScalings = field(default_factory=JobScalings)
    """Target and placements of its tasks."""
    progress: Progress = field(default_factory=Progress)
    task_numbers: TaskNumbers = field(default_factory=TaskNumbers)
    """Which member is which task."""
    amounts: list[TaskResources] = field(default_factory=list)
    """Cores and memory that its tasks are to have."""
    limited: list[TaskResources] | None = field(default_factory=list)
    """Amounts that its process was sent last; None: some members may not have them."""
    generation: int = 0
    """Number of starts and ends so far; distinguishes events of an earlier start from those of the current one."""
    closed: bool = False
    """Whether no decision is carried out any more."""
    dead: bool = False
    """Whether its processes are to be ended after the loss of a host."""
    change: threading.Condition = field(default_factory=threading.Condition)
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held from a scaling's order until its number is noted."""

    def is_current(self, generation: int) -> bool:
        """Return whether events of a start count."""
        return generation == self.generation and not self.closed and not self.dead

    def new_generation(self) -> int:
        """Count a start or an end; return the new number."""
        self.generation += 1
        return self.generation


class JobReader:
    """Reads what one start of a job writes."""

    def __init__(
        self,
        hosts: AgentPool,
        *,
        task: str,
        home: str,
        is_current: Callable[[], bool],  # whether this start of the job is the current one; reading ends once it is not
        pause: Callable[[], None],  # waits before the next attempt after a connection was lost
    ) -> None:
        self._hosts, self._task, self.home = hosts, task, home
        self._is_current, self._pause = is_current, pause

    def follow(
        self,
        on_event: Callable[[JobEvent, bool], None],  # takes an event, and whether it was there before this call
        on_end: Callable[[JobResult], None],  # takes the result; called again if it loses a connection
        *,
        from_start: bool,  # report all events as new; False: those that are in the file by now are old
    ) -> None:
        """Pass on the events of the job until it has ended, then its result; nothing once it is not current any more.

        Raise LabkitError, OSError, ValueError if the host sends what labkit does not write, or has no such job.
        """
        offset, known, caught_up = 0, 0, from_start
        while self._is_current():
            agent = None
            try:
                agent = self._hosts.agent(self.home)
                self._await_start(agent)
                if not caught_up:
                    known = agent.read(self._hosts.run, task=self._task, file=EVENTS, n_bytes=1).size
                lines = agent.follow(self._hosts.run, task=self._task, file=EVENTS, offset=offset)
                for line in takewhile(lambda _: self._is_current(), lines):
                    offset = lines.last
                    on_event(event_of(line), offset < known)
                    caught_up = caught_up or offset >= known
                if self._is_current():
                    on_end(self._result())
                return
            except (AgentGone, AgentTimeout, HostError):
                if agent is not None:
                    self._hosts.drop_connection(self.home, agent)
                self._pause()

    def blamed(self, error: Exception) -> str:
        """Return the host to blame for an error of `follow`: none if the task was ended from elsewhere."""
        return "" if isinstance(error, AgentRefused) and error.kind in NOTHING_THERE else self.home

    def _await_start(self, agent: Agent) -> None:
        """Wait until the job accepts orders, or has ended: then the events of an earlier start have another name."""
        with suppress(AgentRefused):
            agent.tell(self._hosts.run, task=self._task, message=message_of(StatusOrder()), timeout_s=START_S)

    def _result(self) -> JobResult:
        """Return the result of the job; if it wrote none, the end of its log is its failure."""
        agent, run = self._hosts.agent(self.home), self._hosts.run
        try:
            return result_of(agent.read(run, task=self._task, file="result.json").data)
        except AgentRefused as error:
            if error.kind != "no_file":
                raise
        size = agent.read(run, task=self._task, file="log", n_bytes=1).size
        log = agent.read(run, task=self._task, file="log", offset=max(size - LOG_TAIL, 0)).data.decode(errors="replace")
        why = f"it died: {log.strip()[-LOG_TAIL:] or 'its log is empty'}"
        return JobResult(failure=why, cause=causes.name_of(self._cause_of_exit(agent)))

    def _cause_of_exit(self, agent: Agent) -> Cause:
        """Return why the job's process ended without a result, as its agent saw it."""
        tasks = next((listed.tasks for listed in agent.list(self._hosts.run)), {})
        how = (tasks[self._task].how or "") if self._task in tasks else ""
        name = how.removeprefix("killed by ")
        if name == how:
            return Cause.ERROR if how.startswith("exited with") else Cause.UNKNOWN
        number = getattr(signal.Signals, name, None)
        return Cause.KILLED if number is None else causes.of_exit(-number)


class JobFollower:
    """Follows the events of one job, in a thread for each start."""

    def __init__(
        self,
        task: str,
        *,
        state: RemoteJobState,  # changed as events come
        hosts: AgentPool,
        backups: CheckpointCache,
        launcher: JobLauncher,
        claims: GpuClaims,
        n_steps: int,
        report: Callable[[JobUpdate], None],  # takes a JobUpdate
        on_event: Callable[[JobEvent], None],
    ) -> None:
        self._task, self._state, self._hosts, self._backups = task, state, hosts, backups
        self._launcher, self._claims, self._n_steps = launcher, claims, n_steps
        self._report, self._on_event = report, on_event
        self._fetching = threading.Lock()

    def start(self, *, from_start: bool = True) -> None:
        """Follow the current start of the job; with `from_start=False` only later events are reported."""
        state = self._state
        state.progress = Progress(steps=state.progress.steps, saved=state.progress.saved, n_steps=self._n_steps)
        arguments = (state.home, from_start, state.new_generation())
        threading.Thread(target=self._follow, args=arguments, name=f"{self._task} events", daemon=True).start()

    def _follow(self, home: str, from_start: bool, generation: int) -> None:
        """Follow the events of one start of the job until it has ended.

        Events of a start on a host that was lost meanwhile are ignored.
        """
        reader = JobReader(
            self._hosts, task=self._task, home=home, is_current=lambda: self._state.is_current(generation),
            pause=lambda: self._pause(generation),
        )  # fmt: skip

        def on_end(result: JobResult) -> None:
            self._take_result(result, home, generation)

        try:
            reader.follow(self._take_event, on_end, from_start=from_start)
        except (LabkitError, OSError, ValueError) as error:
            self._fail(str(error), generation, host=reader.blamed(error))

    def _pause(self, generation: int) -> None:
        with self._state.change:
            self._state.change.wait_for(lambda: not self._state.is_current(generation), RECONNECT_S)

    def _take_event(self, event: JobEvent, old: bool) -> None:
        state = self._state
        update = state.progress.note(event)
        state.task_numbers.note(event)
        if isinstance(event, ScaledEvent | DroppedEvent):
            with state.sending, state.change:
                state.scalings.note_outcome(event.scaling, scaled=isinstance(event, ScaledEvent))
                state.change.notify_all()  # GPUs may be due to be given back
        if old:
            return
        if isinstance(event, StartedEvent | ScaledEvent) and state.amounts:
            with state.change:
                state.limited = None  # the new processes have no limits yet
                state.change.notify_all()
        self._on_event(event)
        if isinstance(event, SavedEvent) and state.progress.saved < self._n_steps:
            threading.Thread(target=self._back_up, daemon=True).start()
        if update is not None:
            self._report(replace(update, generation=state.generation))

    def _back_up(self) -> None:
        state, home = self._state, self._state.home
        try:
            self._fetch(home)
        except (LabkitError, OSError) as error:
            if state.home == home and not state.closed:
                why = f"no copy here: {error}"
                self._report(JobUpdate("unsaved", state.progress.steps, why=why, generation=state.generation))

    def _fetch(self, home: str) -> None:
        machine = self._hosts.fleet.inventory[home]
        with self._fetching:
            self._backups.fetch(machine, folder=machine.path("runs", self._hosts.run, self._task), task=self._task)

    def _take_result(self, result: JobResult, home: str, generation: int) -> None:
        """Report how the job ended: done, stopped, or failed."""
        steps = result.steps or 0.0
        if result.failure:
            cause = causes.cause_named(result.cause)
            self._fail(result.failure, generation, host=home, own=result.own, cause=cause)
        elif steps >= self._n_steps:
            self._finish(JobUpdate("done", steps), generation)
        else:
            self._state.progress.saved = int(steps)
            self._fetch(home)
            self._finish(JobUpdate("stopped", steps), generation)

    def _fail(self, why: str, generation: int, *, host: str, own: bool = False, cause: Cause = Cause.ERROR) -> None:
        saved = self._state.progress.saved
        self._finish(JobUpdate("failed", saved, why=why, host=host, own=own, cause=cause), generation)

    def _finish(self, update: JobUpdate, generation: int) -> None:
        """Note that the job runs no more, and report it, unless this start is not the current one."""
        state = self._state
        with state.change:
            if not state.is_current(generation):
                return
            state.dead, state.home = False, ""
            state.new_generation()
            self._claims.forget()
            self._launcher.stale |= self._launcher.launchers  # they end by themselves, perhaps after the next start
            self._launcher.launchers.clear()
            stopped = update.what == "stopped"
            if stopped and state.scalings.target is not None:
                why = "its host ended it, as when a lease is over; it starts again from that step"
                update = replace(update, why=why)
            state.scalings.note_end(keep_target=stopped)
            state.change.notify_all()
        self._report(replace(update, generation=generation))

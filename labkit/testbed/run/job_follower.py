"""What the events of one job change: its state here, its checkpoint on this machine, and reports of its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from labkit.core.errors import LabkitError
from labkit.core.events import Cause
from labkit.elastic.process import causes
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.gpu_claims import Claims
from labkit.testbed.run.job_events import DroppedEvent, JobEvent, JobResult, SavedEvent, ScaledEvent, StartedEvent
from labkit.testbed.run.job_launcher import JobLauncher
from labkit.testbed.run.job_reader import JobReader
from labkit.testbed.run.job_state import RemoteJobState
from labkit.testbed.run.progress import JobUpdate, Progress

RECONNECT_S: Final = 0.5
"""Seconds between two attempts to follow the events of a job."""


class JobFollower:
    """Follows the events of one job, in a thread for each start.

    Parameters
    ----------
    task : str
        The job, as agents know it.
    state : RemoteJobState
        Changed as events come.
    hosts, backups : AgentPool, CheckpointCache
        Of the run.
    launcher, claims : JobLauncher, Claims
        Processes and GPUs of the job.
    n_steps : int
        Updates after which the job is done.
    report : callable
        Takes a JobUpdate.
    on_event : callable
        Takes every new event of the job's elastic runtime.
    """

    def __init__(
        self,
        task: str,
        *,
        state: RemoteJobState,
        hosts: AgentPool,
        backups: CheckpointCache,
        launcher: JobLauncher,
        claims: Claims,
        n_steps: int,
        report: Callable[[JobUpdate], None],
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
                state.scalings.over(event.scaling, scaled=isinstance(event, ScaledEvent))
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
            state.scalings.ended(keep_target=stopped)
            state.change.notify_all()
        self._report(replace(update, generation=generation))

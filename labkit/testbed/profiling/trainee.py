"""One job that is measured: it is placed, and its events are kept with the time of their arrival."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.errors import HostError
from labkit.testbed.profiling.stage import ProfilingSession
from labkit.testbed.run.job_events import BeganEvent, JobEvent, LeftEvent, LossEvent, ScaledEvent, StartedEvent
from labkit.testbed.run.progress import JobUpdate

PATIENCE_S: Final = 90.0
"""Seconds after which a start or a scaling has failed."""


@dataclass(frozen=True, slots=True)
class Step:
    """An update: its time on the clock of its host, and the time of its arrival here."""

    time_s: float
    arrived_s: float


class MeasuredJob:
    """A job of a kind in a profiling session.

    Attributes
    ----------
    task : str
        Name of its task on the hosts.
    steps : list of Step
        Its updates, from its start on.
    members : dict
        Name of each process -> (role, host, pid).
    """

    def __init__(self, stage: ProfilingSession, number: int) -> None:
        self.stage, self.number = stage, number
        self.steps: list[Step] = []
        self.members: dict[str, tuple[str, str, int]] = {}
        self._changed = threading.Condition()
        self._n_scaled = 0
        self._began = False
        self._failure, self._dropped, self._over = "", "", False
        self._deployment = stage.deployment(number, on_update=self._take_update, on_event=self._take_event)
        self.task = self._deployment.task

    # --- reports, in threads of its deployment

    def _take_update(self, _: int, update: JobUpdate) -> None:
        with self._changed:
            if update.what in ("failed", "ended"):
                self._failure = update.why or "it failed"
            elif update.what == "dropped":
                self._dropped = update.why or "the scaling failed"
            self._over = self._over or update.what in ("failed", "ended", "stopped", "done")
            self._changed.notify_all()

    def _take_event(self, event: JobEvent) -> None:
        with self._changed:
            match event:
                case LossEvent():
                    self.steps.append(Step(event.time, time.monotonic()))
                case StartedEvent():
                    self.members[event.name] = (event.role, event.host, event.pid)
                case LeftEvent():
                    self.members.pop(event.name, None)
                case BeganEvent():
                    self._began = True
                case ScaledEvent():
                    self._n_scaled += 1
            self._changed.notify_all()

    # --- actions

    def place(self, place: JobPlacement) -> float:
        """Place its tasks; return the seconds until they train."""
        n_members = sum(sum(counts) for counts in place.values())
        with self._changed:
            n_before, started = self._n_scaled, self._began
        since = time.monotonic()
        self._deployment.set_target(place)
        self._wait(lambda: self._n_scaled > n_before if started else self._began, PATIENCE_S, "it does not train")
        took_s = time.monotonic() - since
        self._wait(lambda: len(self.members) == n_members, PATIENCE_S, "processes that are to leave are still there")
        return took_s

    def more_steps(self, n: int, *, least_s: float, most_s: float) -> int:
        """Wait for n more updates and at least `least_s` seconds; return the number of updates.

        Raises
        ------
        HostError
            If the job ends meanwhile.
        """
        begun, since = len(self.steps), time.monotonic()
        self._wait(lambda: len(self.steps) >= begun + n, most_s, "")
        self._wait(lambda: time.monotonic() - since >= least_s, max(most_s, least_s), "")
        return len(self.steps) - begun

    def stop(self) -> float:
        """Stop it with a checkpoint; return the seconds from its last update until it has ended."""
        self._deployment.set_target(None)
        self._wait(lambda: self._over, PATIENCE_S, "it does not stop")
        gone_s = time.monotonic()
        with self._changed:
            self._over, self._began = False, False
            self.members.clear()
        return gone_s - (self.steps[-1].arrived_s if self.steps else gone_s)

    @property
    def n_cold(self) -> int:
        """Processes that were started on a host without a warm fork server."""
        return self._deployment.n_cold

    def pids(self, role: str) -> list[tuple[str, int]]:
        """Return host and number of each process of a role."""
        return [(host, pid) for its, host, pid in self.members.values() if its == role]

    def _wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; raise `what` if it does not come true in time, or return if that is empty.

        Raises
        ------
        HostError
            If the job fails, or the condition does not come true.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while not done():
                self._refuse_failure()
                left = until - time.monotonic()
                if left <= 0:
                    if not what:
                        return
                    raise HostError(f"{what} after {seconds:g} s.")
                self._changed.wait(min(left, 0.05))

    def _refuse_failure(self) -> None:
        if self._failure:
            raise HostError(self._failure)
        if self._dropped:
            why, self._dropped = self._dropped, ""
            raise HostError(why)

"""Progress of a job on the testbed, from the events of its elastic runtime."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from labkit.core.events import Cause
from labkit.elastic.event_quantities import MemberName
from labkit.elastic.process.causes import cause_named
from labkit.testbed.agent.shapes import readable
from labkit.testbed.run.job_events import (
    BeganEvent,
    DroppedEvent,
    JobEvent,
    LeftEvent,
    LossEvent,
    LostHostEvent,
    ResizedEvent,
    SavedEvent,
    ScaledEvent,
    StartedEvent,
    UnsavedEvent,
)

REPORT_S: Final = 1.0
"""Seconds between two reports of a job's progress."""

WINDOW_S: Final = 3.0
"""Seconds over which a speed is measured."""

OVER: Final = "training has ended"
"""Reason of a scaling that was dropped because the job is done, which is no news."""


@dataclass(frozen=True, slots=True)
class LostTask:
    """A worker or PS that ended unexpectedly: its host, and its exit code, NaN if unknown."""

    member: MemberName
    host: str
    code: float


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A report on a job, for the scheduler.

    Attributes
    ----------
    what : str
        began, scaled, progressed, resized (a process has other cores or memory from now on; why: what could not be
        set), lost_task (it is replaced), lost_host (the other members go on), dropped (a scaling that failed),
        unsaved (a checkpoint that could not be written or copied here), restored (from another checkpoint than the
        newest copy here, which is damaged).
    steps : float
        Updates done.
    speed : float
        Updates per second, NaN where unknown.
    loss : float
        NaN where there is none.
    why : str
        Reason, in words.
    host : str
        Host of a failure; empty: no host is involved.
    own : bool
        Whether a job that failed reports itself that it cannot train.
    generation : int
        Start of the job that this belongs to.
    cause : Cause
        Cause of a failure.
    task : LostTask, optional
        The lost task.
    """

    what: str
    steps: float
    speed: float = float("nan")
    loss: float = float("nan")
    why: str = ""
    host: str = ""
    own: bool = False
    generation: int = 0
    cause: Cause = Cause.UNKNOWN
    task: LostTask | None = None


@dataclass(slots=True)
class Progress:
    """Folds the events of one job, one at a time.

    Progress is reported every `REPORT_S` seconds, and after the last update.

    Parameters
    ----------
    n_steps : float
        Updates that the job is to make.

    Attributes
    ----------
    steps : int
        Updates done.
    saved : int
        Updates that a checkpoint keeps.
    """

    steps: int = 0
    saved: int = 0
    n_steps: float = float("inf")
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _reported_s: float = float("-inf")
    _began: bool = False
    _hosts: dict[str, str] = field(default_factory=dict)
    """Member -> host."""

    def note(self, event: JobEvent) -> JobUpdate | None:
        """Take in an event; return the report that follows from it, if any."""
        match event:
            case LossEvent():
                return self._stepped(event.time, event.version + 1, float(event.loss))
            case BeganEvent():
                return self._begun(event.version)
            case StartedEvent():
                self._hosts[event.name] = event.host
            case LeftEvent(expected=False):
                return self._lost(event)
            case SavedEvent():
                self.saved = max(self.saved, event.version)
            case _:
                return self._changed(event)
        return None

    def _changed(self, event: JobEvent) -> JobUpdate | None:
        """Return the report of a change of the job's members or checkpoints, if it is one."""
        match event:
            case ScaledEvent():
                self._recent.clear()
                return JobUpdate("scaled", self.steps)
            case ResizedEvent():
                unable = "; ".join(event.unable)
                return JobUpdate("resized", self.steps, why=f"{event.name} cannot have {unable}" if unable else "")
            case DroppedEvent() if event.why != OVER:
                return JobUpdate("dropped", self.steps, why=event.why)
            case LostHostEvent():
                return JobUpdate("lost_host", self.steps, why=event.why)
            case UnsavedEvent():
                return JobUpdate("unsaved", self.steps, why=event.why)
        return None

    def _lost(self, event: LeftEvent) -> JobUpdate | None:
        member = MemberName.of(event.name)
        if member is None:
            return None
        host, code = self._hosts.get(event.name, ""), event.code
        lost = LostTask(member, host, float(code) if code is not None and abs(code) < 1 << 31 else float("nan"))
        why = f"{event.name}{f' on {host}' if host else ''}: {event.reason}"
        return JobUpdate("lost_task", self.steps, why=readable(why), cause=cause_named(event.cause), task=lost)

    @property
    def speed(self) -> float:
        """Updates per second over the last `WINDOW_S`; NaN before there are two."""
        if len(self._recent) < 2:
            return float("nan")
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else float("nan")

    def _begun(self, version: int) -> JobUpdate | None:
        """Note that training begins, or continues at a version after a failure."""
        self.steps = version
        self._recent.clear()
        what, self._began = ("progressed" if self._began else "began"), True
        return JobUpdate(what, version)

    def _stepped(self, at_s: float, steps: int, loss: float) -> JobUpdate | None:
        self.steps = max(self.steps, steps)
        self._recent.append((at_s, steps))
        while at_s - self._recent[0][0] > WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        if at_s - self._reported_s < REPORT_S and self.steps < self.n_steps:
            return None
        self._reported_s = at_s
        return JobUpdate("progressed", self.steps, self.speed, loss)

"""A barrier for asynchronous workers: all of them pause, and then something is done to all blocks at one time.

Asynchronous training has no version at which all blocks agree, except while no worker pushes gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState
from labkit.elastic.protocol.messages.orders import Pause, Resume


@dataclass(slots=True)
class PauseInProgress:
    """One use of the barrier.

    Attributes
    ----------
    number : int
        Of the pause, from 1.
    waiting : set of str
        Workers that have not paused yet.
    then : callable
        Called once, when all workers have paused.
    until_s : float
        Time at which the pause is given up if a worker has still not paused.
    complete : bool
        Whether all workers have paused, and `then` was called.
    """

    number: int
    waiting: set[str]
    then: Callable[[], None]
    until_s: float = math.inf
    complete: bool = False


@dataclass(slots=True, eq=False)
class WorkerBarrier:
    """Pauses the workers and lets them go on.

    Attributes
    ----------
    job : ControllerState
        With the workers.
    out : CommandBuffer
        For orders to them.
    pause : PauseInProgress, optional
        The one in progress.
    step_s : dict
        Seconds of the latest step of each asynchronous worker.
    overdue : set of str
        Workers that did not pause in time for a checkpoint and have reported nothing since.
    """

    job: ControllerState
    out: CommandBuffer
    pause: PauseInProgress | None = None
    step_s: dict[str, float] = field(default_factory=dict)
    overdue: set[str] = field(default_factory=set)
    _n_pauses: int = 0

    def begin(self, then: Callable[[], None], *, until_s: float = math.inf) -> None:
        """Order all workers to pause, and call `then` once they have; `release` ends the pause."""
        waiting = {m.name for m in self.job.members.values() if m.role == "worker" and m.ready}
        self._n_pauses += 1
        self.pause = PauseInProgress(self._n_pauses, waiting, then, until_s)
        self.out.tell_workers(Pause(self._n_pauses))

    def release(self) -> None:
        """Let all workers go on, also those that a version holds (synchronous training)."""
        self.pause = None
        self.out.tell_workers(Resume())

    def proceed(self) -> None:
        """Call `then` if all workers have paused."""
        pause = self.pause
        if pause is not None and not pause.complete and not pause.waiting:
            pause.complete = True
            pause.then()

    def expired(self, now_s: float) -> list[str] | None:
        """Return the workers that have not paused in time; None: there is no pause, or time is left."""
        pause = self.pause
        if pause is None or pause.complete or now_s < pause.until_s:
            return None
        self.overdue = {name for name in pause.waiting if name in self.job.members}
        return sorted(self.overdue)

    @property
    def number(self) -> int:
        """Number of the pause in progress; 0: none."""
        return 0 if self.pause is None else self.pause.number

    # --- reports of workers

    def on_paused(self, worker: str, number: int | None) -> None:
        """Note that a worker has paused."""
        self.overdue.discard(worker)
        if self.pause is not None and number == self.pause.number:
            self.pause.waiting.discard(worker)

    def on_step(self, worker: str, step_s: float) -> None:
        """Note that a worker has completed a step, and how long it took."""
        self.overdue.discard(worker)
        self.step_s[worker] = step_s

    def forget(self, worker: str) -> None:
        """Remove a worker that is gone."""
        if self.pause is not None:
            self.pause.waiting.discard(worker)
        self.overdue.discard(worker)
        self.step_s.pop(worker, None)

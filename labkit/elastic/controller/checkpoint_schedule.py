"""When checkpoints are saved, and the barrier at which asynchronous workers pause for them.

Asynchronous training has no version at which all blocks agree, except while no worker pushes gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from labkit.elastic.controller.controller_state import CommandBuffer, ControllerState
from labkit.elastic.controller.data_assignment import DataLeases
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue
from labkit.elastic.protocol.messages.orders import CopyBlocks, Pause, Resume


@dataclass(slots=True)
class PauseInProgress:
    """One use of the barrier."""

    number: int
    """Of the pause, from 1."""
    waiting: set[str]
    """Workers that have not paused yet."""
    then: Callable[[], None]
    """Called once, when all workers have paused."""
    until_s: float = math.inf
    """Time at which the pause is given up if a worker has still not paused."""
    complete: bool = False
    """Whether all workers have paused, and `then` was called."""


@dataclass(slots=True, eq=False)
class WorkerBarrier:
    """Pauses the workers and lets them go on."""

    job: ControllerState
    out: CommandBuffer
    pause: PauseInProgress | None = None
    step_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the latest step of each asynchronous worker."""
    overdue: set[str] = field(default_factory=set)
    """Workers that did not pause in time for a checkpoint and have reported nothing since."""
    _n_pauses: int = 0

    def begin(self, then: Callable[[], None], *, until_s: float = math.inf) -> None:
        """Order all workers to pause, and call `then` once they have; `release` ends the pause."""
        waiting = {m.name for m in self.job.members.values() if m.role == "worker" and m.ready}
        self._n_pauses += 1
        self.pause = PauseInProgress(self._n_pauses, waiting, then, until_s)
        self.out.tell_workers(Pause(self._n_pauses))

    def release(self) -> None:
        """Resume all workers, also those that a version holds (synchronous training)."""
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


PAUSE_LEASES: Final = 0.25
"""Workers pause for a periodic checkpoint for at most this part of a lease, and"""
PAUSE_STEPS: Final = 2
"""this many steps of the slowest worker; then they go on without the checkpoint."""
MARGIN: Final = 2
"""Versions between an order to do something at a version and that version: all members must hear of it before."""


@dataclass(slots=True, eq=False)
class CheckpointSchedule:
    """Orders copies of all blocks at one version, and ends the job when its last state is safe."""

    job: ControllerState
    out: CommandBuffer
    requests: ScalingQueue
    barrier: WorkerBarrier
    leases: DataLeases
    outcome: JobOutcome
    saving: int | None = None
    """Version that is being saved."""
    saved: int = 0
    """Latest version that is complete and safe."""

    # --- orders

    def save(self, version: int) -> None:
        """Order all servers to copy their blocks at a version."""
        self.saving = version
        for server in self.job.of("server"):
            self.out.tell(server.name, CopyBlocks(version))

    def save_again(self) -> None:
        """Repeat the order under way: copies may have been lost with a server."""
        if self.saving is not None:
            self.save(self.saving)

    def copy_again(self, version: int) -> None:
        """Order the copies of a version once more."""
        for server in self.job.of("server"):
            self.out.tell(server.name, CopyBlocks(version))

    def save_paused(self, then: Callable[[], None], *, needed: bool) -> None:
        """Pause asynchronous workers and call `then`, which is to save; if not `needed`, for a limited time only."""
        self.saving = self.job.progress
        until_s = math.inf
        if not needed:
            step_s = max(self.barrier.step_s.values(), default=0.0)
            until_s = self.job.now_s + PAUSE_LEASES * self.job.terms.lease_s + PAUSE_STEPS * step_s
        self.barrier.begin(then, until_s=until_s)

    def save_when_due(self) -> None:
        """Save a periodic checkpoint of asynchronous training when it is time, and the last one when all is done."""
        every, progress = self.job.terms.save_every, self.job.progress
        due = bool(every) and progress >= self.saved + every
        due = due and not self.barrier.overdue  # a worker that did not pause in time may still be stuck
        ready = self.job.phase == "training" and self.saving is None and self.requests.settled
        if ready and (due or self.leases.done):
            self.save_paused(lambda: self.save(self.job.progress), needed=self.leases.done)

    def on_step(self) -> None:
        """Order a periodic checkpoint of synchronous training when the step before it is near.

        Not during a takeover: servers that have not reported yet would miss the order.
        """
        terms, progress = self.job.terms, self.job.progress
        ready = self.job.phase == "training" and self.saving is None and self.requests.settled
        if terms.save_every and ready and progress < terms.n_steps:
            due = max(self.saved + terms.save_every, progress + MARGIN)
            if progress >= due - MARGIN and due < terms.n_steps:
                self.save(due)

    def order_last(self) -> None:
        """Order copies of the last version; in asynchronous training, save it if everything is done."""
        if self.leases.active:
            self.save_when_due()
            return
        for server in self.job.of("server"):
            self.out.tell(server.name, CopyBlocks(self.job.terms.n_steps))

    def remind(self, server: str) -> None:
        """Repeat to one server the orders that it may have missed."""
        for version in {self.job.terms.n_steps, self.saving} if self.job.terms.sync else {self.saving}:
            if version is not None:
                self.out.tell(server, CopyBlocks(version))

    # --- results

    def complete(self, version: int) -> None:
        """Note that a checkpoint is complete and safe."""
        self._no_longer_saving(version)
        self.saved = max(self.saved, version)
        self.out.note("saved", version=version)

    def failed(self, version: int, why: str) -> None:
        """Note that a checkpoint could not be written."""
        self.out.note("unsaved", version=version, why=why)
        self._no_longer_saving(version)

    def _no_longer_saving(self, version: int) -> None:
        if self.saving == version:
            self.saving = None

    def give_up_pause(self, now_s: float) -> None:
        """Resume workers without a periodic checkpoint if one of them does not pause in time: it may be stuck."""
        overdue = self.barrier.expired(now_s)
        if overdue is None:
            return
        self.out.note("unsaved", version=self.saving, why=f"{', '.join(overdue)} did not pause for it in time")
        self.saving = None
        self.barrier.release()

    def end_when_done(self) -> None:
        """End the job once its last state is safe and all workers have reported their last step."""
        last = self.job.terms.n_steps
        if self.leases.active:
            if self.leases.done and self.saved >= last:
                self.outcome.end("")
        elif self.saved == last and all(m.version == last for m in self.job.of("worker") if m.ready):
            self.outcome.end("")

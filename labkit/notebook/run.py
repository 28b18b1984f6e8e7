"""A run that goes on in the background: start, pause, step and stop it, from a notebook or without one."""

from __future__ import annotations

import asyncio
import copy
import math
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import traitlets

from labkit.core.errors import InputError, LabkitError, StoppedError, unknown
from labkit.core.events import Events, Kind, joined
from labkit.core.protocols import Backend, Scheduler
from labkit.experiment import Experiment, Session
from labkit.experiment.machines import OnMachines
from labkit.notebook.board import Board
from labkit.results import RunInfo, RunRecord, RunState
from labkit.schedulers import named
from labkit.simulator import Paced

if TYPE_CHECKING:
    from labkit.testbed.run.orders import MemberReply

TICK_S: Final = 0.05
"""Traits change at most this often."""

LOOK_S: Final = 0.2
"""Between two looks at machines while no decisions are made."""

MOST_EVENTS_PER_TICK: Final = 8_000
"""What is folded at once, so that the kernel goes on answering."""

READY, RUNNING, PAUSED, STOPPING = "ready", "running", "paused", "stopping"
OVER: Final = {"done": RunState.DONE, "stopped": RunState.STOPPED, "failed": RunState.FAILED}

Listener = Callable[[set[int]], None]
"""Called on the kernel's loop when the board has changed, with the device groups whose tasks changed."""


class LiveRun(traitlets.HasTraits):
    """An experiment with one scheduler, in a thread of its own, that can be watched and steered.

    `start`, `pause`, `step` and `stop` answer at once; they may be called from any thread. Traits change on the loop
    that was running when this was made (the kernel's), or in the run's thread where there was none.

    >>> run = LiveRun(Experiment.of("trace.csv", cluster="demo"), scheduler="srtf")          # doctest: +SKIP
    >>> await run.start()                                                                    # doctest: +SKIP
    >>> run.record.summary["mean_jct_s"]                                                     # doctest: +SKIP

    Parameters
    ----------
    experiment : Experiment
        All but the scheduler.
    scheduler : Scheduler or str
        Or a name that `labkit.schedulers.make` takes. An object is copied: each run has its own.
    name : str, optional
        What to call it in tables and figures.
    speedup : float
        Seconds of the run per second of waiting; inf: as fast as possible.
    backend : Backend, optional
        Where jobs run; a fresh simulator by default. One that can be closed is closed when the run is over.

    Attributes
    ----------
    state : str
        ready, running, paused, stopping; at the end done, stopped or failed.
    now_s, speedup : float
        Clock of the run, and its pace; the pace may be set on the way.
    error : str
        One line on what went wrong; `exception` has the rest.
    metrics : dict
        now_s, n_jobs, n_arrived, n_done, n_running, n_waiting, gpus_held, n_gpus, mean_jct_s, n_decisions.
    board : Board
        What views show.
    """

    state = traitlets.Unicode(READY)
    now_s = traitlets.Float(0.0)
    speedup = traitlets.Float(math.inf)
    error = traitlets.Unicode("")
    metrics = traitlets.Dict()

    def __init__(
        self,
        experiment: Experiment,
        *,
        scheduler: Scheduler | str,
        name: str | None = None,
        speedup: float = math.inf,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(speedup=speedup)
        self.experiment = experiment
        made, self.name = named(scheduler, name)
        self.exception: BaseException | None = None
        self.board = Board(experiment.jobs, experiment.cluster)
        self._scheduler = copy.deepcopy(made)
        self._caveats = experiment.caveats(made, name=self.name)
        self._backend = backend or experiment.simulator()
        self._paced = Paced(self._backend, speedup=speedup)
        self._heard: list[Events] = []
        self._reasons: list[str] = []
        self._n_folded, self._folded_at = 0, 0.0
        self._info: RunInfo | None = None
        self._listeners: list[Listener] = []
        self._gate = threading.Condition()
        self._paused, self._stopping, self._tickets = False, False, 0
        self._ended = ""
        self._began = self._wall_s = math.nan
        self._thread: threading.Thread | None = None
        self._loop = running_loop()
        self.observe(lambda change: self._paced.set_speedup(change["new"]), "speedup")
        self._tell(set())

    # --- steering

    def start(self) -> LiveRun:
        """Begin, or go on after a pause; return this run, which can be awaited."""
        with self._gate:
            self._paused, self._tickets = False, 0
            self._gate.notify_all()
        self._paced.go_on()
        self._enter(RUNNING)
        return self

    def pause(self) -> None:
        """Make no further decision until `start` or `step`, and stop the clock, unless it is that of real machines."""
        if self._thread is None or self.over:
            return
        with self._gate:
            self._paused, self._tickets = True, 0
        if not self.live:
            self._paced.hold()
        self._enter(PAUSED)

    def step(self) -> None:
        """Make one decision, let time pass until the next one is due, and pause there."""
        with self._gate:
            self._paused = True
            self._tickets += 1
            self._gate.notify_all()
        self._paced.hurry()
        self._enter(PAUSED)

    def stop(self) -> None:
        """End the run; what happened so far stays in `record`."""
        if self._thread is None or self.over:
            return
        with self._gate:
            self._stopping = True
            self._gate.notify_all()
        self._paced.interrupt()
        self._set(state=STOPPING)

    @property
    def live(self) -> bool:
        """True where jobs really train: their time cannot be held or hurried."""
        return self._paced.live

    @property
    def notes(self) -> list[str]:
        """What a reader of the run's numbers has to know, and what went wrong on machines on the way, in words."""
        return [*self._caveats, *getattr(self._backend, "notes", ())]

    @property
    def over(self) -> bool:
        """True when nothing more will happen."""
        return self.state in OVER

    def wait(self, timeout_s: float | None = None) -> LiveRun:
        """Block until the run is over, or for that long; in a notebook rather `await` it.

        Raises
        ------
        InputError
            If it was never started.
        """
        self._refuse_unstarted().join(timeout_s)
        if self._ended and running_loop() is self._loop:
            self._settle()
        return self

    def __await__(self) -> Generator[Any, None, LiveRun]:
        """Wait until the run is over."""
        return self._until_over().__await__()

    async def _until_over(self) -> LiveRun:
        self._refuse_unstarted()
        while not self.over:
            await asyncio.sleep(TICK_S)
        return self

    async def happened(self, kind: str, *, n: int = 1) -> int:
        """Wait until so many events of a kind were heard, or the run is over; return how many were.

        >>> await run.happened("started", n=3)                                               # doctest: +SKIP

        Raises
        ------
        InputError
            If there are no events of that kind, or the run was never started.
        """
        kinds = {each.name.lower(): each for each in Kind}
        if kind not in kinds:
            raise unknown("kind of event", kind, kinds)
        self._refuse_unstarted()
        while (found := self._count(kinds[kind])) < n and not self.over:
            await asyncio.sleep(TICK_S)
        return found

    async def until(self, now_s: float) -> LiveRun:
        """Wait until so many seconds of the run have passed, or it is over.

        Raises
        ------
        InputError
            If the run was never started.
        """
        self._refuse_unstarted()
        while self._paced.now_s < now_s and not self.over:
            await asyncio.sleep(TICK_S)
        return self

    def _count(self, kind: Kind) -> int:
        return sum(int(np.count_nonzero(batch["kind"] == kind)) for batch in self._heard[:])

    def _refuse_unstarted(self) -> threading.Thread:
        if self._thread is None:
            raise InputError("this run was not started; call start() first, e.g. await run.start().")
        return self._thread

    def members(self, job: int = 0) -> list[MemberReply]:
        """Return name, role, site, pid and whether it has joined of each process that trains a job on machines.

        Raises
        ------
        InputError
            If the run is simulated: nothing trains there; or if it is over: how it ended, and why.
        """
        if not isinstance(self._backend, OnMachines):
            raise InputError(f"run '{self.name}' is simulated; only jobs on machines have processes.")
        if self._ended:
            why = one_line(self.exception) if self.exception else "no process trains any more"
            raise InputError(f"run '{self.name}' is over ({self._ended}): {why}.")
        return self._backend.members(job)

    # --- what happened

    @property
    def record(self) -> RunRecord:
        """The record of what happened so far."""
        heard = self._heard[:]
        state = OVER.get(self.state, RunState.RUNNING)
        wall_s = self._wall_s if self._ended else time.monotonic() - self._began
        info = replace(self._info or self._new_info(), state=state, wall_s=wall_s)
        rows = joined(heard)
        return RunRecord(
            info=info, jobs=self.experiment.jobs, cluster=self.experiment.cluster, events=rows,
            reasons=self._reasons[:],
        )  # fmt: skip

    def _new_info(self) -> RunInfo:
        info = self.experiment.info(self._scheduler, name=self.name)
        return replace(info, backend="testbed") if self.live else info

    def listen(self, listener: Listener) -> None:
        """Call a view after every change of the board."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Leave a view alone from now on."""
        self._listeners = [other for other in self._listeners if other != listener]

    # --- the thread of the run

    def _enter(self, state: str) -> None:
        """Begin the thread if it has not begun, and tell the new state."""
        if self.over or self._stopping:
            return
        if self._thread is None:
            self._began = time.monotonic()
            self._thread = threading.Thread(target=self._work, name=f"labkit {self.name}", daemon=True)
            self._thread.start()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._tick)
        self._set(state=state)

    def _work(self) -> None:
        ended = "failed"
        try:
            ended = self._run()
        except StoppedError:
            ended = "stopped"
        except Exception as error:  # a notebook must hear of it, not the thread's stderr
            self.exception = error
        try:
            self._let_go()
        except Exception as error:
            ended, self.exception = "failed", self.exception or error
        self._wall_s = time.monotonic() - self._began
        self._ended = ended
        if self._loop is None:
            self._settle()

    def _run(self) -> str:
        self._info = self._new_info()
        observers: list[Callable[[Events], None]] = [self._hear]
        if isinstance(self._backend, OnMachines):
            observers.append(self._backend.note)
            self._backend.reasons = self._reasons
        session = self.experiment.session(
            self._scheduler, observers=observers, backend=self._paced, reasons=self._reasons
        )  # fmt: skip
        while not session.done and self._may_go(session):
            session.step(self._scheduler.schedule(session.snapshot()))
        return "done" if session.done else "stopped"

    def _may_go(self, session: Session) -> bool:
        """Wait while the run is paused; tell whether a decision is to be made then."""
        while self._held() and not session.done:
            if self.live:
                session.look(LOOK_S)
            else:
                with self._gate:
                    self._gate.wait_for(lambda: not self._held())
        with self._gate:
            self._tickets = max(self._tickets - 1, 0)
            return not self._stopping and not session.done

    def _held(self) -> bool:
        return self._paused and not self._tickets and not self._stopping

    def _let_go(self) -> None:
        """Close a backend that can be closed: machines are let go of."""
        close = getattr(self._backend, "close", None)
        if close is not None:
            close()

    def _hear(self, batch: Events) -> None:
        if not len(batch):
            return
        self._heard.append(batch)
        if self._loop is None and time.monotonic() > self._folded_at + TICK_S:
            self._folded_at = time.monotonic()
            self._fold(None)

    # --- the loop of the kernel

    def _tick(self) -> None:
        """Bring the board and the traits up to date, and come back soon."""
        ended = self._ended  # read before the board: what is heard later belongs to the next tick
        self._fold(MOST_EVENTS_PER_TICK)
        if ended and self._n_folded == len(self._heard):
            self._settle()
        elif self._loop is not None:
            self._loop.call_later(TICK_S, self._tick)

    def _settle(self) -> None:
        """Fold all that is left and say how it ended; only once."""
        self._fold(None)
        if not self.over:
            self.error = "" if self.exception is None else one_line(self.exception)
            self.state = self._ended
            self._tell(set())

    def _fold(self, most: int | None) -> None:
        n = 0
        while self._n_folded < len(self._heard) and (most is None or n < most):
            batch = self._heard[self._n_folded]
            self.board.fold(batch)
            self._n_folded += 1
            n += len(batch)
        if n or self._clock_s() != self.now_s:
            groups, self.board.changes.groups = self.board.changes.groups, set()
            self._tell(groups)

    def _tell(self, groups: set[int]) -> None:
        board = self.board
        self.now_s = self._clock_s()
        self.metrics = {
            "now_s": self.now_s,
            "n_jobs": len(board.jobs),
            "n_arrived": board.n_arrived,
            "n_done": board.n_done,
            "n_running": board.n_running,
            "n_waiting": board.n_waiting,
            "gpus_held": board.gpus_held,
            "n_gpus": board.cluster.n_gpus,
            "mean_jct_s": board.mean_jct_s,
            "n_decisions": board.n_decisions,
        }
        for listener in self._listeners:
            listener(groups)

    def _clock_s(self) -> float:
        """Return how late it is: what was told is past, and the end is that of the record."""
        behind = self._n_folded < len(self._heard)
        finished = self._ended and self._ended != "stopped"
        return self.board.now_s if finished or behind else max(self._paced.now_s, self.board.now_s)

    def _set(self, **traits: Any) -> None:
        """Change traits, on the loop that was there when this was made."""
        if self._loop is None or running_loop() is self._loop:
            self._change(traits)
        else:
            self._loop.call_soon_threadsafe(self._change, traits)

    def _change(self, traits: dict[str, Any]) -> None:
        if not self.over:
            for name, value in traits.items():
                setattr(self, name, value)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line; for what labkit did not raise on purpose, with the place.

    >>> one_line(InputError("unknown cluster 'dem'."))
    "unknown cluster 'dem'."
    """
    said = " ".join(str(error).split())
    if isinstance(error, LabkitError):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.name == "schedule"), frames[-1] if frames else None)
    return f"{type(error).__name__}: {said}" + (f" (in {place.name}, line {place.lineno})." if place else "")

"""A run that goes on in the background: start, pause, step and stop it, from a notebook or without one."""

from __future__ import annotations

import asyncio
import copy
import math
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import traitlets

from labkit.core.errors import InputError, LabkitError, StoppedError, unknown
from labkit.core.events import Events, Kind, joined
from labkit.core.protocols import Backend, Scheduler
from labkit.experiment import Experiment, Session
from labkit.experiment.machines import OnMachines
from labkit.live.board import Board
from labkit.live.model import LiveModel, RunStatus
from labkit.results import RunInfo, RunRecord, RunState
from labkit.schedulers import named
from labkit.simulator import Paced

if TYPE_CHECKING:
    from labkit.elastic.protocol.messages.clients import MemberStatus


TICK_S: Final = 0.05
"""Traits change at most this often."""

MOST_EVENTS_PER_TICK: Final = 8_000
"""What is folded at once, so that the kernel goes on answering."""

READY, RUNNING, PAUSED, STOPPING = "ready", "running", "paused", "stopping"
OVER: Final = {"done": RunState.DONE, "stopped": RunState.STOPPED, "failed": RunState.FAILED}

INTERRUPTED: Final = "a cell that waited for this run was interrupted; the run continues: Stop, or stop(), ends it"

Listener = Callable[[], None]
"""Called on the kernel's loop when what is shown has changed."""


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
    aside : str
        One line where a cell that waited for the run was interrupted: the run goes on.
    metrics : dict
        now_s, n_jobs, n_arrived, n_done, n_running, n_waiting, gpus_held, n_gpus, mean_jct_s, n_decisions.
    model : LiveModel
        What views show.
    """

    state = traitlets.Unicode(READY)
    now_s = traitlets.Float(0.0)
    speedup = traitlets.Float(math.inf)
    error = traitlets.Unicode("")
    aside = traitlets.Unicode("")
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
        sizes = np.zeros(len(experiment.jobs)) if getattr(backend, "live", False) else None  # not the catalogue's
        super().__init__(speedup=speedup)
        self.experiment = experiment
        policy, self.name = named(scheduler, name)
        self._work = RunWork(
            experiment, copy.deepcopy(policy), name=self.name, backend=backend or experiment.simulator(),
            speedup=speedup, heard=self._hear, over=self._end,
        )  # fmt: skip
        self.model = LiveModel(experiment.jobs, experiment.cluster, reasons=self._work.reasons, sizes=sizes)
        self._paced, self._gate, self._heard = self._work.paced, self._work.gate, self._work.events
        self._caveats = experiment.caveats(policy, name=self.name)
        self._n_folded, self._folded_at = 0, 0.0
        self._listeners: list[Listener] = []
        self._loop = running_loop()
        self.observe(lambda change: self._paced.set_speedup(change["new"]), "speedup")
        self._tell()

    # --- steering

    def start(self) -> LiveRun:
        """Begin, or go on after a pause; return this run, which can be awaited."""
        self._gate.open()
        self._paced.go_on()
        self._enter(RUNNING)
        self._set(aside="")
        return self

    def pause(self) -> None:
        """Make no further decision until `start` or `step`, and stop the clock, unless it is that of real machines."""
        if self._work.thread is None or self.over:
            return
        self._gate.close()
        if not self.live:
            self._paced.hold()
        self._enter(PAUSED)

    def step(self) -> None:
        """Make one decision, let time pass until the next one is due, and pause there."""
        self._gate.admit()
        self._paced.hurry()
        self._enter(PAUSED)

    def stop(self) -> None:
        """End the run; what happened so far stays in `record`."""
        if self._work.thread is None or self.over:
            return
        self._gate.stop()
        self._paced.interrupt()
        self._set(state=STOPPING)

    @property
    def live(self) -> bool:
        """True where jobs really train: their time cannot be held or hurried."""
        return self._work.live

    @property
    def exception(self) -> BaseException | None:
        """What made the run fail."""
        return self._work.exception

    @property
    def notes(self) -> list[str]:
        """What a reader of the run's numbers has to know, and what went wrong on machines on the way, in words."""
        return [*self._caveats, *getattr(self._work.backend, "notes", ())]

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
        with self._note_if_interrupted():
            self._refuse_unstarted().join(timeout_s)
        if self._work.ended and running_loop() is self._loop:
            self._settle()
        return self

    def __await__(self) -> Generator[Any, None, LiveRun]:
        """Wait until the run is over."""
        return self._until_over().__await__()

    async def _until_over(self) -> LiveRun:
        await self._until(lambda: self.over)
        return self

    async def _until(self, true: Callable[[], bool], *, limit_s: float = math.inf) -> None:
        self._refuse_unstarted()
        latest_s = time.monotonic() + limit_s
        with self._note_if_interrupted():
            while not true() and not self.over and time.monotonic() < latest_s:
                await asyncio.sleep(TICK_S)

    @contextmanager
    def _note_if_interrupted(self) -> Iterator[None]:
        """Report that the run goes on in its thread where a waiting cell is interrupted."""
        try:
            yield
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._set(aside=INTERRUPTED)
            raise

    async def happened(self, kind: str, *, n: int = 1, limit_s: float = math.inf) -> int:
        """Wait until so many events of a kind were heard, or the run is over; return how many were.

        With `limit_s` it waits for so many seconds at most.

        >>> await run.happened("started", n=3)                                               # doctest: +SKIP

        Raises
        ------
        InputError
            If there are no events of that kind, or the run was never started.
        """
        kinds = {each.name.lower(): each for each in Kind}
        if kind not in kinds:
            raise unknown("kind of event", kind, kinds)
        await self._until(lambda: self._count(kinds[kind]) >= n, limit_s=limit_s)
        return self._count(kinds[kind])

    async def until(self, now_s: float) -> LiveRun:
        """Wait until so many seconds of the run have passed, or it is over.

        Raises
        ------
        InputError
            If the run was never started.
        """
        await self._until(lambda: self._paced.now_s >= now_s)
        return self

    def _count(self, kind: Kind) -> int:
        return sum(int(np.count_nonzero(batch["kind"] == kind)) for batch in self._heard[:])

    def _refuse_unstarted(self) -> threading.Thread:
        if self._work.thread is None:
            raise InputError("this run was not started; call start() first, e.g. await run.start().")
        return self._work.thread

    def members(self, job: int = 0) -> list[MemberStatus]:
        """Return name, role, site, pid and whether it has joined of each process that trains a job on machines.

        Raises
        ------
        InputError
            If the run is simulated: nothing trains there; or if it is over: how it ended, and why.
        """
        if not isinstance(self._work.backend, OnMachines):
            raise InputError(f"run '{self.name}' is simulated; only jobs on machines have processes.")
        if self._work.ended:
            why = one_line(self.exception) if self.exception else "no process trains any more"
            raise InputError(f"run '{self.name}' is over ({self._work.ended}): {why}.")
        return self._work.backend.members(job)

    # --- what happened

    @property
    def record(self) -> RunRecord:
        """The record of what happened so far."""
        work = self._work
        info = replace(work.info(), state=OVER.get(self.state, RunState.RUNNING))
        return RunRecord(
            info=info, jobs=self.experiment.jobs, cluster=self.experiment.cluster, events=joined(work.events[:]),
            reasons=work.reasons[:],
        )  # fmt: skip

    @property
    def board(self) -> Board:
        """What each job does since when, and how full each machine is."""
        return self.model.board

    @property
    def status(self) -> RunStatus:
        """How it is doing."""
        return RunStatus(self.state, self.error or self.aside or (self.notes[-1] if self.notes else ""))

    def listen(self, listener: Listener) -> None:
        """Call a view after every change of the board."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Leave a view alone from now on."""
        self._listeners = [other for other in self._listeners if other != listener]

    # --- the thread of the run

    def _enter(self, state: str) -> None:
        """Begin the thread if it has not begun, and tell the new state."""
        if self.over or self._gate.stopping:
            return
        if self._work.begin() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._tick)
        self._set(state=state)

    def _hear(self) -> None:
        if self._loop is None and time.monotonic() > self._folded_at + TICK_S:
            self._folded_at = time.monotonic()
            self._fold(None)

    def _end(self) -> None:
        if self._loop is None:
            self._settle()

    # --- the loop of the kernel

    def _tick(self) -> None:
        """Bring the board and the traits up to date, and come back soon."""
        ended = self._work.ended  # read before the board: what is heard later belongs to the next tick
        self._fold(MOST_EVENTS_PER_TICK)
        if ended and self._n_folded == len(self._heard):
            self._settle()
        elif self._loop is not None:
            self._loop.call_later(TICK_S, self._tick)

    def _settle(self) -> None:
        """Fold all that is left and say how it ended; only once."""
        self._fold(None)
        if not self.over:
            self.aside, self.error = "", "" if self.exception is None else one_line(self.exception)
            self.state = self._work.ended
            self._tell()

    def _fold(self, most: int | None) -> None:
        first, n = self._n_folded, 0
        while self._n_folded < len(self._heard) and (most is None or n < most):
            n += len(self._heard[self._n_folded])
            self._n_folded += 1
        self.model.fold(joined(self._heard[first : self._n_folded]))
        if n or self._clock_s() != self.now_s:
            self._tell()

    def _tell(self) -> None:
        board = self.board
        self.now_s = self._clock_s()
        self.metrics = {
            "now_s": self.now_s, "n_jobs": len(board.jobs), "n_arrived": board.n_arrived, "n_done": board.n_done,
            "n_running": board.n_running, "n_waiting": board.n_waiting, "gpus_held": board.gpus_in_use,
            "n_gpus": board.cluster.n_gpus, "mean_jct_s": board.mean_jct_s, "n_decisions": board.n_decisions,
        }  # fmt: skip
        self._tell_views()

    def _tell_views(self) -> None:
        for listener in self._listeners:
            listener()

    def _clock_s(self) -> float:
        """Return how late it is: what was told is past, and the end is that of the record."""
        behind = self._n_folded < len(self._heard)
        finished = self._work.ended and self._work.ended != "stopped"
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
            self._tell_views()


LOOK_S: Final = 0.2
"""Between two looks at machines while no decisions are made."""


class RunWork:
    """What goes on in the thread of a run; it knows of no views.

    Parameters
    ----------
    experiment : Experiment
        All but the scheduler.
    scheduler : Scheduler
        It belongs to this run alone.
    name : str
        What to call it.
    backend : Backend
        Where jobs run; closed at the end where it can be.
    speedup : float
        Seconds of the run per second of waiting.
    heard : callable
        Called in the thread after a batch of events was added to `events`.
    over : callable
        Called in the thread at its end.

    Attributes
    ----------
    gate : RunGate
        Holds, steps and ends it.
    paced : Paced
        The backend with the clock of the wall.
    events : list of Events
        All batches so far.
    reasons : list of str
        Texts that events name by number.
    ended : str
        done, stopped or failed; empty while it goes on.
    exception : BaseException or None
        What made it fail.
    """

    def __init__(
        self,
        experiment: Experiment,
        scheduler: Scheduler,
        *,
        name: str,
        backend: Backend,
        speedup: float,
        heard: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self.experiment, self.scheduler, self.name = experiment, scheduler, name
        self.backend, self.paced, self.gate = backend, Paced(backend, speedup=speedup), RunGate()
        self.events: list[Events] = []
        self.reasons: list[str] = []
        self.ended = ""
        self.exception: BaseException | None = None
        self.thread: threading.Thread | None = None
        self._heard, self._over = heard, over
        self._info: RunInfo | None = None
        self._began = self._wall_s = math.nan

    def begin(self) -> bool:
        """Start the thread; False: it was started before."""
        if self.thread is not None:
            return False
        self._began = time.monotonic()
        self.thread = threading.Thread(target=self._work, name=f"labkit {self.name}", daemon=True)
        self.thread.start()
        return True

    @property
    def live(self) -> bool:
        """True where jobs really train: their time cannot be held or hurried."""
        return self.paced.live

    def info(self) -> RunInfo:
        """Return the request of the run, as its record has it."""
        return replace(self._info or self._new_info(), wall_s=self._wall_s if self.ended else self._since_s())

    def _since_s(self) -> float:
        return time.monotonic() - self._began

    def _new_info(self) -> RunInfo:
        info = self.experiment.info(self.scheduler, name=self.name)
        return replace(info, backend="testbed") if self.live else info

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
        self._wall_s = self._since_s()
        self.ended = ended
        self._over()

    def _run(self) -> str:
        self._info = self._new_info()
        observers: list[Callable[[Events], None]] = [self._hear]
        if isinstance(self.backend, OnMachines):
            observers.append(self.backend.note)
            self.backend.reasons = self.reasons
        session = self.experiment.session(
            self.scheduler, observers=observers, backend=self.paced, reasons=self.reasons
        )  # fmt: skip
        while not session.done and self._may_go(session):
            session.step(self.scheduler.schedule(session.snapshot()))
        return "done" if session.done else "stopped"

    def _may_go(self, session: Session) -> bool:
        """Wait while the run is paused; return whether a decision is to be made then."""
        while self.gate.shut and not session.done:
            if self.live:
                session.look(LOOK_S)
            else:
                self.gate.wait()
        return self.gate.pass_through() and not session.done

    def _let_go(self) -> None:
        """Close a backend that can be closed: machines are let go of."""
        close = getattr(self.backend, "close", None)
        if close is not None:
            close()

    def _hear(self, batch: Events) -> None:
        if len(batch):
            self.events.append(batch)
            self._heard()


class RunGate:
    """Steered from any thread; the run's thread waits at it before each decision."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._paused, self._tickets = False, 0
        self.stopping = False
        """Whether the run is to end."""

    def open(self) -> None:
        """Let decisions be made."""
        self._change(paused=False, tickets=0)

    def close(self) -> None:
        """Let no decision be made until `open` or `admit`."""
        self._change(paused=True, tickets=0)

    def admit(self) -> None:
        """Let one decision be made, and no further one."""
        self._change(paused=True, tickets=self._tickets + 1)

    def stop(self) -> None:
        """End all waiting: no decision is made any more."""
        with self._turn:
            self.stopping = True
            self._turn.notify_all()

    def _change(self, *, paused: bool, tickets: int) -> None:
        with self._turn:
            self._paused, self._tickets = paused, tickets
            self._turn.notify_all()

    @property
    def shut(self) -> bool:
        """Whether the run has to wait."""
        return self._paused and not self._tickets and not self.stopping

    def wait(self) -> None:
        """Wait while it is shut."""
        with self._turn:
            self._turn.wait_for(lambda: not self.shut)

    def pass_through(self) -> bool:
        """Take the right to one decision; False: the run is to stop."""
        with self._turn:
            self._tickets = max(self._tickets - 1, 0)
            return not self.stopping


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def one_line(error: BaseException) -> str:
    """Return an error in one line; one that labkit did not raise on purpose, with the place.

    >>> from labkit.core.errors import InputError
    >>> one_line(InputError("unknown cluster 'dem'."))
    "unknown cluster 'dem'."
    """
    text = " ".join(str(error).split())
    if isinstance(error, LabkitError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.name == "schedule"), frames[-1] if frames else None)
    return f"{type(error).__name__}: {text}" + (f" (in {place.name}, line {place.lineno})." if place else "")

"""The thread of a live run: a scheduler is asked, time passes, and what happens is heard."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from labkit.core.errors import StoppedError
from labkit.core.events import Events
from labkit.core.protocols import Backend, Scheduler
from labkit.experiment import Experiment, Session
from labkit.experiment.machines import OnMachines
from labkit.notebook.gate import RunGate
from labkit.results import RunInfo
from labkit.simulator import Paced

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
        """Return what was asked, as the record of a run has it."""
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
        """Wait while the run is paused; tell whether a decision is to be made then."""
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

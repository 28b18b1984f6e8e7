"""A training from its beginning or from where it was stopped: kept each few updates, logged, and stopped in order."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.core.text import human_s
from labkit.experiment.fitting import refuse_unfit
from labkit.learning.logs import TrainingLog, row_of
from labkit.learning.training import TrainingDivergedError, Trains, Update
from labkit.speed.tabled import ByCounts

if TYPE_CHECKING:
    from labkit.learning.env import ExperimentOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Where a training is kept, and how often.

    Attributes
    ----------
    out : Path
        The weights; beside them `.state`, from which it goes on, and `.csv`, its log.
    source : str
        The command, for the weights.
    each : int
        Updates after which both are written.
    log : Path or None
        Folder of TensorBoard's event files.
    say : callable
        Hears a line now and then.
    """

    out: Path
    source: str
    each: int = 10
    log: Path | None = None
    say: Callable[[str], None] = print

    @property
    def state(self) -> Path:
        """From which it goes on."""
        return self.out.with_suffix(".state")

    @property
    def table(self) -> Path:
        """Its log."""
        return self.out.with_suffix(".csv")

    def run(self, trainer: Trains) -> bool:
        """Train to the end; return False if a signal stopped it before (SIGINT, SIGTERM), after the update it was in.

        Raises
        ------
        LabkitError
            If a loss is not finite; the weights are those of the last update before.
        """
        if self.state.exists():
            state = read_state(self.state)
            try:
                trainer.go_on(state)
            except InputError as error:
                raise InputError(f"{self.state}: {error}") from None
            self.say(f"going on after {trainer.n_done} of {trainer.n_updates} updates")
        pace: deque[float] = deque([time.monotonic()], maxlen=21)
        with TrainingLog(self.table, folder=self.log, n_done=trainer.n_done) as log, _asked_to_stop() as asked:
            if log.missing:
                self.say(f"note: {log.missing}")
            try:
                for update in trainer.updates():
                    log.write(update)
                    pace.append(time.monotonic())
                    over = trainer.n_done == trainer.n_updates
                    if trainer.n_done % self.each == 0 or over or asked:
                        self._keep(trainer)
                        self.say(line(update, n_updates=trainer.n_updates, left_s=_left_s(pace, trainer)))
                    if asked and not over:
                        return False
            except TrainingDivergedError as error:
                trainer.weights(self.source).save(self.out)
                raise LabkitError(f"{error} They are in {self.out}.") from None
        return True

    def _keep(self, trainer: Trains) -> None:
        """Write weights and state, each whole or not at all."""
        import torch

        trainer.weights(self.source).save(self.out)
        temporary = self.state.with_suffix(".state.tmp")
        torch.save(trainer.state(), temporary)
        temporary.replace(self.state)


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Yield what holds the number of a signal that asked to stop, once; the second one ends the process at once."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def take_note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, take_note)
    except ValueError:  # only the main thread may set handlers
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _left_s(pace: deque[float], trainer: Trains) -> float:
    """Return the seconds that are left at the pace of the last updates."""
    return (pace[-1] - pace[0]) / max(len(pace) - 1, 1) * (trainer.n_updates - trainer.n_done)


def line(update: Update, *, n_updates: int, left_s: float) -> str:
    """Return the line that tells how far a training is."""
    row = row_of(update)
    left = f"about {human_s(left_s)} left" if row["update"] < n_updates else "done"
    return (
        f"{row['update']:>5} of {n_updates} {update.kind:6} mean JCT {update.mean_jct:6.3f} slots, entropy "
        f"{update.entropy:4.2f}, {update.slots:>9,} slots seen, {update.cpu_s:5.0f} CPU s, {left}"
    )


def refuse_unfit_episodes(experiments: ExperimentOf, *, n: int = 20) -> None:
    """Raise if a job fits no machine in one of some episodes, or no teacher can tell how fast it would be.

    Raises
    ------
    InputError
        It names the job, or the speeds.
    """
    rng = np.random.default_rng(0)
    for _ in range(n):
        made = experiments(rng)
        refuse_unfit(made.jobs, made.cluster, made.speed.runs_on())
        if not isinstance(made.speed, ByCounts):
            raise InputError(
                f"the teacher cannot run trace {made.jobs.name}: it compares gangs by speeds that depend on numbers of "
                f"tasks alone, and here they are {made.speeds}. Give measured ones (--throughputs FILE)."
            )


def read_state(path: Path) -> dict[str, Any]:
    """Return a state.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    import pickle

    import torch

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{path}: not the state of a training ({reason}); delete it to begin anew.") from None
    return state

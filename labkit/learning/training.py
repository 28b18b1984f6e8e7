"""The one loop of all trainings: updates one by one, logged, kept each few, stopped in order, gone on with.

A trainer is a `Training`: it says what a lesson and a round are, and what is kept of them. That of one network with
one optimizer is a `NetworkTraining`. `Course` runs it to its end.
"""

from __future__ import annotations

import csv
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.core.files import write_atomically
from labkit.core.text import human_s
from labkit.experiment.fitting import refuse_unfit
from labkit.schedulers import make
from labkit.speed.tabled import ByCounts
from labkit.system.release import how_to_get
from labkit.system.threads import one_thread

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

    from labkit.learning.env import ExperimentOf


@dataclass(frozen=True, slots=True)
class Update:
    """What came of an update."""

    kind: str
    """"lesson" or "round"."""
    number: int
    """How many there were before."""
    slots: int
    """Slots that were decided in training so far."""
    mean_jct: float
    """Of its episodes, in slots."""
    loss: float
    entropy: float
    """`loss` and `entropy`: of the last part of its last epoch."""
    cpu_s: float
    """Processor time of training so far, in seconds."""


class TrainingDivergedError(LabkitError):
    """A loss was not finite; the policy is as it was before that update."""


class SavableWeights(Protocol):
    """Weights that can be written."""

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""


Outcome = tuple[float, float, float]
"""Of an update: mean JCT in slots, loss and entropy."""


class Trains(ABC):
    """What trains a policy, here or on several clusters: first lessons, in which a teacher is imitated, then rounds."""

    n_done: int = 0
    slots: int = 0
    """`n_done` and `slots`: updates, and slots that it learned from, so far."""

    @property
    @abstractmethod
    def n_of_kind(self) -> tuple[int, int]:
        """How many lessons and rounds there are."""

    @property
    def n_updates(self) -> int:
        """How many updates there are in all."""
        return sum(self.n_of_kind)

    def updates(self) -> Iterator[Update]:
        """Yield what came of each update that is left; after each, `state` is worth keeping."""
        while self.n_done < self.n_updates:
            yield self.update()

    @abstractmethod
    def update(self) -> Update:
        """Learn from fresh episodes.

        Raise TrainingDivergedError if a loss was not finite; the policy is as it was before; InputError if a teacher
        cannot run a trace.
        """

    @abstractmethod
    def weights(self, source: str) -> SavableWeights:
        """Return the policy as it is, for a scheduler."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""

    @abstractmethod
    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state; InputError if it is that of another training."""


class Training(Trains):
    """A trainer in one process."""

    cpu_s: float = 0.0
    """Processor time so far, in seconds."""
    _rng: np.random.Generator

    def _lesson(self, left: float) -> Outcome:
        """Imitate a teacher, and count slots. `left`: 1 in the first lesson, later less."""
        raise NotImplementedError

    @abstractmethod
    def _round(self, left: float) -> Outcome:
        """Learn from what came of decisions; the rest as in `_lesson`."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return the identity of this training: options and inputs that distinguish it from others."""

    @abstractmethod
    def _learned(self) -> dict[str, Any]:
        """Return the learned state so far, for `torch.save`."""

    @abstractmethod
    def _relearn(self, learned: dict[str, Any]) -> None:
        """Take what a training like this one had learned."""

    def _learn_once(self) -> tuple[str, Outcome]:
        (n_lessons, n_rounds), k = self.n_of_kind, self.n_done
        if k < n_lessons:
            return "lesson", self._lesson(1 - k / n_lessons)
        return "round", self._round(1 - (k - n_lessons) / n_rounds)

    def update(self) -> Update:
        """Learn from fresh episodes, here."""
        began_s, k = time.process_time(), self.n_done
        with one_thread():
            kind, (mean_jct, loss, entropy) = self._learn_once()
        self.n_done += 1
        self.cpu_s += time.process_time() - began_s
        return Update(kind, k, self.slots, mean_jct, loss, entropy, self.cpu_s)

    def state(self) -> dict[str, Any]:
        """Return the state of the training: identity, learned weights, and positions of draws and counts."""
        return {
            "asked": self._identity(), "n_done": self.n_done, "slots": self.slots, "cpu_s": self.cpu_s,
            "rng": self._rng.bit_generator.state, "learned": self._learned(),
        }  # fmt: skip

    def go_on(self, state: dict[str, Any]) -> Self:
        """Go on from a state of a training like this one."""
        refuse_other(state.get("asked", {}), expected=self._identity())
        self._relearn(state["learned"])
        self._rng.bit_generator.state = state["rng"]
        self.n_done, self.slots, self.cpu_s = state["n_done"], state["slots"], state["cpu_s"]
        return self


class Schedule(Protocol):
    """How many updates there are of each kind."""

    @property
    def n_lessons(self) -> int:
        """Updates in which a teacher is imitated."""

    @property
    def n_rounds(self) -> int:
        """Updates of reinforcement."""


class NetworkTraining(Training):
    """A trainer of one network with one optimizer."""

    seed: int
    """Of first weights and of all that is drawn."""
    recipe: Schedule
    """How many lessons and rounds there are."""
    policy: nn.Module
    """The network."""
    _optimizer: optim.Optimizer

    def _begin(self, network: Callable[[], nn.Module], optimizer: Callable[..., optim.Optimizer]) -> None:
        """Draw the first weights of the network that `network` makes."""
        import torch

        torch.manual_seed(self.seed)
        self.policy = network()
        self._optimizer = optimizer(self.policy.parameters())
        self._rng = np.random.default_rng(self.seed)

    @property
    def n_of_kind(self) -> tuple[int, int]:
        """How many lessons and rounds there are."""
        return self.recipe.n_lessons, self.recipe.n_rounds

    def _learn_once(self) -> tuple[str, Outcome]:
        before, k = copied(self.policy), self.n_done
        kind, (mean_jct, loss, entropy) = super()._learn_once()
        if not (np.isfinite(loss) and np.isfinite(mean_jct)):
            self.policy.load_state_dict(before)
            raise TrainingDivergedError(f"the loss of update {k + 1} is {loss}; the weights are those of update {k}.")
        return kind, (mean_jct, loss, entropy)

    def _seed(self) -> int:
        """Return a seed, of a trace or of draws."""
        return int(self._rng.integers(1 << 31))

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _step(self, loss: Tensor, *, frozen: tuple[str, ...] = ()) -> None:
        """Change the weights, but those that are frozen, by a loss that is finite."""
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for name in frozen:
            getattr(self.policy, name).grad = None
        self._apply()

    def _apply(self, *, most: float = 0.5) -> None:
        """Take a step along the gradients, of which the norm is at most `most`."""
        from torch import nn

        nn.utils.clip_grad_norm_(self.policy.parameters(), most)
        self._optimizer.step()

    def _learned(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.policy.load_state_dict(learned["policy"])
        self._optimizer.load_state_dict(learned["optimizer"])


def refuse_other(stored: Mapping[str, Any], *, expected: Mapping[str, Any]) -> None:
    """Raise if a training to go on with is not the one that is expected.

    Raise InputError, which names the first thing that differs.
    """
    for name, value in expected.items():
        found = stored.get(name)
        if found == value:
            continue
        if isinstance(found, Mapping) and isinstance(value, Mapping):
            key = next(key for key in {**found, **value} if found.get(key) != value.get(key))
            name, found, value = f"{name}'s {key}", found.get(key), value.get(key)
        elif name not in stored:
            raise InputError(
                f"the training to continue with is that of another kind of policy: it has no {name}. Give it the "
                "same options, or another file."
            )
        raise InputError(
            f"the training to continue with has {name} {found!r:.80}; expected {value!r:.80}. "
            "Give it the same options, or another file."
        )


def copied(policy: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network as they are now."""
    return {name: value.clone() for name, value in policy.state_dict().items()}


COLUMNS: Final = ("update", "kind", "slots", "mean_jct_slots", "loss", "entropy", "cpu_s")
CURVES: Final = ("mean_jct_slots", "loss", "entropy", "slots")
"""Drawn in TensorBoard, by update."""


class TrainingLog:
    """Writes the rows of a training; one that goes on drops those that it makes again.

    Parameters
    ----------
    table : path
        The CSV file.
    folder : path, optional
        Of TensorBoard's event files.
    n_done : int
        Updates that were made before.
    """

    def __init__(self, table: Path, *, folder: Path | None = None, n_done: int = 0) -> None:
        self.missing = ""
        """What cannot be written, and why; empty: nothing."""
        kept = [row for row in read(table) if int(row["update"]) <= n_done] if n_done else []
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._file = table.open("a", newline="")
        self._rows = csv.writer(self._file)
        self._events = None if folder is None else self._opened(folder, n_done)

    def _opened(self, folder: Path, n_done: int) -> Any:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            self.missing = (
                f"{folder}: TensorBoard's files need tensorboardX ({how_to_get('tensorboardX')}); "
                "the CSV file has the same."
            )
            return None
        return SummaryWriter(str(folder), purge_step=n_done + 1)

    def write(self, update: Update) -> None:
        """Add what came of an update; a reader that follows the files sees it at once."""
        row = row_of(update)
        self._rows.writerow(row.values())
        self._file.flush()
        if self._events is not None:
            for name in CURVES:
                self._events.add_scalar(f"{update.kind}/{name}", row[name], row["update"])
            self._events.flush()

    def close(self) -> None:
        """Write no more."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def row_of(update: Update) -> dict[str, Any]:
    """Return the row of an update, with the numbers of `COLUMNS`; updates count from 1."""
    told = dict(zip((field.name for field in fields(update)), astuple(update), strict=True))
    return {
        "update": told["number"] + 1, "kind": told["kind"], "slots": told["slots"],
        "mean_jct_slots": told["mean_jct"], "loss": told["loss"], "entropy": told["entropy"],
        "cpu_s": round(told["cpu_s"], 2),
    }  # fmt: skip


def read(table: Path) -> list[dict[str, str]]:
    """Return the rows of a log; none where there is no such file. A last row that was cut off is left out.

    Raises
    ------
    InputError
        If it is something else.
    """
    rows: list[dict[str, str]] = []
    with suppress(FileNotFoundError), table.open(newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader)
        if found and tuple(reader.fieldnames or ()) != COLUMNS:
            raise InputError(f"{table} holds {', '.join(reader.fieldnames or ())}; expected {', '.join(COLUMNS)}.")
        rows = [row for row in found if all(row[name] not in (None, "") for name in COLUMNS)]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Where a training is kept, and how often."""

    out: Path
    """The weights; beside them `.state`, from which it goes on, and `.csv`, its log."""
    source: str
    """The command, for the weights."""
    each: int = 10
    """Updates after which both are written."""
    log: Path | None = None
    """Folder of TensorBoard's event files."""
    say: Callable[[str], None] = print
    """Hears a line now and then."""

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

        Raise LabkitError if a loss is not finite; the weights are those of the last update before.
        """
        if self.state.exists():
            state = read_state(self.state)
            try:
                trainer.go_on(state)
            except InputError as error:
                raise InputError(f"{self.state}: {error}") from None
            self.say(f"going on after {trainer.n_done} of {trainer.n_updates} updates")
        pace: deque[float] = deque([time.monotonic()], maxlen=21)
        with TrainingLog(self.table, folder=self.log, n_done=trainer.n_done) as log, _stop_requests() as stops:
            if log.missing:
                self.say(f"note: {log.missing}")
            try:
                for update in trainer.updates():
                    log.write(update)
                    pace.append(time.monotonic())
                    over = trainer.n_done == trainer.n_updates
                    if trainer.n_done % self.each == 0 or over or stops:
                        self._keep(trainer)
                        self.say(line(update, n_updates=trainer.n_updates, left_s=_left_s(pace, trainer)))
                    if stops and not over:
                        return False
            except TrainingDivergedError as error:
                trainer.weights(self.source).save(self.out)
                raise LabkitError(f"{error} They are in {self.out}.") from None
        return True

    def _keep(self, trainer: Trains) -> None:
        """Write weights and state, each whole or not at all."""
        import torch

        trainer.weights(self.source).save(self.out)
        write_atomically(self.state, lambda temporary: torch.save(trainer.state(), temporary))


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Yield what holds the number of a signal that asked to stop, once; the second one ends the process at once."""
    stops: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def take_note(number: int, _frame: FrameType | None) -> None:
        stops.append(number)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, take_note)
    except ValueError:  # only the main thread may set handlers
        before = {}
    try:
        yield stops
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


def refuse_unfit_episodes(experiments: ExperimentOf, *, n: int = 20, counts_alone: bool = False) -> None:
    """Raise if one of some episodes cannot be played: a job fits no machine or exceeds its quota, say.

    Raise InputError, which names the job, or the speeds.

    `counts_alone`: the teacher compares gangs by speeds that depend on numbers of tasks alone.
    """
    rng = np.random.default_rng(0)
    for _ in range(n):
        made = experiments(rng)
        refuse_unfit(made.jobs, made.cluster, made.speed.runs_on())
        if not counts_alone:
            made.session(make("fifo"))
        elif not isinstance(made.speed, ByCounts):
            raise InputError(
                f"the teacher cannot run trace {made.jobs.name}: it compares gangs by speeds that depend on numbers of "
                f"tasks alone, and here they are {made.speeds}. Give measured ones (--throughputs FILE)."
            )


def read_state(path: Path) -> dict[str, Any]:
    """Return a state; InputError if it cannot be read."""
    import pickle

    import torch

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{path}: not the state of a training ({reason}); delete it to begin anew.") from None
    return state

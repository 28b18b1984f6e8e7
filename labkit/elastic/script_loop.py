"""Scripts with a loop of their own: `with labkit.elastic(model, optimizer, loader, steps=100) as job`.

Run by Python, such a script trains alone. `labkit train script.py` runs it up to its loop, starts a job, and lets it go
on with the trained model. Each worker runs it up to its loop, too, and computes the losses of its shards in it. So a
script is a program that is sent as its text: what it makes before the loop must be the same in each process, which is
checked.
"""

from __future__ import annotations

import copy
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Unpack

from labkit.core.errors import InputError, unknown
from labkit.elastic.errors import ChangedError
from labkit.elastic.loop_body import BodyCheck, one_or_several
from labkit.elastic.models.sizes import whole
from labkit.elastic.script_text import check_last_loop, check_one_loop
from labkit.system.threads import one_thread

if TYPE_CHECKING:
    from labkit.elastic.options import LoopOptions
    from labkit.elastic.plain import MicroBatch

PROCESSES: Final = frozenset(
    {
        "workers", "servers", "most_servers", "standby", "lease_s", "start_s", "patience_s", "restarts", "place",
        "restarts_within_s", "folder", "detached", "resume", "network", "addresses", "ports", "sites", "loads_every_s",
        "measure_every_s", "partition", "proof", "save_every", "loaders", "devices",
    }
)  # fmt: skip
"""Options without effect where a script trains alone."""
TOGETHER: Final = ("validate", "sync", "state")
"""Options that a script cannot have alone; it says so."""
SET_HANDLER: Final = signal.signal


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over; `state` is the trained `state_dict`."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    """The script has come to its end."""


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """A request of a script to have its handler of a signal set, which Python lets the main thread do alone."""

    number: int
    handler: Any

    def answer(self) -> Any:
        """Return the handler before; an error that is to be raised in the script."""
        try:
            return SET_HANDLER(self.number, self.handler)
        except (OSError, TypeError, ValueError) as error:
            return error


class Turns:
    """Two threads of which one runs at a time: that of a script, and the one that asks it for losses.

    `module` is that of the script, `__main__` while it is alone in its process.
    """

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self._asked: SimpleQueue[Any] = SimpleQueue()
        self._answered: SimpleQueue[Any] = SimpleQueue()

    def ask(self, question: Any) -> Any:
        """Let the script go on until its next answer; raise what it raised."""
        self._asked.put(question)
        return self.wait()

    def wait(self) -> Any:
        """Return the next answer of the script."""
        while isinstance(answer := self._answered.get(), HandlerRequest):
            self._asked.put(answer.answer())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self, answer: Any) -> None:
        """Give the last answer."""
        self._answered.put(answer)

    def answer(self, answer: Any) -> Any:
        """Give an answer, and return the next question."""
        self._answered.put(answer)
        return self._asked.get()


THREAD = threading.local()
"""Has `turns` in the thread of a script that is run for a job."""


class ScriptLoop:
    """The training of a script with a loop of its own; see `labkit.elastic`.

    Parameters
    ----------
    model : Module
        The model, which the body of the loop calls.
    optimizer : Optimizer or sequence of these
        Of torch, over the model's parameters.
    loader : DataLoader, dataset, or tuple of tensors
        The samples. The body gets batches of the size of a logical shard.
    steps, epochs : int
        Updates of the parameters, or passes over the samples; one of the two.
    scheduler : LRScheduler or sequence of these, optional
        Of torch.
    options
        Further arguments of `labkit.elastic.start`; what is typed with `labkit train` counts more.

    Attributes
    ----------
    update : int
        Number of the update that the present batch is for, from 0.
    epoch : int
        Number of the epoch, from 0.
    starting : bool
        Whether this process is the one that was started by the user: what is to happen once, happens there.

    Examples
    --------
    >>> import torch, labkit.elastic
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer, samples = torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(8, 2), torch.zeros(8, 1))
    >>> with labkit.elastic(model, optimizer, samples, steps=20, batch=8, shards=2) as job:
    ...     for x, y in job:
    ...         job.step(torch.nn.functional.mse_loss(model(x), y))
    >>> bool(model(torch.ones(1, 2)).abs() < 0.01)
    True
    """

    def __init__(
        self, model: Any, optimizer: Any, loader: Any, *, steps: int | None = None, epochs: int | None = None,
        scheduler: Any = None, **options: Unpack[LoopOptions],
    ) -> None:  # fmt: skip
        if (steps is None) == (epochs is None):
            raise InputError(f"steps is {steps}, epochs {epochs}; expected one of them: updates, or passes over data.")
        self.model, self.optimizer, self.scheduler, self.options = model, optimizer, scheduler, options
        self.data = _as_samples(loader)
        if (batch := getattr(THREAD, "batch", None)) is not None:
            from labkit.elastic.loading import with_batch_size

            self.data, options["batch"] = with_batch_size(self.data, batch), batch
        self.steps = self._of_epochs(epochs) if steps is None else whole("steps", steps, least=1)
        self.update = self.epoch = 0
        self._turns: Turns | None = getattr(THREAD, "turns", None)
        self.starting: bool = getattr(THREAD, "starting", True)
        self._begun = self._over = self._out = False
        self._returned: Any = None
        self._checked: BodyCheck | None = None
        self._told = 0
        _check_options(options, optimizer)
        if not hasattr(model, "named_parameters"):
            raise InputError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module. Several are one: "
                "torch.nn.ModuleDict({'d': d, 'g': g})."
            )

    def _of_epochs(self, epochs: Any) -> int:
        batch = self.options.get("batch") or getattr(self.data, "batch_size", None) or BATCH
        try:
            n = len(getattr(self.data, "sampler", self.data))
        except TypeError:
            raise InputError(f"epochs is {epochs}, of a stream whose length is not known; expected steps=.") from None
        passes = whole("epochs", epochs, least=1)
        drops = getattr(self.data, "drop_last", False)
        return max(1, passes * (n // int(batch)) if drops else passes * n // int(batch))

    def __enter__(self) -> ScriptLoop:
        frame = sys._getframe(1)
        check_one_loop(frame.f_code.co_filename, frame.f_lineno)
        if self._turns is not None:
            check_last_loop(frame)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._turns is None or self._over or not self._begun:
            return
        why = error or InputError(
            f"the loop of the script ended at update {self.update}, by break or return; expected to go through all "
            f"{self.steps} updates: Job.stop and Validation(patience=...) end a job early."
        )
        self._turns.answer(why)  # which waits for ever: what follows the loop is not for workers

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise InputError(
                "a second loop over the same job; expected one loop over all epochs: labkit.elastic(..., epochs=10), "
                "and job.epoch in it."
            )
        self._begun = True
        self._checked = BodyCheck(self.model, (self.optimizer, self.scheduler), self.data, self)
        return self._alone() if self._turns is None else self._hosted(self._turns)

    def step(self, loss: Any, weight: Any = None, **metrics: Any) -> None:
        """Have a batch's part of the update made, instead of `backward`, `optimizer.step` and `zero_grad`.

        Parameters
        ----------
        loss : Tensor
            The mean of the losses of the batch; with `weight` their sum.
        weight : float or Tensor, optional
            What the sum is divided by, together with those of the other shards: tokens that count, class weights.
        metrics
            Numbers by name that are to be seen beside the loss.

        Raises
        ------
        InputError
            If it is called twice for a batch, or outside the loop.
        """
        if not self._out or self._returned is not None:
            raise ChangedError(
                "job.step(loss) is called once for each batch, in the loop over the job. Add up several losses; of two "
                "optimizers in turn give a list, and the loss of number job.update % 2."
            )
        self._returned = (loss, metrics) if weight is None else (loss, weight, metrics)

    def auto(self, loss: Any, **options: Any) -> Any:
        """Train by `labkit.auto` and its options; `loss(model, batch)` takes the place of the loop's body.

        Raise InputError if the job trains already.
        """
        if self._begun or self._turns is not None:
            raise InputError(
                "job.auto(loss) of a job that trains already; expected it in place of the loop. A script with a loop "
                "configures itself by labkit train FILE.py --auto."
            )
        return import_module("labkit").auto(self, loss=loss, steps=self.steps, **options)  # of a layer above

    def _body(self, batch: MicroBatch) -> Iterator[Any]:
        """Yield a batch to the body of the loop."""
        self.update, self.epoch = batch.step, batch.epoch
        self._out, self._returned = True, None
        assert self._checked is not None  # `__iter__` has made it
        try:
            for _ in self._checked.around(last=self.update + 1 == self.steps):
                yield batch.batch
        except ChangedError as error:
            raise ChangedError(f"update {self.update}: {error}") from None
        self._tell_changed()
        self._out = False
        if self._returned is None:
            raise ChangedError(f"the body of the loop came to its end at update {self.update} without job.step(loss).")

    def _hosted(self, turns: Turns) -> Iterator[Any]:
        import torch

        asked = turns.answer(self)
        rates = None if self.starting else WorkerRates(self.optimizer, self.scheduler, self.options)
        while not isinstance(asked, Ended):
            if rates is not None:
                rates.at(asked.batch.step)
            if torch.get_num_threads() != asked.n_threads:  # of OpenMP, which has a number for each thread
                torch.set_num_threads(asked.n_threads)
            with ExitStack() as around:
                for context in asked.around:
                    around.enter_context(context)
                yield from self._body(asked.batch)
            asked = turns.answer(self._returned)
        self.model.load_state_dict(asked.state)
        self._over = True

    def _alone(self) -> Iterator[Any]:
        from labkit.elastic.plain import plain_rounds
        from labkit.elastic.protocol.program import FLOAT32
        from labkit.elastic.worker.forward import cast, parted

        self._tell_alone()
        rounds = plain_rounds(self.model, self.data, self.training, self.steps)
        with one_thread():  # as workers
            try:
                asked = next(rounds)
                while True:
                    with cast("cpu", self.options.get("precision", FLOAT32)):
                        yield from self._body(asked)
                    asked = rounds.send(parted(self._returned))
            except StopIteration:
                self._over = True

    @property
    def changed(self) -> list[str]:
        """Names of variables that the body of the loop changes for itself."""
        return [] if self._checked is None else self._checked.changed

    def _tell_changed(self) -> None:
        new, self._told = self.changed[self._told :], len(self.changed)
        if new and self._checked is not None and (self._turns is None or self._checked.n > OF_PROOF):
            names = ", ".join(new[:MOST_NAMED])
            print(
                f"labkit: the body of the loop changes {names}: each worker would have its own. job.update counts "
                "updates; job.step(loss, name=number) keeps numbers.",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def _tell_alone(self) -> None:
        for name in TOGETHER:
            if name in self.options:
                raise InputError(f"{name}= needs processes; expected labkit train {_file()}, or a loop without it.")
        shards = int(self.options.get("shards", 8))
        without = sorted(PROCESSES & self.options.keys())
        more = f"; {', '.join(without)}: without effect" if without else ""
        print(
            f"labkit: trains alone, in this process, in batches of 1/{shards} of an update; labkit train {_file()} "
            f"trains it on workers and servers{more}.",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    @property
    def training(self) -> dict[str, Any]:
        """Arguments of `labkit.elastic.start` beside model, data and loss."""
        scheduler = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return {**self.options, "optimizer": self.optimizer, **scheduler}


class WorkerRates:
    """The schedulers of a script in a worker, stepped to the update that its body is for, as the body may read rates.

    `optimizers`, `schedulers`: one or several; functions that make one are left out. The updates themselves are made on
    servers, with schedulers of their own.
    """

    def __init__(self, optimizers: Any, schedulers: Any, options: Mapping[str, Any]) -> None:
        self._every = options.get("scheduler_every", 1)
        self._schedulers = [each for each in one_or_several(schedulers) if hasattr(each, "last_epoch")]
        self._groups = [group for each in one_or_several(optimizers) for group in getattr(each, "param_groups", ())]
        self._n = 0
        self._first = copy.deepcopy([each.state_dict() for each in self._schedulers])
        self._options = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]

    def at(self, update: int) -> None:
        """Step them to an update, from 0; back to the first one where it lies behind."""
        if not self._schedulers:
            return
        n = update // self._every
        if n < self._n:
            for scheduler, state in zip(self._schedulers, self._first, strict=True):
                scheduler.load_state_dict(copy.deepcopy(state))
            for group, options in zip(self._groups, self._options, strict=True):
                group.update(copy.deepcopy(options))
            self._n = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a scheduler is stepped before its optimizer, which is elsewhere
            while self._n < n:
                for scheduler in self._schedulers:
                    scheduler.step()
                self._n += 1


OF_PROOF: Final = 3
"""Bodies whose changes the proof at the start names; later ones each worker names itself."""
MOST_NAMED: Final = 3
"""Variables that a line names."""
BATCH: Final = 64
"""Samples of an update where neither options nor a DataLoader say it."""


def _as_samples(loader: Any) -> Any:
    from labkit.elastic.data import as_dataset

    return as_dataset(tuple(loader)) if isinstance(loader, tuple | list) else loader


def _file() -> str:
    name = Path(sys.argv[0]).name if sys.argv else ""
    return name if name.endswith(".py") else "FILE.py"


def _check_options(options: Mapping[str, Any], optimizer: Any) -> None:
    from inspect import signature

    from labkit.elastic.job_start import start

    known = [name for name in signature(start).parameters if name not in ("model", "data", "loss", "steps", "options")]
    for name in options:
        if name not in known and not isinstance(optimizer, str):
            raise unknown("option of labkit.elastic", name, known)

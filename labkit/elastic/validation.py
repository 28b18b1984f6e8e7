"""Validation while a job trains: what is measured, how states are compared, and when there is no use in going on."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import queue
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.checkpoint.resume import BEST, SCORE, Score, read_score, state_of
from labkit.elastic.checkpoint.store import Checkpoints
from labkit.elastic.controller.job_files import EVENTS, now
from labkit.elastic.controller.losses import encoded
from labkit.elastic.errors import OverError
from labkit.elastic.job_logs import read_events
from labkit.elastic.models.sizes import whole
from labkit.elastic.protocol.program import Program, Spec, check_data
from labkit.elastic.worker.forward import cast, clock_of, moved, parted

if TYPE_CHECKING:
    from torch import nn


class ValidationError(LabkitError):
    """The model, the data or the loss raised while a state was validated."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Measure the model on other samples while it trains; stop early; keep the best state.

    Attributes
    ----------
    data : object
        Samples, as those of `start`.
    every : int
        Steps between two validations.
    loss : callable, optional
        Takes (model, batch); returns a loss, or (loss, metrics by name), means over the batch. None: that of `start`.
    metric : str
        By which states are compared: "loss", or a metric.
    best : str
        "min" or "max": which values of it are better.
    patience : int, optional
        Validations in a row without a better value after which the job ends, its state saved. None: it never does.
    batch : int
        Samples of a forward pass.
    device : str
        Where the model computes, in the process that started the job.
    """

    data: Any
    every: int
    loss: Callable[[nn.Module, Any], Any] | None = None
    metric: str = "loss"
    best: str = "min"
    patience: int | None = None
    batch: int = 256
    device: str = "cpu"

    def check(self, program: Program, *, precision: str) -> None:
        """Raise InputError unless it can be carried out; its first batch is tried.

        Parameters
        ----------
        program : Program
            Of the job.
        precision : str
            Of the job.
        """
        whole("validate: every", self.every, least=1)
        whole("validate: batch", self.batch, least=1)
        if self.patience is not None:
            whole("validate: patience", self.patience, least=1)
        if self.best not in ("min", "max"):
            raise InputError(f"validate: best is {self.best!r}; expected 'min' or 'max'.")
        check_data(self.data)
        if not len(self.data):
            raise InputError("validate: data has no samples; expected at least one.")
        try:
            values = replace(self, data=_First(self)).measured(program, copy.deepcopy(program.model), precision)
        except ValidationError as error:
            raise InputError(str(error)) from error
        if self.metric not in values:
            raise InputError(f"validate: metric is '{self.metric}'; the loss function returns {', '.join(values)}.")

    def measured(
        self, program: Program, model: nn.Module, precision: str, *, over: threading.Event | None = None, step: int = 0
    ) -> dict[str, float]:
        """Return the mean of the loss and of each metric over all samples, in evaluation mode.

        Parameters
        ----------
        program : Program
            Has the loss if this has none.
        model : Module
            The state to measure.
        precision : str
            Of the job.
        over : Event, optional
            Ends it early once set.
        step : int
            Updates in the state.

        Raises
        ------
        ValidationError
            If data, model or loss raise.
        """
        import torch

        mine = replace(program, data=self.data, loss=self.loss or program.loss)
        model = model.to(self.device).eval()
        sums: dict[str, float] = defaultdict(float)
        weight, clock = 0.0, clock_of(mine.loss)(step=step, epoch=0)
        try:
            with torch.no_grad(), cast(self.device, precision):
                for first in range(0, len(self.data), self.batch):
                    indices = list(range(first, min(first + self.batch, len(self.data))))
                    parts = parted(mine.loss(model, moved(mine.batch(indices), self.device), **clock))
                    n = 1.0 if parts.weight is not None else len(indices)
                    sums["loss"] += float(parts.loss) * n
                    weight += len(indices) if parts.weight is None else parts.weight
                    for name, value in parts.metrics.items():
                        sums[name] += value * len(indices)
                    if over is not None and over.is_set():
                        break
        except Exception as error:
            raise ValidationError(f"validation raised {type(error).__name__}: {error}") from error
        totals = {"loss": weight or nan}
        return {name: value / totals.get(name, len(self.data)) for name, value in sums.items()}

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether a value is better than the best so far; None: there is none."""
        if not isfinite(value):
            return False
        return than is None or (value < than if self.best == "min" else value > than)


def checked_validation(validation: Validation | None, program: Program, *, save_every: int, precision: str) -> int:
    """Return the steps between two checkpoints of a job with this validation; InputError if it cannot be done."""
    if validation is None:
        return save_every
    if not isinstance(validation, Validation):
        raise InputError(f"validate is a {type(validation).__name__}; expected Validation(data=..., every=100).")
    validation.check(program, precision=precision)
    if save_every and validation.every % save_every:
        raise InputError(
            f"validate: every is {validation.every}, save_every {save_every}; expected a multiple of it, since saved "
            "states are measured."
        )
    return save_every or validation.every


class _First:
    def __init__(self, of: Validation) -> None:
        self._data, self._n = of.data, min(of.batch, len(of.data))
        if hasattr(of.data, "fetch"):
            self.fetch = of.data.fetch

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        return self._data[index]


QUEUED: Final = "to-validate"
"""Folder of states that are to be validated, in that of the job."""


class Validator:
    """Measures states of a job as they are saved, in two threads of the process that started it.

    One thread follows the job's events and sets saved states aside, by hard links, so that they outlast newer ones. The
    other one measures them, in order. Training does not wait for it.

    Parameters
    ----------
    folder : Path
        Of the job.
    spec : Spec
        Of the job.
    program : Program
        Of the job.
    validation : Validation
        What to measure.
    ended : Event
        Set when the job is over.
    stop : callable
        Ends the job, its state saved.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        program: Program,
        validation: Validation,
        *,
        ended: threading.Event,
        stop: Callable[[], None],
    ) -> None:
        self._folder, self._spec, self._program, self._validation = folder, spec, program, validation
        self._ended, self._stop = ended, stop
        self._cancelled = threading.Event()
        self.done = threading.Event()  # set when all states have been measured after the end of the job
        self.failure: ValidationError | None = None  # why it has ended the job
        known = read_score(folder)
        self._score = known if known is not None and known.metric == validation.metric else Score(validation.metric)
        self._last = -1
        self._saved: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        shutil.rmtree(folder / QUEUED, ignore_errors=True)
        self._set_aside_ = Checkpoints(
            folder / QUEUED, layout=spec.layout, optimizer=spec.checkpoints(folder).optimizer
        )  # fmt: skip
        for run, name in ((self._follow, "saved"), (self._run, "validation")):
            threading.Thread(target=run, name=name, daemon=True).start()

    def cancel(self) -> None:
        """Measure no more, since the folder of the job is to be removed; return when nothing uses it."""
        self._cancelled.set()
        self.done.wait()

    # --- the thread that follows the job

    def _follow(self) -> None:
        try:
            for version in self._versions():
                with contextlib.suppress(OSError):  # newer ones have replaced it, or the job was deleted
                    source = self._spec.checkpoints(self._folder).path(version)
                    shutil.copytree(source, self._set_aside_.path(version), copy_function=os.link)
                    self._saved.put(version)
        finally:
            self._saved.put(None)

    def _versions(self) -> Iterator[int]:
        every = self._validation.every
        last = None
        for event in read_events(self._folder / EVENTS, ended=self._ended, follow=True):
            if event["event"] == "began" and last is None:
                last = int(event["version"])
            if event["event"] != "saved" or last is None:
                continue
            version = int(event["version"])
            if version > last and (version // every > last // every or version == self._spec.n_steps):
                last = version
                yield version

    # --- the thread that measures

    def _run(self) -> None:
        try:
            while (version := self._saved.get()) is not None and not self._cancelled.is_set():
                if not self._stopped():
                    self._validate(version)
        except ValidationError as error:
            self.failure = error
            self._end()
        finally:
            shutil.rmtree(self._folder / QUEUED, ignore_errors=True)
            self.done.set()

    def _stopped(self) -> bool:
        patience = self._validation.patience
        return patience is not None and self._score.n_worse >= patience

    def _validate(self, version: int) -> None:
        """Measure a state, keep it if it is the best, and end the job if no better one comes any more."""
        began = time.perf_counter()
        model = state_of(self._set_aside_, version, self._program.model)
        try:
            values = self._validation.measured(
                self._program, model, self._spec.precision, over=self._cancelled, step=version
            )
        except ValidationError as error:
            raise ValidationError(f"step {version}: {error}") from error
        if self._cancelled.is_set():
            return
        value = values.get(self._validation.metric, float("nan"))
        better = self._validation.is_better(value, self._score.value)
        if better:
            self._score = Score(self._validation.metric, version, value, values)
            self._keep(version)
        else:
            self._score.n_worse += 1
        self._set_aside_.disk.remove(self._set_aside_.path(version))
        self._tell(
            version=version, values={name: encoded(each) for name, each in values.items()}, best=better,
            stops=self._stopped(), seconds=time.perf_counter() - began,
        )  # fmt: skip
        if self._stopped():
            self._end()

    def _keep(self, version: int) -> None:
        """Make a state the best one in the folder of the job: whole, or not at all."""
        best, new = self._folder / BEST, self._folder / f".{BEST}"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(
            self._set_aside_.path(version), new / self._set_aside_.path(version).name, copy_function=os.link
        )
        (new / SCORE).write_text(json.dumps(asdict(self._score)))
        shutil.rmtree(best, ignore_errors=True)
        new.rename(best)

    def _tell(self, **columns: Any) -> None:
        """Append the event `validated`: the file is opened for appending here and in the controller, a line at once."""
        line = json.dumps({"time": now(), "event": "validated", **columns}).encode() + b"\n"
        with (self._folder / EVENTS).open("ab", buffering=0) as file:
            file.write(line)

    def _end(self) -> None:
        with contextlib.suppress(OverError):
            self._stop()

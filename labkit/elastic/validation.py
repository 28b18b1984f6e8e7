"""Validation while a job trains: what is measured, how states are compared, and when there is no use in going on."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.models.sizes import whole
from labkit.elastic.protocol.program import Program, check_data
from labkit.elastic.worker.forward import cast, moved, parted

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
        self, program: Program, model: nn.Module, precision: str, *, over: threading.Event | None = None
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

        Raises
        ------
        ValidationError
            If data, model or loss raise.
        """
        import torch

        mine = replace(program, data=self.data, loss=self.loss or program.loss)
        model = model.to(self.device).eval()
        sums: dict[str, float] = defaultdict(float)
        weight = 0.0
        try:
            with torch.no_grad(), cast(self.device, precision):
                for first in range(0, len(self.data), self.batch):
                    indices = list(range(first, min(first + self.batch, len(self.data))))
                    found = parted(mine.loss(model, moved(mine.batch(indices), self.device)))
                    n = 1.0 if found.weight is not None else len(indices)
                    sums["loss"] += float(found.loss) * n
                    weight += len(indices) if found.weight is None else found.weight
                    for name, value in found.metrics.items():
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
    """The first batch of some data."""

    def __init__(self, of: Validation) -> None:
        self._data, self._n = of.data, min(of.batch, len(of.data))
        if hasattr(of.data, "fetch"):
            self.fetch = of.data.fetch

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

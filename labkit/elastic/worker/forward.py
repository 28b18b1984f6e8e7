"""The loss of some samples, with its own random seed, on the worker's device."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random  # noqa: TID251 - users' data may draw from it
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.protocol.program import FLOAT32
from labkit.elastic.worker.constant import ForwardGuard

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.elastic.protocol.program import Program


MOST_METRICS: Final = 50
NAME_CHARS: Final = 60
"""Longest name of a metric."""


class SampleLoss:
    """Computes the loss of samples: the same bits on every worker, for any number of workers.

    Parameters
    ----------
    program : Program
        The user's program, with its model on the device.
    device : str
        Device to which batches are moved.
    seed : int
        Of the job.
    precision : str
        "bf16": the forward pass and the loss run under `torch.autocast`.

    Attributes
    ----------
    metrics : dict of float
        Metrics that the loss function returned beside the loss, of the samples that were computed last.
    weight : float or None
        Weight of these samples if the loss function returned (sum of losses, weight); None: it returned their mean.
    """

    def __init__(self, program: Program, *, device: str, seed: int, precision: str = FLOAT32) -> None:
        self._program, self._device, self._seed, self._precision = program, device, seed, precision
        self._constant = ForwardGuard(program.model)
        self.metrics: dict[str, float] = {}
        self.weight: float | None = None

    def __call__(self, samples: list[int], place: tuple[int, int]) -> Tensor:
        """Return the loss of samples; random numbers in data and model depend on the job's seed and `place` only.

        Raises
        ------
        InputError
            If the loss is not a scalar with a gradient, or the forward pass has changed the model.
        """
        seed_all(hash((self._seed, *place)) & 0x7FFFFFFF)
        self._constant.begin()
        batch = self._program.batch(samples)
        if self._device != "cpu":
            batch = moved(batch, self._device)
        with cast(self._device, self._precision):
            found = self._program.loss(self._program.model, batch)
        self._constant.check()
        loss, self.weight, self.metrics = parted(found)
        return checked(loss)


def cast(device: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass: `torch.autocast` to bfloat16, or none."""
    if precision == FLOAT32:
        return contextlib.nullcontext()
    import torch

    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


class LossParts(NamedTuple):
    """What a loss function returned: a mean, or with `weight` a sum of losses; and metrics by name."""

    loss: Any
    weight: float | None
    metrics: dict[str, float]


def parted(found: Any) -> LossParts:
    """Return the parts of a loss: loss, (loss, metrics), (loss_sum, weight), or (loss_sum, weight, metrics).

    >>> parted((0.5, {"accuracy": 1}))
    LossParts(loss=0.5, weight=None, metrics={'accuracy': 1.0})
    >>> parted((6.0, 4)).weight
    4.0

    Raises
    ------
    InputError
        If it is none of these, a metric has no name, or weight or metric are not one number.
    """
    loss, *rest = found if isinstance(found, tuple) else (found,)
    metrics = rest.pop() if rest and isinstance(rest[-1], Mapping) else {}
    if len(rest) > 1:
        raise InputError(
            f"the loss is a tuple of {len(found)}; expected a loss, (loss, metrics by name), (sum of losses, weight), "
            "or (sum of losses, weight, metrics)."
        )
    if len(metrics) > MOST_METRICS:
        raise InputError(f"{len(metrics)} metrics beside the loss; expected {MOST_METRICS} at most.")
    weight = _weight(rest[0]) if rest else None
    return LossParts(loss, weight, {_named(name): _number(name, value) for name, value in metrics.items()})


def _weight(value: Any) -> float:
    try:
        weight = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"the weight beside the loss is {value!r:.80}; expected one number, 0 or more.")
    return weight


def _named(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or name == "loss":
        raise InputError(f"a metric {name!r:.80}; expected a name of 1 to {NAME_CHARS} characters, and not 'loss'.")
    return name


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        found = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise InputError(f"metric '{name}' is {found}; expected one number, the mean over the batch.") from None


def seed_all(seed: int) -> None:
    """Seed the global random generators: of torch (on all devices), numpy and Python."""
    import torch

    if has_accelerator():
        torch.manual_seed(seed)
    else:  # `torch.manual_seed` would format three stacks, and keep each seed for a GPU that is never there
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002, TID251 - users' data may draw from it
    random.seed(seed)


@cache
def has_accelerator() -> bool:
    """Return whether this machine has a device whose random numbers torch would seed, too."""
    import torch

    return torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()


def moved(batch: Any, device: str) -> Any:
    """Return a batch on another device: a tensor, or mappings, tuples, lists and dataclasses of them.

    >>> moved({"words": [1, 2], "name": "a"}, "cpu")
    {'words': [1, 2], 'name': 'a'}
    """
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved(part, device) for part in batch)
    if isinstance(batch, MutableMapping):
        there = copy.copy(batch)
        there.update({key: moved(part, device) for key, part in batch.items()})
        return there
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: moved(getattr(batch, f.name), device) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def checked(loss: Any) -> Tensor:
    """Return a loss if it is one number with a gradient.

    Raises
    ------
    InputError
        If it is not.
    """
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"the loss is {found}; expected a tensor of one number, the mean over the batch.")
    if not loss.requires_grad:
        raise InputError(
            "the loss has no gradient: expected one that is computed of the model's parameters, not detached, not "
            "under torch.no_grad(), and without a call of backward()."
        )
    return loss

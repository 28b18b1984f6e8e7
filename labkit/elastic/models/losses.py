"""Losses of a model on a batch, the mean over its samples: plain functions, which a worker finds by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from labkit.core.errors import InputError

_ABOUT_SHAPES: Final = re.compile(r"shapes|channels|must match|be the same|scalar type|positional argument")


def cross_entropy(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return minus the mean log-probability of the targets, which are the last part of the batch.

    The model scores classes in its last axis: (B, C) for one target a sample, (B, T, C) for a target a word.

    Raises
    ------
    InputError
        If the batch is of another model, or of another width.
    """
    *inputs, targets = batch
    with _fitting():
        return F.cross_entropy(model(*inputs).flatten(0, -2), targets.flatten())


def click_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return minus the mean log-probability of clicks (1.0) and their absence (0.0); the model gives log-odds (B,).

    Raises
    ------
    InputError
        If the batch is of another model, or of another width.
    """
    *inputs, clicked = batch
    with _fitting():
        return F.binary_cross_entropy_with_logits(model(*inputs), clicked)


@contextmanager
def _fitting() -> Iterator[None]:
    """Raise one-line errors for a batch that does not fit the model, in place of torch's on indices and shapes."""
    try:
        yield
    except IndexError as error:
        raise _misfit("has a word or a class that the model does not know", error) from error
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, InputError) or not _ABOUT_SHAPES.search(str(error)):
            raise
        raise _misfit("has another shape than the model takes", error) from error


def _misfit(what: str, error: Exception) -> InputError:
    reason = str(error).splitlines()[0]
    return InputError(f"this batch {what} ({reason}). Build the model and its dataset by one name and with one width.")

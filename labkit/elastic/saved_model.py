"""States of a model in the folder of its job: saved ones, and the best one by a validation."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.elastic.checkpoint.store import Checkpoints
from labkit.elastic.protocol.blocks import unpack
from labkit.elastic.protocol.spec import Spec

if TYPE_CHECKING:
    from torch import nn

BEST: Final = "best"
"""Folder of the best state, in that of the job."""
SCORE: Final = "best.json"


@dataclass(slots=True)
class Score:
    """The best state so far.

    Attributes
    ----------
    metric : str
        By which states are compared.
    version : int
        Updates in the best state.
    value : float, optional
        The metric of the best state; None: no state has a finite one.
    values : dict
        Loss and metrics of the best state.
    n_worse : int
        Validations since.
    """

    metric: str
    version: int = 0
    value: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    n_worse: int = 0


def read_score(folder: Path) -> Score | None:
    """Return the score of the best state that a job has left in its folder; None without one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Score(**json.loads((folder / BEST / SCORE).read_text()))
    return None


def state_of(checkpoints: Checkpoints, version: int, model: nn.Module) -> nn.Module:
    """Return a copy of a model with the parameters of a checkpoint."""
    saved = checkpoints.load(version)
    found = copy.deepcopy(model)
    unpack(np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)]), found)
    return found


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A state of the model.

    Attributes
    ----------
    version : int
        Updates so far.
    model : Module
        A copy of the model with its parameters.
    values : mapping
        Loss and metrics of its validation; empty for one that was not validated.
    """

    version: int
    model: nn.Module
    values: Mapping[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return its parameters and buffers by name."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def best_of(folder: Path, spec: Spec, model: nn.Module) -> SavedModel | None:
    """Return the best state in the folder of a job; None if no validation kept one."""
    score = read_score(folder)
    if score is None or score.value is None:
        return None
    kept = Checkpoints(folder / BEST, layout=spec.layout, optimizer=spec.checkpoints(folder).optimizer)
    return SavedModel(score.version, state_of(kept, score.version, model), score.values)

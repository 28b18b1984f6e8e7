"""Weights in files: safetensors, with where they come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.weights import Tensors, WeightsFiles, fault_of, names, other_names, seconds
from labkit.schedulers.dl2.network import N_HELD, Net, Numbers, n_seen

FILES: Final = WeightsFiles(
    policy="dl2",
    version="1",
    remedy="Train it again: labkit train-policy dl2.",
    other={"dl2 as published": "With published=True it may be what you want."},
    folder=Path(__file__).with_name("weights"),
)


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy.

    Attributes
    ----------
    net : Net
        The network.
    models : tuple of str
        (L,) names of models that it tells apart.
    slot_s : float
        Seconds of a slot in its training.
    source : str
        How it was made: the command, and what came of it.
    speeds : array or None
        (L, P, W) steps per second of each model in its training with p parameter servers and w workers, 0 where it met
        none; None: not told.
    """

    net: Net
    models: tuple[str, ...]
    slot_s: float
    source: str
    speeds: Numbers | None = None

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = self.net._asdict() | ({} if self.speeds is None else {"speeds": self.speeds})
        FILES.write(path, tensors, models=json.dumps(self.models), slot_s=repr(self.slot_s), source=self.source)


def shipped() -> list[str]:
    """Return the names of the weights that come with labkit."""
    return FILES.shipped()


def load(name: str | Path) -> Weights:
    """Return weights by name, or from a file.

    Raises
    ------
    InputError
        If there are none of that name, or the file holds something else.
    """
    path = FILES.find(name)
    about, tensors = FILES.read(path)
    models, slot_s = FILES.told(path, about, models=names, slot_s=seconds)
    speeds = tensors.pop("speeds", None)
    FILES.refuse(path, _fault(tensors, n_models=len(models)))
    if speeds is not None and (speeds.ndim != 3 or len(speeds) != len(models) or not np.isfinite(speeds).all()):
        raise InputError(f"{path}: speeds are of shape {speeds.shape}; expected finite ones of {len(models)} models.")
    return Weights(Net(**tensors), models, slot_s, about.get("source", ""), speeds)


def _fault(tensors: Tensors, *, n_models: int) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if fault := other_names(tensors, Net._fields):
        return fault
    n = tensors["bias"].size
    expected = {
        "seen": (n_seen(n_models), n), "held": (n_models + 1, N_HELD, n), "bias": (n,), "middle": (n, n),
        "middle_bias": (n,), "worth": (n, 3), "worth_bias": (3,), "stop": (1,),
    }  # fmt: skip
    return fault_of(tensors, expected, why=f" for {n_models} models")

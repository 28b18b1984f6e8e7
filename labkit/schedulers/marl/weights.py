"""Weights of the placement policy in files: safetensors, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.weights import Tensors, WeightsFiles, fault_of, other_names
from labkit.schedulers.marl.network import FEATURES, WAITING, Net
from labkit.speed.what_if_state import N_SEEN

FILES: Final = WeightsFiles(
    policy="marl",
    version="1",
    remedy="Train it again: labkit train-policy marl.",
    folder=Path(__file__).with_name("weights"),
)


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy: its network, and how it was made (the command)."""

    net: Net
    source: str

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        FILES.write(path, self.net._asdict(), source=self.source)


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
    FILES.refuse(path, _fault(tensors))
    net = Net(**{name: tensor.astype(np.float64) for name, tensor in tensors.items()})
    return Weights(net, about.get("source", ""))


def _fault(tensors: Tensors) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    if fault := other_names(tensors, Net._fields):
        return fault
    n_agents, hidden, units = tensors["sharp"].size, tensors["out"].size, tensors["last"].shape[-1]
    if not n_agents:
        return "it is for no scheduler"
    expected = {
        "seen": (N_SEEN, hidden), "out": (hidden,), "first": (n_agents, len(FEATURES), units),
        "bias": (n_agents, units), "last": (n_agents, units), "wait": (n_agents, len(WAITING)), "sharp": (n_agents,),
    }  # fmt: skip
    return fault_of(tensors, expected)

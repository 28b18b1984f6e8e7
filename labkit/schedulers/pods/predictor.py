"""DeepSys' predictor: how fast a gang would be in some places, by a small network on what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.core.weights import WeightsFiles, other_names
from labkit.workloads import catalogue

MODELS: Final = catalogue.DL2_MODELS
MOST: Final = 4
"""Machines of a gang that are looked at one by one: those with most of its tasks."""

N_FEATURES: Final = len(MODELS) + 1 + 4 + 5 * MOST + 2
HOW: Final = "python -m labkit.learning.deepsys --seed 1 --out deepsys.safetensors"
FILES: Final = WeightsFiles(
    policy="deepsys",
    version="1",
    remedy=f"Train it again: {HOW}.",
    folder=Path(__file__).with_name("weights"),
    of="weights of deepsys",
)


class MachineTasks(NamedTuple):
    """What stands on each machine: tasks, workers, and GB of parameters of the jobs of these tasks, (M,) each."""

    tasks: Floats
    workers: Floats
    gb: Floats


def model_gb(jobs: Jobs) -> Floats:
    """Return the GB of parameters of each job, (N,); 0 of a model that the catalogue does not know."""
    return _by_model(jobs, {model.name: model.bytes / 1e9 for model in catalogue.models()}, 0.0)


def model_kind(jobs: Jobs) -> Ints:
    """Return the position of each job's model in `MODELS`, (N,); their number for another one."""
    return _by_model(jobs, {name: float(k) for k, name in enumerate(MODELS)}, float(len(MODELS))).astype(np.int32)


def _by_model(jobs: Jobs, known: dict[str, float], otherwise: float) -> Floats:
    of = np.array([known.get(str(name), otherwise) for name in jobs.models] + [otherwise])
    found: Floats = of[jobs.model]
    return found


def features(kind: int, workers: Floats, servers: Floats, beside: MachineTasks) -> Floats:
    """Return what the network sees of a gang in some places, (K, N_FEATURES).

    Parameters
    ----------
    kind : int
        Position of its model in `MODELS`.
    workers, servers : array
        (K, M) its workers and PSs on each machine, one row for each place.
    beside : MachineTasks
        The tasks of others.

    Returns
    -------
    array
        The model, one-hot; workers / 4, PSs / 4, machines / 4, the part of (worker, PS) pairs on one machine; of the
        machines with most of its tasks: workers / 4, PSs / 4, and of others tasks / 8, workers / 4, GB; the most tasks
        and GB of others on any of its machines.
    """
    k, there = len(workers), workers + servers
    n_w, n_p = workers.sum(axis=1), servers.sum(axis=1)
    seen = np.zeros((k, N_FEATURES), np.float64)
    seen[:, kind] = 1.0
    at = len(MODELS) + 1
    local = (workers * servers).sum(axis=1) / np.maximum(n_w * n_p, 1.0)
    seen[:, at : at + 4] = np.column_stack([n_w / 4, n_p / 4, (there > 0).sum(axis=1) / 4, local])
    at += 4
    top = np.argsort(-there, axis=1, kind="stable")[:, :MOST]
    used = np.take_along_axis(there, top, axis=1) > 0
    for i, column in enumerate((workers / 4, servers / 4)):
        seen[:, at + i : at + 5 * top.shape[1] : 5] = np.take_along_axis(column, top, axis=1)
    for i, amount in enumerate((beside.tasks / 8, beside.workers / 4, beside.gb), start=2):
        seen[:, at + i : at + 5 * top.shape[1] : 5] = np.where(used, amount[top], 0.0)
    seen[:, -2] = np.where(there > 0, beside.tasks / 8, 0.0).max(axis=1)
    seen[:, -1] = np.where(there > 0, beside.gb, 0.0).max(axis=1)
    return seen


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network of two hidden layers of ReLU: features to speed over the speed alone on one machine.

    Attributes
    ----------
    layers : tuple of (array, array)
        Weights (in, out) and biases (out,) of each layer.
    source : str
        How it was made, and how well it predicts.
    """

    layers: tuple[tuple[Floats, Floats], ...]
    source: str = ""

    def __call__(self, seen: Floats) -> Floats:
        """Return the speed that is predicted, as part of the speed alone, (K,)."""
        for weights, bias in self.layers[:-1]:
            seen = np.maximum(seen @ weights + bias, 0.0)
        weights, bias = self.layers[-1]
        predicted: Floats = (seen @ weights + bias)[:, 0]
        return predicted

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = {f"weights{i}": weights for i, (weights, _) in enumerate(self.layers)}
        FILES.write(path, tensors | {f"bias{i}": bias for i, (_, bias) in enumerate(self.layers)}, source=self.source)


@lru_cache(maxsize=8)
def load(path: str = "") -> Predictor:
    """Return the predictor of a file; "": the one that comes with labkit.

    Raises
    ------
    InputError
        If it cannot be read, or holds something else.
    """
    if path and Path(path).suffix != ".safetensors":
        raise InputError(f"weights of deepsys is {path!r}; expected the path of a .safetensors file. Make one: {HOW}.")
    file = FILES.find(path or "deepsys")
    about, single = FILES.read(file)
    tensors = {name: tensor.astype(np.float64) for name, tensor in single.items()}
    FILES.refuse(file, other_names(single, tuple(f"{kind}{i}" for kind in ("weights", "bias") for i in range(3))))
    layers = tuple((tensors[f"weights{i}"], tensors[f"bias{i}"]) for i in range(3))
    sizes = [N_FEATURES, *(len(bias) for _, bias in layers)]
    fits = all(w.shape == (a, b) for (w, _), a, b in zip(layers, sizes, sizes[1:], strict=False))
    if not fits or sizes[-1] != 1 or not all(np.isfinite(t).all() for t in tensors.values()):
        raise InputError(
            f"{file}: layers of {[w.shape for w, _ in layers]}; expected finite ones from {N_FEATURES} features to one "
            f"number. Train it again: {HOW}."
        )
    return Predictor(layers, about.get("source", ""))

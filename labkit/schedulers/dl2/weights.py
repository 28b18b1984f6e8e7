"""Weights in files: safetensors, with where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from labkit.core.resources import Floats
from labkit.core.weights import Tensors, WeightsFiles, fault_of, mapping, names, other_names, seconds
from labkit.schedulers.dl2.network import N_TASK_FEATURES, Net, n_inputs
from labkit.speed.dl2 import THETA

KEY: Final = "scenario"
"""In a file: the scenario of its training."""

FILES: Final = WeightsFiles(
    policy="dl2",
    version="2",
    remedy="Train it again: labkit train-policy dl2.",
    other={"dl2 as published": "With published=True it may be what you want."},
    former={
        "1": "It holds the whole speed table of its training: do not pass it on. The same train-policy command "
        "writes the file anew, within seconds where its .state file still lies beside it.",
    },
    folder=Path(__file__).with_name("weights"),
    optional={KEY: "{}"},
    tensors={
        "theta": "coefficients of your speeds: six per model, from which the speed of every gang follows",
        "spread": "how far the speeds of the training were from those coefficients, one number per model",
        "speeds": "THE WHOLE SPEED TABLE of the training, value by value (files of version 1)",
    },
    reveals={
        "speeds": "the whole speed table of the training, value by value, so do not pass it on",
        "theta": "how fast each of its models runs with any numbers of workers and servers, within about its spread",
    },
)


class SpeedFit(NamedTuple):
    """How fast L models ran in a training: a smooth approximation, from which the table of speeds cannot be read."""

    theta: Floats
    """(L, 6) coefficients of the seconds of a step (`labkit.speed.dl2.terms`, batch 1); all 0: not known."""
    spread: Floats
    """(L,) mean |log(speed / approximation)| over the gangs of the training, > 0."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy."""

    net: Net
    """The network."""
    models: tuple[str, ...]
    """(L,) names of models that it tells apart."""
    slot_s: float
    """Seconds of a slot in its training."""
    source: str
    """How it was made: the command, and what came of it."""
    speeds: SpeedFit | None = None
    """How fast its models ran in training; None: not known."""
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """That of its training, as `Scenario.plain` writes one down; empty: a plain one, which `source` tells."""

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = self.net._asdict() | ({} if self.speeds is None else self.speeds._asdict())
        about = {"models": json.dumps(self.models), "slot_s": repr(self.slot_s), "source": self.source}
        FILES.write(path, tensors, **about, **({KEY: json.dumps(self.scenario)} if self.scenario else {}))


shipped = FILES.shipped


def load(name: str | Path) -> Weights:
    """Return weights by name, or from a file.

    Raises
    ------
    InputError
        If there are none of that name, or the file holds something else.
    """
    tensors, (models, slot_s, source, scenario) = FILES.load(
        name, misfit=_fault, models=names, slot_s=seconds, source=str, scenario=mapping
    )
    net = Net(**{name: tensors[name] for name in Net._fields})
    speeds = SpeedFit(*(tensors[name].astype(float) for name in SpeedFit._fields)) if "theta" in tensors else None
    return Weights(net, models, slot_s, source, speeds, scenario)


def _fault(tensors: Tensors, models: Sequence[str], *_: object) -> str:
    n_models = len(models)
    has_speeds = bool(tensors.keys() & set(SpeedFit._fields))
    if fault := other_names(tensors, (*Net._fields, *(SpeedFit._fields if has_speeds else ()))):
        return fault
    n = tensors["bias"].size
    expected = {
        "seen": (n_inputs(n_models), n), "held": (n_models + 1, N_TASK_FEATURES, n), "bias": (n,), "middle": (n, n),
        "middle_bias": (n,), "worth": (n, 3), "worth_bias": (3,), "stop": (1,),
    }  # fmt: skip
    if has_speeds:
        expected |= {"theta": (n_models, len(THETA)), "spread": (n_models,)}
    fault = fault_of(tensors, expected, why=f" for {n_models} models")
    if not fault and has_speeds and ((tensors["theta"] < 0).any() or (tensors["spread"] <= 0).any()):
        return "theta or spread holds a number that is out of range; expected theta >= 0, spread > 0"
    return fault

"""Experiments: a session over a backend, a run from start to end, comparisons of runs, and sweeps.

What it offers is loaded when it is first used: the command line shows its help without a simulator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.experiment.cadence import Cadence, at_events, every_slot
    from labkit.experiment.deployed import attach, deploy
    from labkit.experiment.experiment import Experiment
    from labkit.experiment.gap import Fidelity, fidelity, predict
    from labkit.experiment.grid import Grid
    from labkit.experiment.run import compare, replay, simulate
    from labkit.experiment.scenario import Scenario
    from labkit.experiment.session import Session
    from labkit.experiment.speeds import speed_model
    from labkit.experiment.sweeping import sweep
    from labkit.experiment.tuning import tune

_MODULES = {
    "Cadence": "cadence", "Experiment": "experiment", "Fidelity": "gap", "Grid": "grid", "Scenario": "scenario",
    "Session": "session", "at_events": "cadence", "attach": "deployed", "compare": "run", "deploy": "deployed",
    "every_slot": "cadence", "fidelity": "gap", "predict": "gap", "replay": "run", "simulate": "run",
    "speed_model": "speeds", "sweep": "sweeping", "tune": "tuning",
}  # fmt: skip

__all__ = [
    "Cadence",
    "Experiment",
    "Fidelity",
    "Grid",
    "Scenario",
    "Session",
    "at_events",
    "attach",
    "compare",
    "deploy",
    "every_slot",
    "fidelity",
    "predict",
    "replay",
    "simulate",
    "speed_model",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'labkit.experiment' has no attribute '{name}'")
    return getattr(import_module(f"labkit.experiment.{_MODULES[name]}"), name)

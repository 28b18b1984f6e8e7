"""Experiments: a session over a backend, a run from start to end, comparisons of runs, and sweeps."""

from labkit.experiment.cadence import Cadence, at_events, every_slot
from labkit.experiment.deploy import attach, deploy
from labkit.experiment.fidelity import Fidelity, fidelity, foretell
from labkit.experiment.grid import Grid
from labkit.experiment.run import Experiment, compare, replay, simulate
from labkit.experiment.session import Session
from labkit.experiment.speeds import speed_model
from labkit.experiment.sweeping import sweep

__all__ = [
    "Cadence",
    "Experiment",
    "Fidelity",
    "Grid",
    "Session",
    "at_events",
    "attach",
    "compare",
    "deploy",
    "every_slot",
    "fidelity",
    "foretell",
    "replay",
    "simulate",
    "speed_model",
    "sweep",
]

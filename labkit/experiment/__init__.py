"""Experiments: a session over a backend, a run from start to end, and comparisons of runs."""

from labkit.experiment.cadence import Cadence, at_events, every_slot
from labkit.experiment.deploy import attach, deploy
from labkit.experiment.run import Experiment, compare, replay, simulate
from labkit.experiment.session import Session
from labkit.experiment.speeds import speed_model

__all__ = [
    "Cadence",
    "Experiment",
    "Session",
    "at_events",
    "attach",
    "compare",
    "deploy",
    "every_slot",
    "replay",
    "simulate",
    "speed_model",
]

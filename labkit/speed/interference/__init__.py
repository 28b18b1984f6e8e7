"""Slowdown of co-located jobs: fit and predict.

`profile` says what a measurement is and refuses bad ones, `model` fits the effect of each resource, puts two factors
together and compares models by held-out error, `use` finds what the tasks of a cluster share, `levels` names what a run
can be asked for, `measured` fits one to a file. Another model is one more line in `model.MODELS`; another shape of one
factor is a `Factor` there; another level is a line in `levels.FACTORS`.
"""

from labkit.speed.interference.levels import Level, level
from labkit.speed.interference.model import MODELS, InterferenceModel, compare_models, held_out_error
from labkit.speed.interference.profile import COLUMNS, InterferenceProfile
from labkit.speed.interference.use import GroupUse, Interference, ModelUse, co_load, slowdowns

__all__ = [
    "COLUMNS", "MODELS", "GroupUse", "Interference", "InterferenceModel", "InterferenceProfile", "Level", "ModelUse",
    "co_load", "compare_models", "held_out_error", "level", "slowdowns",
]  # fmt: skip

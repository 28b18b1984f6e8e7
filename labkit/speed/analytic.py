"""Speeds of models as an analytical model predicts them: Optimus' functions, fitted to a few measured gangs.

It is what "OfflineRL" is trained on in DL2's evaluation [1]_: a policy that learned on predicted speeds is judged on
the true ones.

.. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021, sec. 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from labkit.core.errors import unknown
from labkit.core.resources import Floats
from labkit.speed.measured import ByGang
from labkit.speed.optimus import PRIOR, SpeedFunction, pre_runs

N_GANGS: Final = 10
"""That are measured of each model; Optimus' evaluation has 5 to 10."""
LARGEST: Final = 16
"""Most parameter servers, and most workers, of a gang that is measured."""


@dataclass(frozen=True, eq=False)
class AnalyticTable:
    """Speeds of K models by gang as Optimus' eq. 4 predicts them; a `MeasuredSpeed` takes it.

    Attributes
    ----------
    models : tuple of str
        (K,) names.
    functions : tuple of SpeedFunction
        (K,) updates per second by gang.
    batch : array
        (K,) samples in a parameter update.
    """

    models: tuple[str, ...]
    functions: tuple[SpeedFunction, ...]
    batch: Floats

    @property
    def in_words(self) -> str:
        """What it is, for headers of runs."""
        return f"Optimus' analytical model, fitted to {N_GANGS} gangs of each model"

    def code(self, model: str) -> int:
        """Return the index of a model.

        Raises
        ------
        InputError
            If it was not fitted; the message names the nearest one that was.
        """
        if model not in self.models:
            raise unknown("model of the analytical speeds", model, self.models)
        return self.models.index(model)

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:  # noqa: ARG002
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers."""
        k = self.code(model)
        speeds: Floats = self.functions[k].table(max_ps=max_ps, max_workers=max_workers) * self.batch[k]
        return speeds


@lru_cache(maxsize=8)
def analytic(table: ByGang, models: tuple[str, ...], *, n: int = N_GANGS) -> AnalyticTable:
    """Fit Optimus' synchronous speed function to n gangs of each model, those that Optimus measures before a run.

    >>> from labkit.speed.dl2 import fitted
    >>> made = analytic(fitted(), ("resnet-50",))
    >>> made.grid("resnet-50", max_ps=4, max_workers=4)[[1, 4], [1, 4]].round(1)  # it was told 19.5 and 33.7
    array([30.8, 34.2])
    """
    ps, workers = pre_runs(max_ps=LARGEST, max_workers=LARGEST, n=n)
    batch = table.batch[[table.code(model) for model in models]]
    functions = []
    for model, samples in zip(models, batch, strict=True):
        updates = table.grid(model, max_ps=LARGEST, max_workers=LARGEST, clip=True)[ps, workers] / samples
        functions.append(SpeedFunction.fit(ps, workers, updates, batch=float(samples), prior=PRIOR))
    return AnalyticTable(models, tuple(functions), np.asarray(batch, np.float64))

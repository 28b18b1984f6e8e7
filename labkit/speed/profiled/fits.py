"""What is fitted to measurements of a testbed: speed functions, and slowdown beyond the sharing of cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from labkit.core.errors import ProfileError
from labkit.core.resources import Floats
from labkit.speed.optimus import PRIOR, SpeedFunction
from labkit.speed.profiled.nouns import QUIET, ColocationSample, Fitted, GangMeasurement
from labkit.speed.profiled.sharing import max_min

FEWEST: Final = 8
"""Measurements that fit four coefficients."""

FEW: Final = 2
"""Measurements of jobs whose mean stands for all, where there are not enough for a fit."""


def speed_functions(cells: Sequence[GangMeasurement], *, batch: float) -> list[Fitted]:
    """Return Optimus' speed function of each model, fitted to its gangs; `error` is the mean relative residual."""
    kinds = dict.fromkeys((cell.model, cell.sync) for cell in cells if cell.step_s)
    return [_fitted(model, sync, cells, batch) for model, sync in kinds]


def _fitted(model: str, sync: bool, cells: Sequence[GangMeasurement], batch: float) -> Fitted:
    mine = [cell for cell in cells if (cell.model, cell.sync) == (model, sync) and cell.step_s]
    function = SpeedFunction.fit(
        [cell.n_ps for cell in mine], [cell.n_workers for cell in mine], [1 / (cell.step_s or 1) for cell in mine],
        batch=batch, sync=sync, prior=PRIOR,
    )  # fmt: skip
    theta = [float(f"{value:.6g}") for value in function.theta]
    return Fitted(model=model, sync=sync, theta=theta, batch=batch, error=round(function.error, 4))


def quiet(rows: Sequence[ColocationSample]) -> list[ColocationSample]:
    """Return the measurements during which nothing else ran."""
    return [row for row in rows if row.busy_cores <= QUIET]


def foreseen(rows: Sequence[ColocationSample], *, cores: float) -> Floats:
    """Return the slowdown of each measured job by the sharing of cores alone, (n,)."""
    slowdown = np.ones(len(rows))
    for i, row in enumerate(rows):
        demand, weight = np.array([row.cpu_cores, row.co_cpu_cores]), np.array([row.weight, row.co_weight])
        share = max_min(demand, cores, weight=weight)[0]
        slowdown[i] = row.cpu_cores / share if share > 0 else 1.0
    return slowdown


def beyond_sharing(rows: Sequence[ColocationSample], *, cores: float) -> Floats:
    """Return by how much more each was slowed than the sharing of cores explains, (n,)."""
    return np.array([row.shared_s / row.alone_s for row in rows]) / foreseen(rows, cores=cores)


def interference(rows: Sequence[ColocationSample], *, cores: float) -> list[float] | None:
    """Return the coefficients of what jobs slow each other beyond the sharing of cores; None for too few quiet rows.

    What real jobs did to each other is believed rather than what loads did, where there is enough of it: a load waits
    for no job, and no job waits for a load. Where there is too little for a fit, their mean counts.
    """
    import pandas as pd

    from labkit.speed.interference import InterferenceModel

    rows = [row for row in quiet(rows) if row.what == "step"]
    jobs = [row for row in rows if not row.co_runners.startswith("load-")]
    rows = jobs if len(jobs) >= FEWEST or len(rows) < FEWEST else rows
    beyond = beyond_sharing(rows, cores=cores)
    if FEW <= len(rows) < FEWEST:
        return [0.0, 0.0, 0.0, float(f"{np.exp(np.log(beyond).mean()):.6g}")]
    table = pd.DataFrame(
        {
            "job": [row.job for row in rows], "co_runners": "", "pcie_gbps": 0.0, "co_pcie_gbps": 0.0,
            "cpu_cores": [row.cpu_cores for row in rows], "co_cpu_cores": [row.co_cpu_cores for row in rows],
            "alone_s": 1.0, "shared_s": beyond,
        }
    )  # fmt: skip
    try:
        fitted = InterferenceModel("without_pcie").fit(table).cpu_
    except ProfileError:
        return None
    return None if fitted is None else [float(f"{value:.6g}") for value in fitted]

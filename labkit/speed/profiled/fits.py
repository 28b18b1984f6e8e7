"""What is fitted to measurements of a testbed: speed functions, and slowdown beyond the sharing of cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.optimus import PRIOR, SpeedFunction
from labkit.speed.profiled.nouns import QUIET, ColocationSample, Fitted, GangMeasurement
from labkit.speed.profiled.sharing import max_min


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


def believed(rows: Sequence[ColocationSample]) -> list[ColocationSample]:
    """Return the measurements during which nothing else ran; where something always did, all of them."""
    return [row for row in rows if row.busy_cores <= QUIET] or list(rows)


def crowds(rows: Sequence[ColocationSample]) -> list[list[ColocationSample]]:
    """Return measurements beside one job, two jobs, and so on; beside a load: by the load."""
    found: dict[object, list[ColocationSample]] = {}
    for row in rows:
        beside = row.co_runners
        found.setdefault(beside if beside.startswith("load-") else beside.count("+"), []).append(row)
    return list(found.values())


def foreseen(rows: Sequence[ColocationSample], *, cores: float) -> Floats:
    """Return the slowdown of each measured job by the sharing of cores alone, also with what else ran, (n,)."""
    slowdown = np.ones(len(rows))
    for i, row in enumerate(rows):
        demand = np.array([row.cpu_cores, row.co_cpu_cores, row.busy_cores])
        weight = np.array([row.weight, row.co_weight, 1.0])
        share = max_min(demand, cores, weight=weight)[0]
        slowdown[i] = row.cpu_cores / share if share > 0 else 1.0
    return slowdown


def beyond_sharing(rows: Sequence[ColocationSample], *, cores: float) -> Floats:
    """Return by how much more each was slowed than the sharing of cores explains, (n,)."""
    return np.array([row.shared_s / row.alone_s for row in rows]) / foreseen(rows, cores=cores)

"""Contention for cores: how tasks divide them, and how much more slowdown was measured than that explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.optimus import PRIOR, SpeedFunction
from labkit.speed.profiled.profile import QUIET, ColocationSample, Fitted, GangMeasurement, TestbedProfile


class ChangeContention(NamedTuple):
    """By how much longer changes take than the sharing of cores says: 1 + slope x excess.

    The excess is how many cores more than there are are wanted, for each there is; it counts up to the most that was
    measured.
    """

    slope: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, rows: list[ColocationSample], *, cores: float) -> ChangeContention:
        """Return the least-squares line through what was measured; none if nothing was."""
        excess = np.array([max((row.cpu_cores + row.co_cpu_cores) / cores - 1, 0.0) for row in rows])
        if not excess.any():
            return cls()
        beyond = beyond_sharing(rows, cores=cores)
        return cls(float(excess @ (beyond - 1.0) / (excess @ excess)), float(excess.max()))

    def at(self, excess: float) -> float:
        """Return the factor; where fewer cores are wanted than there are, 1."""
        return 1.0 + self.slope * min(max(excess, 0.0), self.most)


NO_CHANGE_CONTENTION: Final = ChangeContention()


class UpdateContention(NamedTuple):
    """By how much longer updates take beside other jobs than the sharing of cores says."""

    others: tuple[float, ...] = ()
    """Cores that the others want, ascending: the median of what was measured beside one job, two jobs, ..."""
    factor: tuple[float, ...] = ()
    """The median factor there, at least 1."""

    @classmethod
    def of(cls, rows: Sequence[ColocationSample], *, cores: float) -> Self:
        """Return the medians of measured updates, one for each number of jobs beside."""
        points = [
            (float(np.median([row.co_cpu_cores for row in mine])), float(np.median(beyond_sharing(mine, cores=cores))))
            for mine in crowds(rows)
        ]
        points.sort()
        return cls(tuple(others for others, _ in points), tuple(max(factor, 1.0) for _, factor in points))

    def at(self, others: Floats) -> Floats:
        """Return the factor beside others that want so many cores: between two medians a line, beyond the last it."""
        found: Floats = np.interp(others, [0.0, *self.others], [1.0, *self.factor])
        return found


NO_UPDATE_CONTENTION: Final = UpdateContention()

FEW: Final = 2
"""Measurements of a model's own contention; with fewer, that of all models counts."""


@dataclass(frozen=True, slots=True)
class MeasuredContention:
    """What was measured beyond the sharing of cores."""

    contention: UpdateContention = NO_UPDATE_CONTENTION
    """Of the updates of all models together."""
    by_model: Mapping[str, UpdateContention] = field(default_factory=dict)
    """Of the updates of single models that were measured often enough."""
    start: ChangeContention = NO_CHANGE_CONTENTION
    rescale: ChangeContention = NO_CHANGE_CONTENTION
    """`start` and `rescale`: of changes."""

    @classmethod
    def of(cls, profile: TestbedProfile) -> MeasuredContention:
        """Return the contention that a profile measured."""
        rows = believed(profile.beside)
        if not rows or not profile.pools:
            return cls()
        cores = profile.pools[0].cores
        start, rescale = (
            ChangeContention.of([r for r in rows if r.what == what], cores=cores) for what in ("start", "rescale")
        )
        steps = [row for row in rows if row.what == "step"]
        jobs = [row for row in steps if not row.co_runners.startswith("load-")] or steps
        of = {model: [row for row in jobs if row.job == model] for model in dict.fromkeys(row.job for row in jobs)}
        own = {model: UpdateContention.of(mine, cores=cores) for model, mine in of.items() if len(mine) >= FEW}
        return cls(UpdateContention.of(jobs, cores=cores), own, start, rescale)

    def slowdown(self, cores: Floats, others: Floats, models: Sequence[str]) -> Floats:
        """Return the factor >= 1 of the updates of jobs, (J,).

        `cores`, `others`: (J, K) cores that each wants in each pool, and that all others want there; `models`: (J,)
        models of the jobs.
        """
        factors = [self.by_model.get(model, self.contention).at(row) for model, row in zip(models, others, strict=True)]
        slowest: Floats = np.where(cores > 0, np.reshape(factors, cores.shape), 1.0).max(axis=1)
        return slowest


def max_min(demand: Floats, capacity: float, *, weight: Floats | None = None) -> Floats:
    """Return max-min fair shares of a capacity, in proportion to weights, and never more than is asked for.

    No share can grow but at the cost of one that is no larger for its weight. As long as all ask for no more than there
    is, each gets what it asks for.

    Parameters
    ----------
    demand : array
        (J,) what each could use, >= 0.
    capacity : float
        What there is.
    weight : array, optional
        (J,) > 0.

    Returns
    -------
    array
        (J,) shares.

    Examples
    --------
    One that asks for little gets it; the others divide the rest:

    >>> max_min(np.array([0.2, 2.0, 1.0]), 2.0).tolist()
    [0.2, 0.9, 0.9]
    """
    if demand.sum() <= capacity:
        return demand.copy()
    weight = np.ones_like(demand) if weight is None else weight
    order = np.argsort(demand / weight, kind="stable")  # the smallest demands first
    d, w = demand[order], weight[order]
    before = np.concatenate([[0.0], np.cumsum(d)[:-1]])
    left = w[::-1].cumsum()[::-1]  # weights from here on
    level = (capacity - before) / left  # what a weight of 1 gets if all before are content
    content = d <= level * w
    first = len(d) if content.all() else int(np.argmin(content))
    share = np.empty_like(d)
    share[:first] = d[:first]
    if first < len(d):
        share[first:] = level[first] * w[first:]
    result = np.empty_like(d)
    result[order] = share
    return result


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
        co_runners = row.co_runners
        found.setdefault(co_runners if co_runners.startswith("load-") else co_runners.count("+"), []).append(row)
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

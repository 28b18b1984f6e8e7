"""Max-min levels on few device types, exact, by prices; filled up so that no job that could have more has less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InfeasibleError, InputError, SolverError, UnboundedError
from labkit.core.resources import Bools, Floats, Ints


class Proved:
    """A level that was reached, and a bound that none exceeds."""

    __slots__ = ()
    level: float
    bound: float

    @property
    def gap(self) -> float:
        """How far the level may be from the greatest, relative."""
        return abs(self.bound - self.level) / max(abs(self.bound), abs(self.level), 1e-300)


@dataclass(frozen=True, eq=False, slots=True)
class Filled(Proved):
    """Shares, what they are worth to each job, and the proof that no job could do better."""

    x: Floats
    """(J, V) fraction of its time that each job spends in each column."""
    value: Floats
    """(J,) what each job gets, sum_v value_jv x_jv."""
    level: float
    """The least level that a job reaches."""
    bound: float
    """No shares have a higher least level: what the jobs need above it costs more than all that there is at `prices`,
    or is more than a job can have at all."""
    prices: Floats
    """(T,) of a device of each type, such that all devices together cost 1."""
    n_levels: int
    """Searches: after each but the last at least one more type is used up, so there are at most T."""


def fill(
    value: ArrayLike,
    *,
    size: ArrayLike,
    capacity: ArrayLike,
    use: ArrayLike | None = None,
    slope: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    base: ArrayLike = 0.0,
    leximin: bool = True,
    tolerance: float = 1e-9,
) -> Filled:
    """Return the shares at which the least level of any job is greatest, and then the next, and so on.

    A job is at level t if it gets base + slope t / (1 - drag t). Each device type has a price; at given prices every
    job chooses the cheapest way to a level by itself (a walk along a convex hull), and if that costs more than all
    devices are worth, no shares reach the level. Cutting planes find the prices that prove the most, and the mixture
    of responses that gets there: the Dantzig-Wolfe decomposition [1]_ of the max-min program, with a master of T + 1
    rows. Time is linear in J, some 20 to 40 walks of each job for 3 types.

    Parameters
    ----------
    value : array
        (J, V) what a job gets if it spends all of its time in a column (a way to run); 0: it cannot run so.
    size : array or float
        (J,) devices that a job takes while it runs.
    capacity : array
        (T,) devices of each type.
    use : array or None
        (V, T) fraction of its devices that a job takes from each type in a column; None: column t is type t.
    slope, drag, base : array or float
        (J,) what a level takes. Slope 0: the job gets its base, and no more. Fair shares: slope = weight. Least
        makespan: slope = steps left, value = speed; the level is 1 / makespan. Finish-time fairness: level 1 / rho,
        slope = steps left / D, drag = age / D, where D is the time from arrival to the end on an equal share.
    leximin : bool
        Fill up: a job is held back only where it cannot have more without taking from one whose level is not higher.
        False: every job gets just what the greatest least level takes.
    tolerance : float
        Relative excess over capacity at which a search ends; shares are then scaled down to fit.

    Returns
    -------
    Filled
        Shares are feasible to rounding; `level` is within about `tolerance` of `bound`.

    Raises
    ------
    InputError
        If numbers are negative, NaN or of the wrong shape, or a job can run nowhere.
    InfeasibleError
        If the bases cannot be met.
    UnboundedError
        If every slope is 0.
    SolverError
        If the search does not settle, which only numbers of very different size could bring about.

    References
    ----------
    .. [1] Dantzig and Wolfe, "Decomposition principle for linear programs", Operations Research 8(1), 1960.

    Examples
    --------
    Four equal jobs on four GPUs, one with three times the weight: it has what it can use at level 1/3, the others
    go on.

    >>> filled = fill(np.ones((4, 1)), size=1, capacity=[4], slope=[3, 1, 1, 1])
    >>> filled.value.round(6).tolist(), round(filled.level, 6)
    ([1.0, 1.0, 1.0, 1.0], 0.333333)
    """
    from labkit.solvers.levels_kernel import sound

    values, there, uses = _arrays(value, capacity, use)
    n_jobs = len(values)
    inputs = {"size": size, "base": base, "slope": slope, "drag": drag}
    columns = [_of_jobs(name, column, n_jobs) for name, column in inputs.items()]
    none = np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_)
    if sound(values, there, uses, *columns):
        return _search(values, there, uses / there, columns, none, leximin, tolerance)
    _check_offer(there, uses)
    for name, column in zip(inputs, columns, strict=True):
        _check_column(name, column)
    if not columns[2].any():
        raise UnboundedError(f"the slopes of all {n_jobs} jobs are 0: no level is the greatest; expected one above 0.")
    if columns[1].any():
        _check_bases(values, columns[1])
    _check_all("size", columns[0])
    return _run(values, there, uses, columns, none, leximin, tolerance)


def fill_entities(
    value: ArrayLike,
    *,
    size: ArrayLike,
    capacity: ArrayLike,
    use: ArrayLike | None = None,
    weight: ArrayLike = 1.0,
    entity: ArrayLike,
    entity_weight: ArrayLike,
    fifo: ArrayLike,
    tolerance: float = 1e-9,
) -> Filled:
    """Fill up in two layers: entities share by weight, and their jobs share fairly or go first in, first out [1]_.

    What each job gets grows at the rate (its part of the entity's weight) / size. An entity that shares fairly parts
    its weight among its growing jobs in proportion to their weights; one that goes first in, first out gives all of it
    to its first growing job. A job grows until it has the most that it can have, or cannot have more without taking
    from another; then its part goes to the others of its entity. The levels at which jobs have their most are worked
    out beforehand, so one search goes past all of them. Raise InputError as `fill`; or an entity number out of range,
    or a weight that is not positive.

    Parameters
    ----------
    value, size, capacity, use, tolerance
        As for `fill`; values normalised so that those of different jobs compare.
    weight : array or float
        (J,) of each job inside its entity.
    entity : array
        (J,) which entity each job belongs to, 0 to E - 1; its jobs in order of arrival.
    entity_weight : array
        (E,) > 0.
    fifo : array
        (E,) True: first in, first out; False: fair.

    Returns
    -------
    Filled
        `level` is that of the first bottleneck: until there an entity has gained level times its weight.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
       sec. 4.3.

    Examples
    --------
    Two GPUs; entity 0, with two jobs in a queue, has half of the weight of entity 1, with one job:

    >>> entities = {"entity": [0, 0, 1], "entity_weight": [1, 2], "fifo": [True, False]}
    >>> filled = fill_entities(np.ones((3, 1)), size=1, capacity=[2], **entities)
    >>> filled.value.round(6).tolist()
    [1.0, 0.0, 1.0]
    """
    values, there, uses = _arrays(value, capacity, use)
    _check_offer(there, uses)
    n_jobs = len(values)
    sizes, weights = _of_jobs("size", size, n_jobs), _of_jobs("weight", weight, n_jobs)
    _check_column("size", sizes)
    _check_column("weight", weights)
    groups = _groups(entity, entity_weight, fifo, n_jobs)
    _check_all("size", sizes)
    _check_all("weight", weights)
    none = np.zeros(n_jobs)
    return _run(values, there, uses, [sizes, none, weights / sizes, none], groups, True, tolerance)


def _run(
    values: Floats, there: Floats, uses: Floats, columns: list[Floats], groups: Any, leximin: bool, tolerance: float
) -> Filled:
    if there.all():
        values, uses = _where_it_can(values, values), uses / there
    else:
        values = _where_it_can(values, np.where((uses[:, there == 0] > 0).any(axis=1), 0.0, values))
        uses = np.divide(uses, there, out=np.zeros_like(uses), where=there > 0)
    return _search(values, there, uses, columns, groups, leximin, tolerance)


def _search(
    values: Floats, there: Floats, uses: Floats, columns: list[Floats], groups: Any, leximin: bool, tolerance: float
) -> Filled:
    """Search for the levels; `uses` is per unit of capacity."""
    from labkit.solvers import levels_kernel as kernel

    size, base, slope, drag = columns
    ended, x, got, level, bound, price, n = kernel.fill(
        values, size, uses, base, slope, drag, groups, leximin, float(tolerance)
    )
    if ended == kernel.UNMET:
        raise InfeasibleError(_unmet(values, size, base), rows=np.flatnonzero(base).tolist())
    if ended == kernel.STUCK:
        raise SolverError(f"the levels did not settle: {level} reached, {bound} not excluded; scale values to near 1.")
    prices = np.divide(price, there * price.sum(), out=np.zeros_like(price), where=there > 0)
    return Filled(x, got, level, bound, prices, n)


def _arrays(value: ArrayLike, capacity: ArrayLike, use: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    values = np.ascontiguousarray(value, np.float64)
    there = np.ascontiguousarray(capacity, np.float64)
    uses = np.eye(len(there)) if use is None else np.ascontiguousarray(use, np.float64)
    if values.ndim != 2 or not values.size or uses.shape != (values.shape[1], len(there)):
        raise InputError(
            f"value has shape {values.shape}, use {uses.shape} and capacity {there.shape}; "
            "expected (jobs, columns), (columns, types) and (types,), with at least one of each."
        )
    return values, there, uses


def _check_offer(there: Floats, uses: Floats) -> None:
    if not (there.min() >= 0 and 0 < there.max() < np.inf):
        raise InputError(f"capacity is {there.tolist()}; expected devices >= 0 of each type, and more than 0 in all.")
    if not (uses.min() >= 0 and 0 < uses.sum(axis=1).min() < np.inf):
        raise InputError(f"use is {uses.tolist()}; expected fractions >= 0, not all 0 in any row.")


def _of_jobs(name: str, values: ArrayLike, n_jobs: int) -> Floats:
    array = np.asarray(values, np.float64)
    column = np.full(n_jobs, array) if array.ndim == 0 else np.ascontiguousarray(array)
    if column.shape != (n_jobs,):
        raise InputError(f"{name} has shape {column.shape}; expected a number, or one for each of {n_jobs} jobs.")
    return column


def _check_column(name: str, column: Floats) -> None:
    if not (column.min() >= 0 and column.max() < np.inf):
        j = int(np.flatnonzero(~((column >= 0) & (column < np.inf)))[0])
        raise InputError(f"job {j} has {name} {column[j]}; expected a number of 0 or more.")


def _check_all(name: str, column: Floats) -> None:
    if not column.all():
        raise InputError(f"job {int(column.argmin())} has {name} 0; expected more than 0.")


def _where_it_can(rates: Floats, values: Floats) -> Floats:
    """Return the values if they are sound and every job can run somewhere."""
    best = values.max(axis=1)
    if not (rates.min() >= 0 and best.min() > 0 and rates.max() < np.inf):
        if not (rates.min() >= 0 and rates.max() < np.inf):
            j, v = np.argwhere(~((rates >= 0) & (rates < np.inf)))[0]
            raise InputError(f"job {j} has value {rates[j, v]} in column {v}; expected a number of 0 or more.")
        where = "anywhere: all its values are 0" if rates[best.argmin()].max() == 0 else "on the types that there are"
        raise InputError(f"job {int(best.argmin())} cannot run {where}. Leave it out, or add devices that it can use.")
    return values


def _check_bases(values: Floats, base: Floats) -> None:
    short = np.flatnonzero(base > values.max(axis=1) * (1 + 1e-12))
    if len(short):
        j = int(short[0])
        raise InfeasibleError(
            f"job {j} needs a base of {base[j]:g}; the most that it can get is {values[j].max():g}.",
            rows=short.tolist(),
        )


def _unmet(values: Floats, size: Floats, base: Floats) -> str:
    """Return why the bases cannot be met, and which job asks for most."""
    dearest = int((base * size / values.max(axis=1)).argmax())
    return (
        f"the bases of {np.count_nonzero(base)} jobs together take more devices than there are "
        f"(job {dearest} takes most: {base[dearest]:g} with {size[dearest]:g} devices). Lower some."
    )


def _groups(entity: ArrayLike, weight: ArrayLike, fifo: ArrayLike, n_jobs: int) -> tuple[Ints, Floats, Bools]:
    of = np.ascontiguousarray(entity, np.int64)
    weights, queues = np.ascontiguousarray(weight, np.float64), np.ascontiguousarray(fifo, np.bool_)
    if of.shape != (n_jobs,) or weights.ndim != 1 or weights.shape != queues.shape:
        raise InputError(
            f"entity has shape {of.shape}, entity_weight {weights.shape} and fifo {queues.shape}; "
            f"expected ({n_jobs},) and one of each per entity."
        )
    if not (of.min() >= 0 and of.max() < len(weights)):
        raise InputError(f"entities are numbered {of.min()} to {of.max()}; expected 0 to {len(weights) - 1}.")
    if not (weights.min() > 0 and weights.max() < np.inf):
        e = int(np.flatnonzero(~((weights > 0) & (weights < np.inf)))[0])
        raise InputError(f"entity {e} has weight {weights[e]}; expected more than 0.")
    return of, weights, queues


def column(values: ArrayLike, n: int) -> Floats:
    """Return (n,) numbers from as many or one."""
    return np.array(np.broadcast_to(np.asarray(values, np.float64), (n,)))

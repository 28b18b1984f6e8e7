"""A matrix game by a tiny simplex: mix responses so that no type of device is overused, compiled."""

from typing import Any

import numba
import numpy as np

from labkit.core.resources import Floats


@numba.njit(cache=True)
def balance(over: Floats, ease: Floats, price: Floats, mixture: Floats) -> float:
    """Mix K responses so that the worst excess over capacity is least: a matrix game, by the simplex method.

    Minimise y over mixtures (K,) with sum_k mixture_k over_ki + slack_i = ease_i y, sum_k mixture_k = 1. `price` (T,)
    becomes the duals, with price . ease = 1. A basis is y, in row 0, and T of the responses and slacks.
    """
    n, rows = len(mixture), len(ease) + 1
    inverse, basis = _first_basis(over, n, ease)
    column = np.empty(rows)
    for pivot in range(200 + 40 * rows):
        enter = _entering(over, n, inverse, pivot > 100 + 20 * rows)
        leave = -1 if enter < 0 else _leaving(over, n, enter, inverse, column)
        if leave < 0:
            break
        basis[leave] = enter
        _pivot(inverse, column, leave)
    mixture[:] = 0.0
    for r in range(1, rows):
        if basis[r] < n:
            mixture[basis[r]] = max(inverse[r, rows - 1], 0.0)
    for i in range(rows - 1):
        price[i] = max(-inverse[0, i], 0.0)
    return float(inverse[0, rows - 1])


@numba.njit(cache=True)
def _first_basis(over: Floats, n: int, ease: Floats) -> Any:
    """Return inverse and members of the basis of the best single response; slack i is member n + i."""
    n_types = len(ease)
    best, tight, least = 0, 0, np.inf
    for k in range(n):
        worst, at = -np.inf, 0
        for i in range(n_types):
            if over[k, i] / ease[i] > worst:
                worst, at = over[k, i] / ease[i], i
        if worst < least:
            best, tight, least = k, at, worst
    inverse, basis = np.zeros((n_types + 1, n_types + 1)), np.empty(n_types + 1, np.int64)
    basis[0], basis[1] = -1, best
    inverse[0, tight], inverse[0, n_types], inverse[1, n_types] = -1.0 / ease[tight], least, 1.0
    r = 2
    for i in range(n_types):
        if i != tight:
            basis[r] = n + i
            inverse[r, i], inverse[r, tight] = 1.0, -ease[i] / ease[tight]
            inverse[r, n_types] = ease[i] * least - over[best, i]
            r += 1
    return inverse, basis


@numba.njit(cache=True)
def _entering(over: Floats, n: int, inverse: Floats, first: bool) -> int:
    """Return the response or slack with the least reduced cost (or the first negative one), -1 if none is negative."""
    n_types = inverse.shape[0] - 1
    enter, least = -1, -1e-13
    for k in range(n + n_types):
        if k >= n:
            reduced = -inverse[0, k - n]
        else:
            reduced = -inverse[0, n_types]
            for i in range(n_types):
                reduced -= inverse[0, i] * over[k, i]
        if reduced < least:
            if first:
                return k
            enter, least = k, reduced
    return enter


@numba.njit(cache=True)
def _leaving(over: Floats, n: int, enter: int, inverse: Floats, column: Floats) -> int:
    """Write the entering member in terms of the basis; return the row that it drives to 0 first. y never leaves."""
    last = len(column) - 1
    leave, least = -1, np.inf
    for r in range(len(column)):
        if enter >= n:
            column[r] = inverse[r, enter - n]
        else:
            column[r] = inverse[r, last]
            for i in range(last):
                column[r] += inverse[r, i] * over[enter, i]
        if r > 0 and column[r] > 1e-12 and inverse[r, last] / column[r] < least:
            leave, least = r, inverse[r, last] / column[r]
    return leave


@numba.njit(cache=True)
def _pivot(inverse: Floats, column: Floats, leave: int) -> None:
    """Update the inverse of the basis in place."""
    size = len(column)
    for i in range(size):
        inverse[leave, i] /= column[leave]
    for r in range(size):
        if r != leave:
            for i in range(size):
                inverse[r, i] -= column[r] * inverse[leave, i]

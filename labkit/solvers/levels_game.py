"""A matrix game by a tiny simplex: mix responses so that no type of device is overused, compiled."""

from typing import Any

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner

REFRESH = 20
"""Pivots between two inversions."""

SMALL_GAIN, SMALL_PIVOT = 1e-9, 1e-6
"""What gains less is not worth a pivot that is smaller, which would leave the basis all but singular."""


@inner
def balance(over: Floats, ease: Floats, price: Floats, mixture: Floats) -> float:
    """Mix K responses so that the worst excess over capacity is least: a matrix game, by the simplex method.

    Minimise y over mixtures (K,) with sum_k mixture_k over_ki + slack_i = ease_i y, sum_k mixture_k = 1. `price` (T,)
    becomes the duals, with price . ease = 1. A basis is y, in row 0, and T of the responses and slacks.
    """
    n, rows = len(mixture), len(ease) + 1
    inverse, basis = _first_basis(over, n, ease)
    column = np.empty(rows)
    for pivot in range(200 + 40 * rows):
        enter, reduced = _entering(over, n, inverse, pivot > 100 + 20 * rows)
        leave = -1 if enter < 0 else _leaving(over, n, enter, inverse, column)
        if leave < 0 or (reduced > -SMALL_GAIN and column[leave] < SMALL_PIVOT):
            break
        basis[leave] = enter
        _pivot(inverse, column, leave)
        if pivot % REFRESH == REFRESH - 1:
            _refresh(over, n, ease, basis, inverse)
    _refresh(over, n, ease, basis, inverse)
    for i in range(rows - 1):
        price[i] = max(-inverse[0, i], 0.0)
    return _mixed(over, ease, basis, inverse, mixture)


@inner
def _mixed(over: Floats, ease: Floats, basis: Ints, inverse: Floats, mixture: Floats) -> float:
    """Read the mixture off the basis, clear of rounding; return its worst excess."""
    rows = len(basis)
    x, amiss = inverse[:, rows - 1].copy(), np.empty(rows)
    for _ in range(2):  # what rounding left in the inverse shows in the equations, and is taken out
        _residual(over, ease, basis, len(mixture), x, amiss)
        for r in range(rows):
            for i in range(rows):
                x[r] += inverse[r, i] * amiss[i]
    mixture[:] = 0.0
    for r in range(1, rows):
        if basis[r] < len(mixture):
            mixture[basis[r]] = max(x[r], 0.0)
    mixture /= mixture.sum()
    return _worst(over, ease, basis, mixture)


@inner
def _worst(over: Floats, ease: Floats, basis: Ints, mixture: Floats) -> float:
    """Return the worst excess of a mixture over the ease of its type."""
    rows = len(basis)
    worst = -np.inf
    for i in range(rows - 1):
        excess = 0.0
        for r in range(1, rows):
            if basis[r] < len(mixture):
                excess += mixture[basis[r]] * over[basis[r], i]
        worst = max(worst, excess / ease[i])
    return worst


@inner
def _residual(over: Floats, ease: Floats, basis: Ints, n: int, x: Floats, amiss: Floats) -> None:
    """Write by how much the basic solution x misses the equations."""
    last = len(basis) - 1
    for i in range(last):
        amiss[i] = ease[i] * x[0]
    amiss[last] = 1.0
    for r in range(1, last + 1):
        if basis[r] >= n:
            amiss[basis[r] - n] -= x[r]
            continue
        amiss[last] -= x[r]
        for i in range(last):
            amiss[i] -= over[basis[r], i] * x[r]


@inner
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


@inner
def _entering(over: Floats, n: int, inverse: Floats, first: bool) -> Any:
    """Return the response or slack with the least reduced cost (or the first negative one; -1: none), and that cost."""
    n_types = inverse.shape[0] - 1
    enter, least = -1, -1e-12
    for k in range(n + n_types):
        if k >= n:
            reduced = -inverse[0, k - n]
        else:
            reduced = -inverse[0, n_types]
            for i in range(n_types):
                reduced -= inverse[0, i] * over[k, i]
        if reduced < least:
            if first:
                return k, reduced
            enter, least = k, reduced
    return enter, least


@inner
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
        if r > 0 and column[r] > 1e-9:
            ratio = max(inverse[r, last], 0.0) / column[r]
            if ratio < least - 1e-15 or (ratio <= least and column[r] > column[leave]):  # a large pivot is accurate
                leave, least = r, ratio
    return leave


@inner
def _pivot(inverse: Floats, column: Floats, leave: int) -> None:
    """Update the inverse of the basis in place."""
    size = len(column)
    for i in range(size):
        inverse[leave, i] /= column[leave]
    for r in range(size):
        if r != leave:
            for i in range(size):
                inverse[r, i] -= column[r] * inverse[leave, i]


@inner
def _refresh(over: Floats, n: int, ease: Floats, basis: Ints, inverse: Floats) -> None:
    """Invert the basis anew, by elimination with pivots in each column: many updates leave errors behind."""
    rows = len(basis)
    both = _members(over, n, ease, basis)
    for c in range(rows):
        top = c + int(np.abs(both[c:, c]).argmax())
        if both[top, c] == 0.0:
            return
        for i in range(2 * rows):
            both[c, i], both[top, i] = both[top, i], both[c, i]
        _clear(both, c)
    for r in range(rows):
        for i in range(rows):
            inverse[r, i] = both[r, rows + i] / both[r, r]


@inner
def _clear(both: Floats, c: int) -> None:
    """Take row c from the others, so that column c is 0 there."""
    for r in range(len(both)):
        if r != c and both[r, c] != 0.0:
            factor = both[r, c] / both[c, c]
            for i in range(both.shape[1]):
                both[r, i] -= factor * both[c, i]


@inner
def _members(over: Floats, n: int, ease: Floats, basis: Ints) -> Floats:
    """Return the members of the basis as columns, beside the identity: (rows, 2 rows)."""
    rows = len(basis)
    both = np.zeros((rows, 2 * rows))
    for r in range(rows):
        both[r, rows + r] = 1.0
        for i in range(rows - 1):
            if r == 0:
                both[i, r] = -ease[i]
            elif basis[r] < n:
                both[i, r] = over[basis[r], i]
            else:
                both[i, r] = 1.0 if basis[r] - n == i else 0.0
        both[rows - 1, r] = 1.0 if r > 0 and basis[r] < n else 0.0
    return both

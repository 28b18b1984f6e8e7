"""Rows of a table that sum up others, as spreadsheets and reports write them below."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats

_NAMED: Final = re.compile(
    r"\W*(?:(?:grand|sub)[\s-]*)?(?:total|totals|sum|summe|gesamt|insgesamt|zwischensumme)\b", re.IGNORECASE
)


def named_total(cell: object) -> bool:
    """Return whether the first word of a row says that it sums up others.

    >>> named_total("Subtotal a"), named_total("TOTAL"), named_total("summer")
    (True, True, False)
    """
    return _NAMED.match(str(cell)) is not None


def totals(first_cells: Sequence[object], amounts: Sequence[Floats]) -> Bools:
    """Return which of N rows sum up others: they are named so, and an amount of theirs is the sum of these, (N,).

    Parameters
    ----------
    first_cells : sequence
        The first cell of each row, (N,).
    amounts : sequence of ndarray
        Columns of numbers, (N,) each; NaN counts as none.

    Examples
    --------
    >>> totals(["a", "b", "Total"], [np.array([4.0, 8.0, 12.0])]).tolist()
    [False, False, True]
    """
    named = np.array([named_total(cell) for cell in first_cells], np.bool_)
    found = np.zeros_like(named)
    for column in map(np.nan_to_num, amounts) if named.any() else ():
        below = np.r_[0.0, np.cumsum(np.where(named, 0.0, column))]  # of the rows above each one that sum up none
        since = 0.0
        for row in np.flatnonzero(named):
            sums = (below[-1], below[row], below[row] - since)
            found[row] |= column[row] > 0 and bool(np.isclose(sums, column[row], rtol=1e-3).any())
            since = below[row]
    return found

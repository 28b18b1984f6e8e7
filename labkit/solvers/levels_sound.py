"""Whether the numbers of a max-min problem are sound, in one pass: most are, and what is wrong with others is told."""

import numpy as np

from labkit.core.resources import Floats
from labkit.kernels import inner, kernel


@inner
def _least_and_most(numbers: Floats) -> tuple[float, float]:
    """Return the least and the greatest of some numbers (n,); NaN as the least where one is NaN."""
    least, most = np.inf, -np.inf
    for number in numbers:
        if not number >= least:
            least = number
        most = max(most, number)
        if number != number:
            return number, most
    return least, most


@inner
def _rows_sound(rows: Floats) -> bool:
    """Tell whether the numbers of each row are finite and at least 0, and one of them is more."""
    for i in range(rows.shape[0]):
        most = 0.0
        for k in range(rows.shape[1]):
            if not 0.0 <= rows[i, k] < np.inf:
                return False
            most = max(most, rows[i, k])
        if most == 0.0:
            return False
    return True


@kernel
def sound(
    value: Floats, capacity: Floats, use: Floats, size: Floats, base: Floats, slope: Floats, drag: Floats
) -> bool:  # fmt: skip
    """Tell whether `levels.fill` has nothing to refuse, all types have devices, and no job has a base."""
    for numbers, above in ((capacity, True), (size, True), (slope, False), (drag, False)):
        least, most = _least_and_most(numbers)
        if not (least >= 0.0 and most < np.inf) or (above and least == 0.0):
            return False
    least_base, most_base = _least_and_most(base)
    some_slope = _least_and_most(slope)[1] > 0.0
    return bool(least_base == 0.0 and most_base == 0.0 and some_slope and _rows_sound(value) and _rows_sound(use))

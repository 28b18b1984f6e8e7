"""How much work a job is believed to have left, by what it declared and what it has done."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.resources import Floats
from labkit.kernels import inner

OVERDUE_FRACTION: Final = 0.01
"""A job that outlived its declared steps is believed to have this fraction of them left."""
ROUNDING: Final = 1e-6
"""Part of its declared steps that a job must have done beyond them to have outlived them: less is rounding."""
LEAST_FRACTION: Final = 1e-12
"""Part of its declared steps that a job has left at least."""


def steps_left(total_steps: Floats, steps: Floats) -> Floats:
    """Return declared steps that are left, (J,) > 0; of a job that outlived its declaration `OVERDUE_FRACTION` of all.

    >>> steps_left(np.array([100.0, 100.0, 100.0]), np.array([99.5, 100.0, 130.0])).tolist()
    [0.5, 1e-10, 1.0]
    """
    left = total_steps - steps
    overdue = left < -ROUNDING * total_steps
    found: Floats = np.where(overdue, OVERDUE_FRACTION * total_steps, np.maximum(left, LEAST_FRACTION * total_steps))
    return found


@inner(_nrt=False)
def is_overdue(total_steps: float, left: float) -> bool:
    """Return whether a job has outlived its declaration, by its declared steps less those that it did."""
    return left < -ROUNDING * total_steps


@inner(_nrt=False)
def believed_left(total_steps: float, left: float) -> float:
    """Return the steps that one job is believed to have left, as `steps_left` does."""
    if is_overdue(total_steps, left):
        return OVERDUE_FRACTION * total_steps
    return max(left, LEAST_FRACTION * total_steps)

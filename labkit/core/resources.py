"""The kinds of resource, and the order of the resource axis R."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESOURCES: Final = ("gpus", "cpus", "memory_gb")
"""Names along the axis R of every capacity and demand."""

GPUS, CPUS, MEMORY_GB = range(3)

Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]
Bools = NDArray[np.bool_]
Amounts = NDArray[np.float32]
"""Cores or GB that a decision gives to tasks, as events keep them: in single precision; NaN: as declared."""


def amounts(*, gpus: ArrayLike = 0.0, cpus: ArrayLike = 0.0, memory_gb: ArrayLike = 0.0) -> Floats:
    """Return an amount of each resource, (R,) from scalars or (N, R) from columns.

    >>> amounts(gpus=1, cpus=2).tolist()
    [1.0, 2.0, 0.0]
    """
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.float64) for column in (gpus, cpus, memory_gb)))
    return np.stack(columns, axis=-1)

"""Bounds of numbers that people give: what multiplies work is refused before the work begins."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.errors import InputError

MAX_MACHINES: Final = 500_000
MAX_JOBS: Final = 2_000_000
"""The most jobs that a generator makes: some 25 times those of the public Philly trace."""

MAX_TASKS: Final = 100_000
"""The largest number of workers of one job that is believed."""

MAX_CELLS: Final = 1_000_000
"""The most runs of a sweep."""

MAX_DECISIONS: Final = 10_000_000
"""The most decisions that slots cut a trace into: ten million take a core minutes before any scheduler has worked."""


def whole(
    where: str, *, at_least: int = 1, at_most: int = MAX_MACHINES, multiple_of: int = 1, **arguments: object
) -> None:
    """Check that arguments are whole numbers in range.

    Raises
    ------
    InputError
        Naming the function, the argument, its value and what was expected.
    """
    for name, value in arguments.items():
        number = int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else -1
        if not at_least <= number <= at_most or number % multiple_of:
            multiple = f", a multiple of {multiple_of}" if multiple_of > 1 else ""
            raise InputError(
                f"{where}: {name} is {value!r}; expected a whole number from {at_least} to {at_most}{multiple}."
            )

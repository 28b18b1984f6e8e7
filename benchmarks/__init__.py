"""Measurements, one module per subject: each has `rows()`, which measures and returns a `Row` (or a dict of its
fields) per number.

`python -m benchmarks` runs all of them, `python -m benchmarks metrics` some; with `--short` on sizes that tell nothing,
to see that they run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

SHORT = "LABKIT_BENCHMARKS_SHORT"
"""Set in the environment: benchmarks, and the processes that they start, take the sizes that tell nothing."""


def size(full: int, *, short: int) -> int:
    """Return how many, how large or how often: in full, or as a short run has it."""
    return short if os.environ.get(SHORT) else full


@dataclass(frozen=True, slots=True)
class Row:
    """A measured number beside its goal; `command` measures it again."""

    name: str
    value: float
    unit: str
    goal: float | None
    higher_is_better: bool
    command: str

    @property
    def met(self) -> bool | None:
        """True if the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal


def best_s(run: Callable[[], object], *, repeat: int = 3) -> float:
    """Return the shortest of some runs in seconds; the machine's other work only ever adds to it."""

    def once() -> float:
        began_s = time.perf_counter()
        run()
        return time.perf_counter() - began_s

    return min(once() for _ in range(repeat))

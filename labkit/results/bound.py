"""The mean JCT that no scheduler can go below, beside tables of runs: noted when a run begins, kept in its record."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.results.record import RunRecord

BOUND: Final = "bound_jct_s"
"""In the configuration of a run, and a column of a sweep: seconds; left out or NaN where it is not known."""

FASTER: Final = "bound_faster"
"""In the configuration of a run, and among what a sweep tells: the bound rests on gangs faster than those asked for."""

BOUND_LABEL: Final = "(bound)"
"""What stands in the column of schedulers."""

WHAT: Final = "each job alone on its fastest gang from its arrival on, in an infinite cluster"
"""What the bound is, in words (`labkit.experiment.bound`)."""


UNREACHED: Final = "; schedulers that keep the requested gang cannot reach it"
"""What is told where the bound rests on faster gangs."""


def bound_jct_s(record: RunRecord) -> float:
    """Return the bound of a run's mean JCT in seconds; NaN where it is not known, or not all jobs of it completed."""
    return float(record.info.config.get(BOUND, np.nan)) if record.complete else float("nan")


def told_bound(value: str, *, faster: bool = False) -> str:
    """Return the sentence that tells a bound; `faster`: it rests on gangs faster than those that were asked for.

    >>> told_bound("44 min")[:44]
    'bound: no scheduler can be below 44 min (eac'
    >>> told_bound("44 min", faster=True)[-30:]
    'requested gang cannot reach it'
    """
    return f"bound: no scheduler can be below {value} ({WHAT}){UNREACHED * faster}"

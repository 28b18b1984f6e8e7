"""What can be wrong with the columns of a trace, told a line for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Bools, Floats

Column = NDArray[Any]
MANNERS: Final = ("wait", "prefer", "split")
"""How a gang lies on machines: see `labkit.core.hosting`."""
ZONES: Final = ("rack", "pod")
"""Within one of what a gang may have to lie."""


def _not_positive(column: Column) -> Bools:
    return np.asarray(~np.isfinite(column) | (column <= 0))


def _no_amount(column: Column) -> Bools:
    return np.asarray(~np.isfinite(column) | (column < 0))


def _negative(demand: Floats) -> Bools:
    return np.asarray(~(demand >= 0).all(axis=1) | ~np.isfinite(demand).all(axis=1))


_ALONE: Final[tuple[tuple[str, Callable[[Column], Bools], str], ...]] = (
    ("arrival_s", lambda seconds: ~np.isfinite(seconds) | (seconds < 0), "seconds >= 0"),
    ("total_steps", _not_positive, "> 0"),
    ("true_steps", _not_positive, "> 0"),
    ("steps_per_epoch", _not_positive, "> 0"),
    ("samples_per_step", lambda n: np.isinf(n) | (n <= 0), "> 0, or none where a step is a parameter update"),
    ("duration_s", lambda seconds: np.isinf(seconds) | (seconds <= 0), "> 0 or unknown"),
    ("n_workers", lambda n: n < 1, ">= 1"),
    ("n_ps", lambda n: n < 0, ">= 0"),
    ("worker_demand", _negative, "amounts >= 0"),
    ("ps_demand", _negative, "amounts >= 0"),
    ("weight", lambda weight: ~(weight > 0), "> 0"),
    ("slo_s", lambda seconds: seconds <= 0, "> 0 or none"),
    ("loss_delta", lambda delta: delta <= 0, "> 0 or none"),
    ("gpu_memory_gb", _no_amount, "GB >= 0"),
    ("ps_memory_base_gb", _no_amount, "GB >= 0"),
    ("ps_memory_growth_gb", _no_amount, "GB >= 0"),
    ("home", lambda pod: pod < -1, "a pod >= 0, or -1 for any"),
    ("nodes", lambda n: n < 0, "a number of machines, or 0 for any"),
    ("at_most", lambda n: n < 0, "a number of jobs, or 0 for any"),
    ("begin_s", lambda seconds: np.isinf(seconds) | (seconds < 0), "seconds >= 0 or none"),
    ("limit_s", lambda seconds: np.isinf(seconds) | (seconds <= 0), "seconds > 0 or none"),
    ("recorded_start_s", lambda seconds: np.isinf(seconds) | (seconds < 0), "seconds >= 0 or not known"),
    ("consolidate", lambda how: ~np.isin(how, ["", *MANNERS]), f"one of {', '.join(MANNERS)}, or none"),
    ("within", lambda zone: ~np.isin(zone, ["", *ZONES]), f"{' or '.join(ZONES)}, or none"),
    ("priority", lambda priority: ~np.isfinite(priority), "a finite number"),
)
"""Columns that are checked by themselves: the name, which values are wrong, and what was expected."""


def faults_of(columns: Mapping[str, Any]) -> list[str]:
    """Return the faults of jobs, given their columns by name as `labkit.core.jobs.Jobs` has them, a line each."""
    if not len(columns["arrival_s"]):
        return ["it has no jobs; a trace needs at least one"]
    checks = [(bad(columns[name]), name, expected) for name, bad, expected in _ALONE]
    checks += [
        (columns["max_workers"] < columns["n_workers"], "max_workers", ">= n_workers"),
        (columns["max_ps"] < columns["n_ps"], "max_ps", ">= n_ps"),
        (columns["nodes"] > np.maximum(columns["n_workers"], columns["n_ps"]), "nodes", "no more than n_workers"),
        (
            ~_counts_alike(columns), "samples_per_step",
            "that of the other jobs of its model; count the steps of all of them alike",
        ),
    ]  # fmt: skip
    faults = [
        f"job {columns['id'][i]}: {name} is {columns[name][i]}; expected {expected}"
        for wrong, name, expected in checks
        for i in np.flatnonzero(wrong)
    ]
    names, counts = np.unique(columns["id"].astype(str), return_counts=True)
    return faults + [
        f"job id '{name}' occurs {n} times; ids must be unique" for name, n in zip(names, counts, strict=True) if n > 1
    ]


def _counts_alike(columns: Mapping[str, Any]) -> Bools:
    """Return which jobs have steps of the size that the last job of their model has, (N,)."""
    mine = columns["samples_per_step"]
    of_model = np.full(len(columns["models"]), np.nan)
    of_model[columns["model"]] = mine
    theirs = of_model[columns["model"]]
    return np.asarray((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))

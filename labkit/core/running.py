"""Tasks of running jobs as speed models take them, and what such a model says that they use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Floats, Ints

TROUBLED: Final = np.dtype(
    [("at", np.int32), ("role", np.int8), ("task", np.int32), ("pace", np.float64), ("load", np.float64)]
)
"""A task that works at a part of its pace, or has `load` times the mean share of its job's updates; `at`: the position
of its job in `Running.job`, `task`: its number within the role, in the order of the job's rows."""

_NO_TROUBLES: Final = np.empty(0, TROUBLED)


@dataclass(frozen=True, eq=False, slots=True)
class Running:
    """The tasks of running jobs, for a speed model.

    Attributes
    ----------
    job : array
        (J,) job numbers.
    first : array
        (J + 1,) tasks of job `job[j]` are rows `first[j]:first[j + 1]` of the columns below.
    role, group, count : array
        (P,) how many tasks of a role sit in a device group.
    n_workers, n_ps : array
        (J,) tasks of each job by role.
    partner : array
        (J,) number of the job with which each one shares its GPUs, or -1; empty: no job shares.
    changing : array
        (J,) what is under way: 0 nothing, 1 a start (it does not train yet), 2 a rescale (it trains with these tasks
        until that is over); empty: no job changes. For a `ChangeModel` only.
    n_new : array
        (J,) processes that are started by that.
    cpus, memory_gb : array
        (P,) cores and GB of each task of a row, where a decision gave any task other ones than declared; empty: all
        have what was declared.
    steps : array
        (J,) steps that each job has done, for a `PhaseModel`; empty: not told.
    troubles : array
        Of dtype `TROUBLED`, each of another task: what is wrong with it. Only a simulator knows, and only models with
        `troubles = True` can show it.
    """

    job: Ints
    first: Ints
    role: NDArray[np.int8]
    group: Ints
    count: Ints
    n_workers: Ints
    n_ps: Ints
    partner: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    changing: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    n_new: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    cpus: Floats = field(default_factory=lambda: np.empty(0))
    memory_gb: Floats = field(default_factory=lambda: np.empty(0))
    troubles: NDArray[Any] = field(default_factory=lambda: _NO_TROUBLES)
    steps: Floats = field(default_factory=lambda: np.empty(0))

    def row_job(self) -> Ints:
        """Return the position in `job` that each task row belongs to, (P,)."""
        return np.repeat(np.arange(len(self.job), dtype=np.int32), np.diff(self.first))


@dataclass(frozen=True, eq=False, slots=True)
class TaskUse:
    """What one task of each row of `Running` uses, and its speed, (P,) each; NaN: not known, or not of its role."""

    cores: Floats
    """Cores in use, mean over time."""
    step_s: Floats
    compute_s: Floats
    """`step_s` and `compute_s`: of a worker: seconds between two of its steps, and those in which it computes its
    gradient."""
    load: Floats
    """Of a parameter server: part of the job's gradient bytes that it takes in."""


@dataclass(frozen=True, eq=False, slots=True)
class EachTask:
    """What each single task of running jobs uses, K of them, in order of job, role and task."""

    at: Ints
    """(K,) position of its job in `Running.job`."""
    role: NDArray[np.int8]
    task: Ints
    row: Ints
    """`role`, `task` and `row`: (K,) its role, its number within it, and its row of `Running`."""
    use: TaskUse
    """(K,) each; here `compute_s` of a server is the time that an update of the size of the whole model takes it."""

"""What is declared of the jobs of a trace: all that a scheduler may know of them, and nothing of the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import TruthError
from labkit.core.jobs import Jobs

if TYPE_CHECKING:
    import pandas as pd

TRUTH = {
    "true_steps": "total_steps, or snapshot.jobs.remaining_steps",
    "ps_memory_base_gb": "snapshot.jobs.used_memory_gb",
    "ps_memory_growth_gb": "snapshot.jobs.used_memory_gb",
}
"""Columns that only a backend may read, and what a scheduler reads instead."""


class DeclaredJobs(Jobs):
    """Jobs without the columns of the truth, and without a way back to them; `Jobs.declared` makes it.

    Raises
    ------
    TruthError
        When a column of the truth is read.
    """

    def __init__(self, **columns: Any) -> None:
        for name, column in columns.items():
            object.__setattr__(self, name, column)

    @classmethod
    def without_truth(cls, jobs: Jobs) -> DeclaredJobs:
        """Return the declared columns of some jobs."""
        return cls(**cls._columns_of(jobs))

    @property
    def true_steps(self) -> NoReturn:  # that it cannot be read is what this class is for
        """Refuse."""
        raise _refused("true_steps")

    @property
    def ps_memory_base_gb(self) -> NoReturn:
        """Refuse."""
        raise _refused("ps_memory_base_gb")

    @property
    def ps_memory_growth_gb(self) -> NoReturn:
        """Refuse."""
        raise _refused("ps_memory_growth_gb")

    @property
    def declared(self) -> DeclaredJobs:  # nothing is to be kept: it is what it returns
        """These jobs."""
        return self

    def take(self, which: ArrayLike) -> Self:
        """Return the jobs that an index or a mask names, in that order."""
        return type(self)(**self._columns_of(self.as_if_true().take(which)))

    def with_columns(self, **columns: Any) -> Self:
        """Return a copy with some columns replaced."""
        return type(self)(**self._columns_of(self.as_if_true().with_columns(**columns)))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per job."""
        return self.as_if_true().to_frame().drop(columns=list(TRUTH))

    def as_if_true(self) -> Jobs:
        """Return jobs of which every declaration is right."""
        nothing = np.zeros(len(self))
        truth = {"true_steps": self.total_steps, "ps_memory_base_gb": nothing, "ps_memory_growth_gb": nothing}
        return Jobs(**self._columns_of(self), **truth)

    @staticmethod
    def _columns_of(jobs: Jobs) -> Mapping[str, Any]:
        return {f.name: getattr(jobs, f.name) for f in fields(jobs) if f.name not in TRUTH}

    def __repr__(self) -> str:
        return f"<what is declared of {len(self)} jobs of {self.name}>"


def _refused(column: str) -> TruthError:
    return TruthError(
        f"a scheduler cannot read {column}: what a job really needs is the simulator's secret; read {TRUTH[column]}."
    )

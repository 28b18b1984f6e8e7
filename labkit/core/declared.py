"""What is declared of the jobs of a trace: all that a scheduler may know of them, and nothing of the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, Self

from numpy.typing import ArrayLike

from labkit.core.errors import TruthError
from labkit.core.jobs import Jobs

if TYPE_CHECKING:
    import pandas as pd

TRUTH = {"true_steps": "total_steps, or snapshot.jobs.remaining_steps"}
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
        raise TruthError(
            f"a scheduler cannot read true_steps: what a job really needs is the simulator's secret; read "
            f"{TRUTH['true_steps']}."
        )

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
        return Jobs(**self._columns_of(self), true_steps=self.total_steps)

    @staticmethod
    def _columns_of(jobs: Jobs) -> Mapping[str, Any]:
        return {f.name: getattr(jobs, f.name) for f in fields(jobs) if f.name not in TRUTH}

    def __repr__(self) -> str:
        return f"<what is declared of {len(self)} jobs of {self.name}>"

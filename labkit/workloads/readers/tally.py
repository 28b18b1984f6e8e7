"""What became of the rows of a trace: read, merged into others, or left out, each with a reason and a count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools


class Read(NamedTuple):
    """The jobs of a trace, and what became of its rows."""

    jobs: Jobs
    tally: Tally


class Tally:
    """Counts the rows of a trace: those that are jobs, and those that are not, by reason.

    Parameters
    ----------
    n_rows : int
        Rows of the file, or entries of its list.
    noun : str
        What a row is called, in the plural.
    """

    def __init__(self, n_rows: int, *, noun: str) -> None:
        self.n_rows, self.noun = n_rows, noun
        self.left_out: dict[str, int] = {}
        self.merged: dict[str, int] = {}
        self._remarks: list[tuple[str, int]] = []

    @property
    def n_jobs(self) -> int:
        """How many rows are left, each of which is a job."""
        return self.n_rows - sum(self.left_out.values()) - sum(self.merged.values())

    def leave_out(self, n: ArrayLike, reason: str) -> None:
        """Count rows that are no jobs of the trace."""
        self._count(self.left_out, n, reason)

    def merge(self, n: ArrayLike, reason: str) -> None:
        """Count rows that became part of a job that another row stands for."""
        self._count(self.merged, n, reason)

    def remark(self, n: ArrayLike, said: str) -> None:
        """Note what was guessed or fallen back to for n jobs; nothing where there are none."""
        count = int(np.sum(n))
        if count:
            self._remarks.append((said, count))

    def notes(self) -> list[str]:
        """Return a line for each thing to know."""
        lines = []
        if self.left_out:
            lines.append(f"left out of {self.n_rows:,} {self.noun}: {_listed(self.left_out)}.")
        if self.merged:
            lines.append(f"{self.noun} that are part of the job of another one: {_listed(self.merged)}.")
        return lines + [f"{said}: {n:,} of {self.n_jobs:,} jobs." for said, n in self._remarks]

    def keep(self, reasons: Iterable[tuple[Bools, str]]) -> Bools:
        """Return which rows are jobs, (N,): those for which no reason holds; of several, the first one counts."""
        kept = np.ones(self.n_rows, np.bool_)
        for bad, reason in reasons:
            self.leave_out(kept & bad, reason)
            kept &= ~bad
        return kept

    def refuse_none(self, path: object, remedy: str) -> None:
        """Raise if no row is a job.

        Raises
        ------
        TraceError
            With what became of the rows.
        """
        if self.n_jobs < 1:
            gone = self.left_out | self.merged
            told = f" ({_listed(gone)})" if gone else ""
            raise TraceError(
                f"{path}: none of {self.n_rows:,} {self.noun} is a job with GPUs that ran{told}; {remedy}."
            )

    @staticmethod
    def _count(into: dict[str, int], n: ArrayLike, reason: str) -> None:
        count = int(np.sum(n))
        if count:
            into[reason] = into.get(reason, 0) + count


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in counts.items())


SAME = "repeated, the same in every column"
"""Of rows that are merged into an earlier one."""

"""The ledger of a trace: each row of the file and each of its GPU-hours is in a job, or has a reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints

DATES_S: Final = 1e8
"""Larger seconds are since 1970; smaller ones since a trace's own zero."""
SAME: Final = "repeated, the same in every column"
"""Of rows that are merged into an earlier one."""

NEGLIGIBLE: Final = 1e-3
"""Share of the GPU-hours below which a difference is rounding."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Who held how many GPUs from when to when, as the file recorded it; a job has one for each attempt."""

    gpus: Floats
    """GPUs held, (S,)."""
    start_s: Floats
    end_s: Floats
    """`start_s` and `end_s`: seconds since 1970, or since the trace's own zero, (S,)."""

    @classmethod
    def of(cls, gpus: ArrayLike, start_s: ArrayLike, end_s: ArrayLike) -> Self:
        """Return the segments of which both ends are known, and that hold GPUs."""
        held, start, end = (np.asarray(column, np.float64) for column in (gpus, start_s, end_s))
        known = (held > 0) & np.isfinite(start) & np.isfinite(end) & (end > start)
        return cls(held[known], start[known], end[known])


class TraceLedger:
    """Counts rows and GPU-hours of a trace: those that are jobs, and those that are not, by reason.

    Parameters
    ----------
    n_rows : int
        Rows of the file, or entries of its list.
    noun : str
        What a row is called, in the plural.
    gpu_hours : array_like, optional
        GPU-hours of each row as the file has them, (N,), NaN where they are not known; without it hours are not
        booked. A mask over all rows then books its hours too.

    Attributes
    ----------
    left_out, merged : dict
        Rows by reason.
    hours : dict
        GPU-hours of the file that are in no job by reason; negative for those that jobs have and the file has not.
    file_hours, job_hours : float
        GPU-hours of all rows, and of the jobs; NaN where not known.
    checks : list of str
        What cross-checks of the file found.
    """

    def __init__(self, n_rows: int, *, noun: str, gpu_hours: ArrayLike | None = None) -> None:
        self.n_rows, self.noun = n_rows, noun
        self.left_out: dict[str, int] = {}
        self.merged: dict[str, int] = {}
        self.hours: dict[str, float] = {}
        self.file_hours = self.job_hours = float("nan")
        self.checks: list[str] = []
        self._remarks: list[tuple[str, int]] = []
        self._row_hours: Floats | None = None
        if gpu_hours is not None:
            self.open(gpu_hours)

    def open(self, gpu_hours: ArrayLike) -> None:
        """Book the GPU-hours of all rows, (N,) or their sum; NaN counts as none."""
        self._row_hours = np.nan_to_num(np.asarray(gpu_hours, np.float64))
        self.file_hours = float(self._row_hours.sum())

    @property
    def hours_of_rows(self) -> Floats:
        """GPU-hours of each row as the file has them, (N,)."""
        return np.zeros(self.n_rows) if self._row_hours is None else self._row_hours

    @property
    def n_jobs(self) -> int:
        """How many rows are left, each of which is a job."""
        return self.n_rows - sum(self.left_out.values()) - sum(self.merged.values())

    def leave_out(self, n: ArrayLike, reason: str, *, gpu_hours: ArrayLike | None = None) -> None:
        """Count rows that are no jobs: how many, or which; `gpu_hours` are theirs, or of all that `n` covers."""
        self._count(self.left_out, n, reason)
        self._book(n, reason, gpu_hours)

    def merge(self, n: ArrayLike, reason: str, *, gpu_hours: ArrayLike | None = None) -> None:
        """Count rows that are part of the job of another row; `gpu_hours` if that job does not have them."""
        self._count(self.merged, n, reason)
        if gpu_hours is not None:
            self._book(n, reason, gpu_hours)

    def adjust(self, gpu_hours: float, reason: str) -> None:
        """Book GPU-hours that jobs lack (or have beyond the file, if negative) without a row that is gone."""
        if gpu_hours:
            self.hours[reason] = self.hours.get(reason, 0.0) + float(gpu_hours)

    def remark(self, n: ArrayLike, text: str) -> None:
        """Note what was guessed or fallen back to for n jobs; nothing where there are none."""
        count = int(np.sum(n))
        if count:
            self._remarks.append((text, count))

    def check(self, finding: str) -> None:
        """Note what a cross-check of the file found, in a sentence."""
        self.checks.append(finding)

    def close(self, jobs: Jobs) -> Jobs:
        """Book the GPU-hours of the jobs, and return the jobs with all that is to be known as their notes."""
        from dataclasses import replace

        self.job_hours = float(np.nansum(jobs.gpus * jobs.duration_s) / 3600)
        return replace(jobs, notes=(*jobs.notes, *self.notes()))

    @property
    def unexplained_hours(self) -> float:
        """GPU-hours of the file that are neither in jobs nor have a reason; 0 but for rounding where all is well."""
        rest = self.file_hours - self.job_hours - sum(self.hours.values())
        return rest if abs(rest) > NEGLIGIBLE * max(abs(self.file_hours), abs(self.job_hours)) else 0.0

    def balance(self) -> str:
        """Return the sentence that says where the GPU-hours of the file are; "" where they are not known."""
        if not np.isfinite(self.file_hours + self.job_hours):
            return ""
        parts = [f"{self.job_hours:,.6g} in jobs"]
        parts += [f"{hours:,.6g} {reason}" for reason, hours in self.hours.items()]
        parts += [f"{rest:,.6g} without a reason"] if (rest := self.unexplained_hours) else []
        return f"GPU-hours: {self.file_hours:,.6g} in the file = {' + '.join(parts).replace('+ -', '- ')}."

    def notes(self) -> list[str]:
        """Return a line for each thing to know."""
        lines = []
        if self.left_out:
            lines.append(f"left out of {self.n_rows:,} {self.noun}: {_listed(self.left_out)}.")
        if self.merged:
            lines.append(f"{self.noun} that are part of the job of another one: {_listed(self.merged)}.")
        return lines + self.guesses() + self.checks + ([self.balance()] if self.hours or self.unexplained_hours else [])

    def guesses(self) -> list[str]:
        """Return a line for each thing that was guessed or fallen back to."""
        return [f"{text}: {n:,} of {self.n_jobs:,} jobs." for text, n in self._remarks]

    def keep(self, reasons: Iterable[tuple[Bools, str]]) -> Bools:
        """Return which rows are jobs, (N,): those for which no reason holds; of several, the first one counts."""
        kept = np.ones(self.n_rows, np.bool_)
        for bad, reason in reasons:
            self.leave_out(kept & bad, reason)
            kept &= ~bad
        return kept

    def refuse_none(self, path: object, remedy: str) -> None:
        """Raise if no row is a job.

        Raise TraceError with what became of the rows.
        """
        if self.n_jobs < 1:
            gone = self.left_out | self.merged
            reasons = f" ({_listed(gone)})" if gone else ""
            raise TraceError(
                f"{path}: none of {self.n_rows:,} {self.noun} is a job with GPUs that ran{reasons}; {remedy}."
            )

    def _book(self, n: ArrayLike, reason: str, gpu_hours: ArrayLike | None) -> None:
        which = np.asarray(n)
        hours = self._row_hours if gpu_hours is None else np.asarray(gpu_hours, np.float64)
        if hours is None:
            return
        if which.dtype == np.bool_ and which.shape == hours.shape and which.ndim:
            self.adjust(float(np.nansum(hours[which])), reason)
        elif gpu_hours is not None:
            self.adjust(float(np.nansum(hours)), reason)

    @staticmethod
    def _count(into: dict[str, int], n: ArrayLike, reason: str) -> None:
        count = int(np.sum(n))
        if count:
            into[reason] = into.get(reason, 0) + count


class Read(NamedTuple):
    """The jobs of a trace, what became of its rows, and the recorded schedule where the file has one."""

    jobs: Jobs
    ledger: TraceLedger
    segments: Segments | None = None
    zero_s: float = float("nan")
    """The moment of the first arrival, in seconds since 1970, or since the trace's own zero; NaN: not told."""

    def dated(self) -> Read:
        """Return it with jobs that know the moment of the first arrival, if that is a date."""
        return self._replace(jobs=replace(self.jobs, zero_s=self.zero_s)) if self.zero_s > DATES_S else self


def plain(jobs: Jobs, *, noun: str = "rows") -> Read:
    """Return the jobs of a format in which each row is a job as it stands."""
    ledger = TraceLedger(len(jobs), noun=noun, gpu_hours=jobs.gpus * jobs.duration_s / 3600)
    return Read(ledger.close(jobs), ledger)


def occupied(segments: Segments) -> tuple[Floats, Floats]:
    """Return the moments at which GPUs are taken or given back, and how many are in use from each on, (T,) each."""
    when = np.r_[segments.start_s, segments.end_s]
    change = np.r_[segments.gpus, -segments.gpus]
    order: Ints = np.lexsort((change, when)).astype(np.int64)  # what ends at a moment is free for what starts then
    moments, last = when[order], np.cumsum(change[order])
    final = np.r_[moments[1:] != moments[:-1], True] if len(moments) else np.empty(0, np.bool_)
    return moments[final], last[final]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in counts.items())

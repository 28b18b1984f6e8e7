"""What a scheduler sees of a snapshot where some jobs are hidden, as by quotas."""

from __future__ import annotations

from functools import cached_property

from labkit.core.job_columns import JobColumns
from labkit.core.ledger import Ledger
from labkit.core.resources import Bools, Ints
from labkit.core.snapshot import Snapshot


class AdmittedSnapshot(Snapshot):
    """A snapshot in which only some of the active jobs are there.

    All that hold tasks are among them, but in a part of the cluster (`labkit.core.part_snapshot`).

    Parameters
    ----------
    ledger, now_s, number, runs_on
        As `Snapshot` takes them.
    admitted : array
        Numbers of the jobs that are there, by arrival.
    """

    def __init__(self, ledger: Ledger, *, now_s: float, number: int, runs_on: Bools, admitted: Ints) -> None:
        super().__init__(ledger, now_s=now_s, number=number, runs_on=runs_on)
        self._number = admitted

    @cached_property
    def jobs(self) -> JobColumns:
        """The jobs that were admitted, by arrival."""
        return JobColumns(self._fresh(), self.now_s, number=self._number)

    @cached_property
    def waiting(self) -> Ints:
        """Numbers of the admitted jobs that hold no tasks, by arrival."""
        waiting: Ints = self._number[~self.holds(self._number)]
        return waiting

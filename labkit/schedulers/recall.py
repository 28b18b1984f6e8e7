"""What a scheduler remembers from one decision to the next, so that the same question gets the same answer."""

from __future__ import annotations

from typing import Generic, TypeVar

from labkit.core.jobs import Jobs
from labkit.core.snapshot import Snapshot

S = TypeVar("S")


class Recall(Generic[S]):
    """The state of a scheduler before and after its newest decision; states are values that do not change.

    Parameters
    ----------
    fresh : S
        What is remembered when a run begins.
    """

    def __init__(self, fresh: S) -> None:
        self._fresh = self._before = self._after = fresh
        self._number = -1
        self._table: Jobs | None = None

    def forget(self) -> None:
        """Begin anew."""
        self._before = self._after = self._fresh
        self._number, self._table = -1, None

    def before(self, snapshot: Snapshot) -> S:
        """Return the memory from before this decision, also at a repeated request."""
        if snapshot.table is not self._table or snapshot.number < self._number:
            self.forget()
        if snapshot.number != self._number:
            self._before = self._after
        self._number, self._table = snapshot.number, snapshot.table
        return self._before

    @property
    def newest(self) -> S:
        """What is remembered now."""
        return self._after

    def keep(self, state: S) -> None:
        """Remember a state for the decisions after this one."""
        self._after = state

"""A snapshot in which other amounts are free: what a scheduler sees once it has decided about some jobs."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot

_NONE: Final[Ints] = np.empty(0, np.int32)


class LaterSnapshot(Snapshot):
    """A snapshot in which other amounts are free and nothing else has changed: once some jobs have started or ended.

    Parameters
    ----------
    now : Snapshot
        What is known now.
    left : array
        (G, R + D) what is free then; also without what some jobs hold that are to be placed anew.
    anew : array
        These jobs; by default none.
    """

    def __init__(self, now: Snapshot, left: Floats, *, anew: Ints = _NONE) -> None:
        super().__init__(now._fresh(), now_s=now.now_s, number=now.number, runs_on=now.runs_on)
        self._now, self._left, self._anew = now, left, anew

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what will be free."""
        if not len(self._anew):
            return self._left.copy()
        there: Floats = self._left - (self._now.left_without(self._anew) - self._now.left)
        return there

    @property
    def offered(self) -> Floats:
        """(G, R) what each device group has when it is empty; for reading only."""
        return self._now.offered

    @cached_property
    def up(self) -> Bools:
        """(M,) machines that are there."""
        return self._now.up

    def left_without(self, jobs: Ints) -> Floats:  # noqa: ARG002 - of those to be placed anew, and jobs that hold nothing
        """Return the future free capacity, a new (G, R + D)."""
        return self._left.copy()

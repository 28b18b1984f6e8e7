"""The leases of an asynchronous worker: which minibatches it may compute, and what it does without a controller."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

from labkit.elastic.protocol.messages.orders import SampleLease
from labkit.elastic.protocol.messages.reports import UpdateDone

REPORTS_KEPT = 3
"""Leases whose reports are kept: without a controller a worker ends the lease that it has and the next one."""

ALONE_LEASES = 0.6
"""Lease times that a worker goes on without a controller. The controller lets a lease expire no earlier than 0.75 lease
times after the connection ended. A worker that is only cut off must have stopped by then, because another worker gets
the same samples."""


class LeaseRest(NamedTuple):
    """What is left of a lease.

    Attributes
    ----------
    token : int
        Names the lease.
    epoch : int
        Number of the epoch.
    start, end : int
        Positions in the epoch's order, from `start` to before `end`.
    """

    token: int
    epoch: int
    start: int
    end: int


class LeaseQueue:
    """The leases that a worker holds; guarded by the worker's condition.

    Parameters
    ----------
    lease_s : float
        Seconds after which the controller may give a lease to another worker if it receives nothing from this one.

    Attributes
    ----------
    asked : bool
        Whether a lease has been requested that has not come.
    reports : dict
        Reports of each of the latest leases, by token: a new controller may not have received them.
    """

    def __init__(self, *, lease_s: float) -> None:
        self._alone_s = ALONE_LEASES * lease_s
        self._until_s = math.inf  # when it stops without a controller
        self._rests: deque[LeaseRest] = deque()
        self.asked = False
        self.reports: dict[int, list[UpdateDone]] = {}

    def clear(self) -> None:
        """Drop all leases: the era is over."""
        self._rests.clear()
        self.reports.clear()
        self.asked = False

    def add(self, lease: SampleLease) -> None:
        """Add a lease that was requested."""
        self.asked = False
        self._rests.append(LeaseRest(*lease))

    def remove(self, token: int) -> None:
        """Remove a lease that has expired: another worker may have it."""
        self._rests = deque(rest for rest in self._rests if rest.token != token)

    def disconnect(self) -> None:
        """Stop after some time without the controller: it may have died, or may take this worker for dead."""
        self._until_s = min(self._until_s, time.monotonic() + self._alone_s)

    def reconnect(self) -> None:
        """Go on without a time limit: the controller is connected."""
        self._until_s = math.inf

    def keep(self, tokens: Collection[int], grants: Iterable[SampleLease]) -> None:
        """Keep only the leases that a controller confirms after a reconnection, and add those that did not arrive.

        Parameters
        ----------
        tokens : collection of int
            Leases that are still this worker's.
        grants : iterable
            Each of them. One that is unknown here was granted in a lost message.
        """
        self.reconnect()
        known = {rest.token for rest in self._rests} | self.reports.keys()
        mine = [rest for rest in self._rests if rest.token in tokens]
        self._rests = deque([*mine, *(LeaseRest(*grant) for grant in grants if grant.token not in known)])

    def first(self) -> LeaseRest | None:
        """Return the lease to work on; None if there is none, or the time without a controller is over."""
        return self._rests[0] if self._rests and time.monotonic() < self._until_s else None

    def is_last(self) -> bool:
        """Return whether only one lease is left."""
        return len(self._rests) == 1

    def advance(self, rest: LeaseRest, end: int, report: UpdateDone) -> None:
        """Shorten a lease to the positions from `end` on, and keep the report of it.

        A lease that has been removed meanwhile stays removed.
        """
        if self._rests and self._rests[0] == rest:
            self._rests.popleft()
            if end < rest.end:
                self._rests.appendleft(rest._replace(start=end))
        self.reports.setdefault(rest.token, []).append(report)
        while len(self.reports) > REPORTS_KEPT:
            del self.reports[next(iter(self.reports))]

"""A time limit of a run on machines: the run is ended there, and its record says so."""

from __future__ import annotations

import math
from typing import Final

from labkit.core.cluster import Cluster
from labkit.core.errors import EndedError, InputError
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import Backend
from labkit.core.text import human_s

LONGEST_S: Final = 365 * 86400.0


class TimeLimitError(EndedError):
    """A run on machines was ended at its time limit."""


class TimeLimited:
    """A live backend that ends the run at a time limit.

    `backend`: where jobs run; one that is live comes back at least each second; `limit_s`: seconds of the run's clock.
    """

    def __init__(self, backend: Backend, *, limit_s: float) -> None:
        self._backend, self._limit_s = backend, limit_s
        self.jobs: Jobs = backend.jobs
        self.cluster: Cluster = backend.cluster
        self.live = bool(getattr(backend, "live", False))

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._backend.now_s

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        return self._backend.idle

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision."""
        return self._backend.apply(placement)

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let time pass, up to the limit.

        Raise TimeLimitError if the limit is over already: what happened until then was returned before.
        """
        if self._backend.now_s >= self._limit_s:
            raise TimeLimitError(f"the time limit of {human_s(self._limit_s)} is over.")
        return self._backend.advance(min(until_s, self._limit_s), stop_at_event=stop_at_event)


def limited(backend: Backend, limit_s: float | None) -> Backend:
    """Return a backend with a time limit, or as it is where there is none."""
    return backend if limit_s is None else TimeLimited(backend, limit_s=limit_s)


def checked_limit(limit_s: float | None) -> float | None:
    """Return a time limit, checked; InputError if it is no positive number of seconds, or more than a year."""
    if limit_s is not None and not (math.isfinite(limit_s) and 0 < limit_s <= LONGEST_S):
        raise InputError(f"a time limit of {limit_s:g} s; expected more than 0 s, and a year at most.")
    return limit_s

"""A share of cores that a process keeps to by itself: between pieces of work its threads wait.

Needs no rights. What is computed stays the same, only later. It holds over times longer than a piece of work: at 0.1
cores a gradient of a second is computed at full speed, and nine seconds are waited after it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 0.1
"""Processor time that was not used may be used later, but no more than that of so many seconds."""
LEAST_S: Final = 0.05
"""Shorter waits are put off until they have added up: each of them costs processor time of the same share."""


class Brake:
    """Lets the threads of this process wait as long as it has used more than its share.

    Parameters
    ----------
    spent_s : callable
        Processor seconds that all threads of the process have used so far.
    now_s : callable
        Seconds on a clock.

    Examples
    --------
    >>> spent, now = iter([0.0, 0.5]), iter([0.0, 1.0])
    >>> brake = Brake(spent_s=lambda: next(spent), now_s=lambda: next(now))
    >>> brake.limit(0.25)
    >>> brake.owed_s()
    1.0
    """

    def __init__(
        self, *, spent_s: Callable[[], float] = time.process_time, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._spent_s, self._now_s = spent_s, now_s
        self._changed = threading.Condition()
        self._cpus: float | None = None
        self._credit_s = self._at_s = self._before_s = 0.0

    def limit(self, cpus: float | None) -> None:
        """Hold the process to so many cores from now on; None: to no limit. What was owed is forgotten."""
        with self._changed:
            self._cpus, self._credit_s = cpus, 0.0
            self._at_s, self._before_s = self._now_s(), self._spent_s()
            self._changed.notify_all()

    def owed_s(self) -> float:
        """Return the seconds in which no thread may work, so that the share is kept."""
        with self._changed:
            return self._owed_s()

    def _owed_s(self) -> float:
        if self._cpus is None:
            return 0.0
        now_s, spent_s = self._now_s(), self._spent_s()
        earned_s, used_s = self._cpus * (now_s - self._at_s), spent_s - self._before_s
        self._credit_s = min(self._credit_s + earned_s - used_s, self._cpus * PERIOD_S)
        self._at_s, self._before_s = now_s, spent_s
        return max(-self._credit_s / self._cpus, 0.0)

    def keep(self, *, most_s: float = math.inf) -> bool:
        """Wait until the share is kept, but no longer than `most_s`; return whether more is to be waited."""
        with self._changed:
            owed_s = self._owed_s()
            until_s = self._at_s + most_s
            while owed_s > LEAST_S:
                left_s = until_s - self._at_s
                if left_s <= 0:
                    return True
                self._changed.wait(min(owed_s, left_s))
                owed_s = self._owed_s()
        return False

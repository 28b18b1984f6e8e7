"""A limit of cores that a process enforces by itself: its threads wait between pieces of work.

It needs no privileges, and changes when results are computed, not their values. It holds on average over times longer
than a piece of work: at 0.1 cores a gradient of one second is computed at full speed, followed by a wait of nine.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 0.1
"""Unused processor time may be used later: at most that of this many seconds."""
LEAST_S: Final = 0.05
"""Shorter waits are postponed until they add up to this, in seconds: each wait costs processor time of the share."""


class Brake:
    """Makes the threads of this process wait while it has used more than its share of cores.

    Parameters
    ----------
    spent_s : callable
        Returns the processor seconds of all threads of the process so far.
    now_s : callable
        Returns the seconds of a monotonic clock.

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
        """Set the limit in cores from now on; None: no limit. A debt of processor time is cancelled."""
        with self._changed:
            self._cpus, self._credit_s = cpus, 0.0
            self._at_s, self._before_s = self._now_s(), self._spent_s()
            self._changed.notify_all()

    def owed_s(self) -> float:
        """Return the seconds that all threads must wait to meet the limit."""
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
        """Wait until the limit is met, at most `most_s` seconds; return True if it is not met then."""
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

"""Cores and memory of a member while it runs: applies what the controller orders, and watches memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from labkit.elastic.process.limits import BRAKE, Amounts, limits_here
from labkit.elastic.protocol.messages.orders import SetLimits
from labkit.elastic.protocol.messages.reports import LimitsSet, SendReport

LOOK_AT_MEMORY_S: Final = 0.25
"""Seconds between two looks at the memory of a process that limits itself."""


class MemberLimits:
    """The limits of this process.

    Parameters
    ----------
    report : callable
        Sends a report to the controller.
    exhausted : callable
        Ends this process; takes a MemoryError that says why.
    over : Event
        Set when this process ends.
    """

    def __init__(
        self, *, report: SendReport, exhausted: Callable[[BaseException], None], over: threading.Event
    ) -> None:
        self._report, self._exhausted, self._over = report, exhausted, over
        self._limits = limits_here()
        self._watched = False

    def resize(self, order: SetLimits) -> Amounts:
        """Limit this process to the cores and memory of an order; report it, and return the amounts."""
        amounts = Amounts(order.cpus, order.memory_gb)
        unable = self._limits.apply(os.getpid(), amounts)
        cores, how = sorted(os.sched_getaffinity(0)), self._limits.how
        self._report(LimitsSet(amounts.cpus, amounts.memory_gb, cores, how, unable))
        if amounts.memory_gb is not None and how == BRAKE and not self._watched:
            self._watched = True
            threading.Thread(target=self._watch_memory, name="memory", daemon=True).start()
        return amounts

    def keep(self, *, most_s: float) -> bool:
        """Wait at most `most_s` seconds for the share of cores; True if the share requires more waiting."""
        return self._limits.keep(most_s=most_s)

    def _watch_memory(self) -> None:
        """End this process when it exceeds its limit of memory; only where the kernel does not enforce the limit."""
        while not self._over.wait(LOOK_AT_MEMORY_S):
            why = self._limits.exceeded()
            if why:
                self._exhausted(MemoryError(why))

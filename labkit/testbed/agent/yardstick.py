"""A fixed piece of work, done every few seconds while tasks run: how fast the host is at the moment."""

from __future__ import annotations

import time
import zlib
from collections import deque
from functools import cache
from typing import Final

from labkit.testbed.agent.measure import TICK_S, host_ticks
from labkit.testbed.agent.shapes import YardstickReading
from labkit.testbed.agent.wire import now_s

EVERY_S: Final = 3.0
MOST: Final = 0.005
"""Part of a core that the work may take: on a slow host it is done less often."""
KEPT: Final = 4
"""Readings of an answer: a client asks more often than the work is done."""
N_BYTES: Final = 1 << 16


@cache
def _bytes() -> bytes:
    """Return the same bytes on every host: sixteen values in a sequence without a pattern."""
    x, made = 1, bytearray()
    for _ in range(N_BYTES):
        x = (1103515245 * x + 12345) & 0x7FFFFFFF
        made.append(x >> 16 & 15)
    return bytes(made)


class Yardstick:
    """Does the work when it is due, and keeps the last readings."""

    def __init__(self) -> None:
        self.readings: deque[YardstickReading] = deque(maxlen=KEPT)
        self._period_s, self._read_s, self._ticks = EVERY_S, now_s(), host_ticks()

    def turn(self) -> None:
        """Compress the bytes twice, the first time to warm the caches, if it is due."""
        over_s = now_s() - self._read_s
        if over_s < self._period_s:
            return
        data, began_s = _bytes(), time.thread_time()
        zlib.compress(data)
        warm_s = time.thread_time()
        zlib.compress(data)
        done_s = time.thread_time()
        reading = self._reading(done_s - warm_s, over_s)
        if over_s < 2 * self._period_s:  # else no task ran for a while: nothing is known of the host's cores
            self.readings.append(reading)
        self._period_s = max(EVERY_S, (done_s - began_s) / MOST)

    def _reading(self, cpu_s: float, over_s: float) -> YardstickReading:
        """Return a reading; time that a hypervisor took makes the host slower, though the process did not use it."""
        before, self._ticks, self._read_s = self._ticks, host_ticks(), now_s()
        busy, _, stolen = (now - then for now, then in zip(self._ticks, before, strict=True))
        left = 1 - stolen / busy if busy > stolen else 1.0
        return YardstickReading(
            round(self._read_s, 3), round(cpu_s / left, 7), round(max(busy, 0) * TICK_S / over_s, 2)
        )

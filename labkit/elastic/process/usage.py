"""Cores and memory that processes use, of any user: a reading takes microseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from labkit.elastic.protocol.messages.clients import MeasuredUsage

GB: Final = 1e9
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LEAST_S: Final = 0.2
"""Shortest time in seconds over which cores are computed."""
EVERY_S: Final = 1.0
"""Seconds between two readings of a job's processes."""
_SCHEDULED: Final = 2
"""Kind of the processor clock: CPUCLOCK_SCHED of the kernel."""


class UsageReading(NamedTuple):
    """Processor seconds used by a process until `at_s` of its host's monotonic clock, and GB; NaN where unknown."""

    at_s: float
    cpu_s: float
    memory_gb: float


class MemberUsage(NamedTuple):
    """Cores in use between two readings, and GB resident at the second; None where unknown."""

    cores: float | None = None
    memory_gb: float | None = None


def cpu_s(pid: int) -> float:
    """Return processor seconds of all threads of a process, ended ones included; OSError if it is gone."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def resident_bytes(pid: int, *, proc: Path = Path("/proc")) -> int:
    """Return the resident bytes of a process, shared memory included; OSError if it is gone or there is no /proc."""
    return int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE


def read(pid: int) -> UsageReading:
    """Return the processor seconds and memory of a process until now."""
    nan = float("nan")
    try:
        spent_s = cpu_s(pid)
    except OSError:
        spent_s = nan
    try:
        memory_gb = resident_bytes(pid) / GB
    except (OSError, ValueError, IndexError):
        memory_gb = nan
    return UsageReading(time.monotonic(), spent_s, memory_gb)


def readings(pids: Mapping[str, int]) -> dict[str, UsageReading]:
    """Return a reading of each process by name; processes without a number (0) are left out."""
    return {name: read(pid) for name, pid in pids.items() if pid > 0}


def encode_readings(usage: Mapping[str, UsageReading]) -> dict[str, MeasuredUsage]:
    """Return readings as messages have them: None for NaN."""
    return {
        name: MeasuredUsage(at_s, None if cpu_s != cpu_s else cpu_s, None if memory_gb != memory_gb else memory_gb)
        for name, (at_s, cpu_s, memory_gb) in usage.items()
    }


def decode_readings(sent: Mapping[str, MeasuredUsage]) -> dict[str, UsageReading]:
    """Return the readings that `encode_readings` was given."""
    nan = float("nan")
    return {
        name: UsageReading(at_s, nan if cpu_s is None else cpu_s, nan if memory_gb is None else memory_gb)
        for name, (at_s, cpu_s, memory_gb) in sent.items()
    }


class Gauge:
    """Computes the cores in use from successive readings."""

    def __init__(self) -> None:
        self._before: dict[str, UsageReading] = {}
        self._used: dict[str, MemberUsage] = {}

    def used(self, now: Mapping[str, UsageReading]) -> dict[str, MemberUsage]:
        """Return the use of each process since its reading before; processes that are missing are forgotten.

        >>> gauge = Gauge()
        >>> _ = gauge.used({"ps-0": UsageReading(10.0, 3.0, 0.5)})
        >>> gauge.used({"ps-0": UsageReading(12.0, 4.0, 0.6)})
        {'ps-0': MemberUsage(cores=0.5, memory_gb=0.6)}
        """
        self._before = {name: was for name, was in self._before.items() if name in now}
        self._used = {name: self._since(name, reading) for name, reading in now.items()}
        return dict(self._used)

    def _since(self, name: str, now: UsageReading) -> MemberUsage:
        memory_gb = None if now.memory_gb != now.memory_gb else now.memory_gb
        was = self._before.setdefault(name, now)
        over_s, spent_s = now.at_s - was.at_s, now.cpu_s - was.cpu_s
        if over_s < LEAST_S:
            return MemberUsage(self._used.get(name, MemberUsage()).cores, memory_gb)
        self._before[name] = now
        return MemberUsage(max(spent_s, 0.0) / over_s if spent_s == spent_s else None, memory_gb)

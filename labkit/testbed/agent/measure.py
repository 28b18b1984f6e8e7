"""Measure the resources that host and tasks use, and how fast the host is at the moment."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from labkit.system.proc import Stat, read
from labkit.testbed.agent.gpus import of_tasks
from labkit.testbed.agent.messages import GpuReading, HostMeasurement, HostUse, Used, YardstickReading, now_s, wall_s
from labkit.testbed.agent.processes import Key, TaskProcesses

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 1e6
MB: Final = 1e6
EVERY_S: Final = 3.0
MOST: Final = 0.005
"""Part of a core that the work may take: on a slow host it is done less often."""
KEPT: Final = 4
"""Readings of an answer: a client asks more often than the work is done."""
N_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """Content of /proc at a moment; rates need two."""

    at_s: float
    tasks: Mapping[Key, list[Stat]]
    busy_ticks: int
    all_ticks: int
    gone_ticks: Mapping[Key, int]

    def ticks(self, key: Key) -> int:
        """Return the processor time of a task so far, in ticks."""
        return sum(each.ticks for each in self.tasks.get(key, ())) + self.gone_ticks.get(key, 0)

    def gone_until(self, tasks: Mapping[Key, list[Stat]]) -> dict[Key, int]:
        """Return ticks of processes that are gone and whose parent is no process of the task but a fork server.

        The kernel adds the ticks of all others to their parents. Ticks after the last reading are lost.
        """
        gone = dict(self.gone_ticks)
        for key, before in self.tasks.items():
            now = {each.identity for each in tasks.get(key, ())}
            pids = {each.pid for each in before}
            lost = [each.ticks for each in before if each.identity not in now and each.parent not in pids]
            if now and lost:
                gone[key] = gone.get(key, 0) + sum(lost)
        return {key: ticks for key, ticks in gone.items() if key in tasks}


class Meter:
    """Reads /proc, at most once in `max_age_s` seconds.

    `sessions`: returns the task of each session that belongs to one.
    """

    def __init__(self, folder: Path, *, processes: TaskProcesses, sessions: Callable[[], Mapping[int, Key]]) -> None:
        self._folder, self._processes, self._sessions = folder, processes, sessions
        self._last: Reading | None = None

    def reading(self, *, max_age_s: float) -> Reading:
        """Return a reading that is not older than `max_age_s`."""
        if self._last is None or now_s() - self._last.at_s > max_age_s:
            tasks = self._processes.find(self._sessions(), quick=True)
            busy, total, _ = host_ticks()
            gone = {} if self._last is None else self._last.gone_until(tasks)
            self._last = Reading(now_s(), tasks, busy, total, gone)
        return self._last

    def sample(
        self, before: Reading, now: Reading, *, gpus: GpuReading, pss: bool = False, each: bool = False
    ) -> HostMeasurement:
        """Return the use between two readings, for a reply; `each`: also that of each process."""
        key_of = {each.pid: key for key, those in now.tasks.items() for each in those}
        on_gpus = of_tasks(gpus, key_of)
        tasks = [_task(key, before, now, on_gpus.get(key, 0.0)) for key in sorted(now.tasks)]
        if pss:
            tasks = [replace(task, pss_mb=pss_mb(now.tasks[Key(task.run, task.task)])) for task in tasks]
        if each:
            tasks = [_with_processes(task, now.tasks[Key(task.run, task.task)]) for task in tasks]
        return HostMeasurement(
            wall_s=wall_s(), boot_s=round(now.at_s, 3), over_s=round(now.at_s - before.at_s, 3),
            host=self._host(before, now), tasks=tasks, gpus=gpus.gpus, gpus_absent=gpus.absent,
        )  # fmt: skip

    def _host(self, before: Reading, now: Reading) -> HostUse:
        memory = _memory_mb()
        disk = os.statvfs(self._folder)
        ticks = max(now.all_ticks - before.all_ticks, 1)
        return HostUse(
            cpu_percent=round(100 * (os.cpu_count() or 1) * (now.busy_ticks - before.busy_ticks) / ticks, 1),
            busy_s=round(now.busy_ticks * TICK_S, 2),
            load=round(os.getloadavg()[0], 2),
            memory_mb=round(memory["MemTotal"]),
            free_memory_mb=round(memory["MemAvailable"]),
            free_disk_mb=round(disk.f_bavail * disk.f_frsize / MB),
        )


def _task(key: Key, before: Reading, now: Reading, gpu_memory_mb: float) -> Used:
    used_s = max(0, now.ticks(key) - before.ticks(key)) * TICK_S
    those = now.tasks[key]
    return Used(
        run=key.run, task=key.task, n_processes=len(those), gpu_memory_mb=gpu_memory_mb,
        cpu_percent=round(100 * used_s / max(now.at_s - before.at_s, 1e-3), 1),
        cpu_s=round(now.ticks(key) * TICK_S, 2),
        rss_mb=round(sum(each.rss_pages for each in those) * PAGE_MB, 1),
    )  # fmt: skip


def _with_processes(task: Used, those: Sequence[Stat]) -> Used:
    """Return it with processor seconds and memory of each process."""
    return replace(
        task,
        processes={str(one.pid): one.ticks * TICK_S for one in those},
        processes_mb={str(one.pid): one.rss_pages * PAGE_MB for one in those},
    )


def pss_mb(those: list[Stat]) -> float | None:
    """Return the memory of some processes, shared pages counted once; None if the kernel does not report it.

    It takes milliseconds for each process that has gigabytes.
    """
    total = 0.0
    for each in those:
        content = read(f"/proc/{each.pid}/smaps_rollup")
        if content is None:
            return None
        total += sum(int(line.split()[1]) for line in content.splitlines() if line.startswith(b"Pss:")) * 1024 / MB
    return round(total, 1)


def host_ticks() -> tuple[int, int, int]:
    """Return ticks of all cores that were busy, all, and those of the busy ones that a hypervisor gave to others."""
    line = (read("/proc/stat") or b"cpu 0 0 0 0 0").split(b"\n", 1)[0]
    ticks = [int(each) for each in line.split()[1:9]]  # guests are counted in user already
    idle = sum(ticks[3:5])  # idle, and waiting for disks
    return sum(ticks) - idle, sum(ticks), sum(ticks[7:])


def _memory_mb() -> dict[str, float]:
    lines = (read("/proc/meminfo") or b"").splitlines()
    values = {line.split(b":")[0].decode(): int(line.split()[1]) * 1024 / MB for line in lines if b" kB" in line}
    return {name: values.get(name, 0.0) for name in ("MemTotal", "MemAvailable")}


@cache
def _bytes() -> bytes:
    """Return the same bytes on every host: sixteen values in a sequence without a pattern."""
    x, content = 1, bytearray()
    for _ in range(N_BYTES):
        x = (1103515245 * x + 12345) & 0x7FFFFFFF
        content.append(x >> 16 & 15)
    return bytes(content)


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

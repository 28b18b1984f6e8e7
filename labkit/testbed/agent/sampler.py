"""The process that reads the GPUs, as the agent sees it: started for a measurement, ended when unused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from labkit.testbed.agent.gpus import ABSENT, module
from labkit.testbed.agent.loop import Loop, Timer
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.shapes import GpuReading, GpuUse
from labkit.testbed.agent.wire import Lines, Refusal

EVERY_S: Final = 1.0
UNUSED_S: Final = 10.0
LATE_S: Final = 5.0
"""Seconds for an answer; NVML takes a second or two to start if the driver is not kept awake."""

LATE: Final = GpuReading(absent=f"the NVIDIA driver did not answer within {LATE_S:g} s")
NONE: Final = GpuReading(absent=ABSENT)


class Sampler:
    """Keeps the newest reading of the GPUs, or why there is none."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._lines = Lines()
        self._timers: list[Timer] = []
        self._unused: Timer | None = None
        self._asking: list[Callable[[GpuReading], None]] = []
        self.last: GpuReading | None = NONE if module() is None else None

    def ask(self, call: Callable[[GpuReading], None]) -> None:
        """Call with the newest reading, or with the next one if there is none yet."""
        if self.last is NONE:
            call(NONE)
            return
        self._begin()
        if self.last is not None:
            call(self.last)
            return
        self._asking.append(call)
        self._timers.append(self._loop.after(LATE_S, self._late))

    def keep(self) -> GpuReading:
        """Return the newest reading, empty if there is none yet, and keep reading for some seconds."""
        if self.last is not NONE:
            self._begin()
        return self.last or GpuReading()

    def _begin(self) -> None:
        if self._unused is not None:
            self._unused.cancel()
        self._unused = self._loop.after(UNUSED_S, self.end)
        if self._process is not None:
            return
        argv = [sys.executable, "-m", "labkit.testbed.agent.gpus", str(EVERY_S)]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )
        self._lines = Lines()
        out = self._out()
        os.set_blocking(out, False)
        self._loop.on(out, self._read)

    def _out(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _read(self, _: int) -> None:
        try:
            data = os.read(self._out(), 1 << 16)
            self._lines.feed(data)
            while (line := self._lines.take()) is not None:
                self._take(_read(line))
        except (OSError, ValueError, Refusal):
            data = b""
        if not data:
            self._take(GpuReading(absent="the process that reads the GPUs ended"))
            self.end()

    def _take(self, reading: GpuReading) -> None:
        self.last = reading
        asking, self._asking = self._asking, []
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        for call in asking:
            call(reading)

    def _late(self) -> None:
        self._take(LATE)

    def end(self) -> None:
        """End the process."""
        if self._unused is not None:
            self._unused.cancel()
        process = self._process
        if process is None:
            return
        self._loop.off(self._out())
        self._process = None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._killed = [each for each in [*self._killed, process] if each.poll() is None]  # one may be stuck: no wait
        if self.last is not LATE:
            self.last = None  # the next call gets a new reading


def _read(line: bytes) -> GpuReading:
    """Return a reading from a line of the agent's own process.

    Raises
    ------
    ValueError
        If it has another form.
    """
    values = json.loads(line)
    try:
        return GpuReading([GpuUse(**gpu) for gpu in values["gpus"]], values["absent"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"a line of the process that reads the GPUs has another form: {error}") from None


def of_tasks(reading: GpuReading, tasks: Mapping[int, Key]) -> dict[Key, float]:
    """Return the GPU memory of each task in MB; `tasks` maps processes to tasks."""
    found: dict[Key, float] = {}
    for gpu in reading.gpus:
        for pid, mb in gpu.processes.items():
            key = tasks.get(int(pid))
            if key is not None and mb is not None:
                found[key] = found.get(key, 0.0) + mb
    return found

"""Read NVIDIA GPUs in a process of its own, so that a driver that hangs does not block the agent.

`python -m labkit.testbed.agent.gpus EVERY_S` writes a line of JSON now and each so many seconds, until stdin ends. The
agent's `Sampler` starts it for a measurement, and ends it when it is unused.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from labkit.testbed.agent.loop import Loop, Timer
from labkit.testbed.agent.messages import GpuReading, GpuUse, Lines, Refusal, now_s, pack
from labkit.testbed.agent.processes import Key

MB: Final = 1e6
PR_SET_PDEATHSIG: Final = 1
MODULES: Final = ("pynvml", "labkit.testbed.agent._pynvml")
ABSENT: Final = "Python has no module pynvml (nvidia-ml-py) here: fab install brings it where this side has it"
TX, RX = 0, 1
"""Direction of PCIe traffic, as NVML counts: from the GPU to the host, and back."""
EVERY_S: Final = 1.0
UNUSED_S: Final = 10.0
LATE_S: Final = 5.0
"""Seconds for an answer; NVML takes a second or two to start if the driver is not kept awake."""
LATE: Final = GpuReading(absent=f"the NVIDIA driver did not answer within {LATE_S:g} s")
NONE: Final = GpuReading(absent=ABSENT)


def reading(nvml: Any) -> list[GpuUse]:
    """Return state and load of each GPU; None for a value that a GPU does not report."""
    count = int(nvml.nvmlDeviceGetCount())
    return [_device(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def _device(nvml: Any, index: int, device: Any) -> GpuUse:
    def ask(name: str, *arguments: Any) -> Any:
        return _maybe(nvml, lambda: getattr(nvml, name)(device, *arguments))

    memory, busy = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    power = ask("nvmlDeviceGetPowerUsage")
    return GpuUse(
        index=index,
        name=_text(ask("nvmlDeviceGetName")),
        uuid=_text(ask("nvmlDeviceGetUUID")),
        memory_mb=None if memory is None else round(memory.total / MB),
        used_mb=None if memory is None else round(memory.used / MB),
        busy_percent=None if busy is None else busy.gpu,
        memory_busy_percent=None if busy is None else busy.memory,
        pcie_tx_mb_s=_mb(ask("nvmlDeviceGetPcieThroughput", TX)),
        pcie_rx_mb_s=_mb(ask("nvmlDeviceGetPcieThroughput", RX)),
        power_w=None if power is None else power / 1000,
        mig=_mig(ask("nvmlDeviceGetMigMode")),
        processes=_processes(ask("nvmlDeviceGetComputeRunningProcesses")),
    )


def _maybe(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (nvml.NVMLError, AttributeError):  # not supported by this GPU, not for us, or not known to an old module
        return None


def _mig(mode: list[int] | None) -> bool:
    return bool(mode and mode[0])


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _mb(kb: float | None) -> float | None:
    return None if kb is None else round(kb / 1000, 3)


def _processes(those: Any) -> dict[str, float | None]:
    """Return memory by process; None if the driver does not report it."""
    return {str(each.pid): None if each.usedGpuMemory is None else each.usedGpuMemory / MB for each in those or ()}


def module() -> str | None:
    """Return the name of the NVML module: that of this Python, or the one that an install brought."""
    for name in MODULES:
        with contextlib.suppress(ValueError):  # a test took it away
            if find_spec(name) is not None:
                return name
    return None


def answer() -> Callable[[], GpuReading]:
    """Return a function that reads the GPUs, or returns why there are none."""
    name = module()
    try:
        nvml = import_module(name or "pynvml")
    except ImportError:
        return lambda: GpuReading(absent=ABSENT)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        why = f"NVML: {error}"
        return lambda: GpuReading(absent=why)

    def ask() -> GpuReading:
        try:
            return GpuReading(reading(nvml))
        except nvml.NVMLError as error:
            return GpuReading(absent=f"NVML: {error}")

    return ask


def main() -> int:
    """Write readings until stdin is closed."""
    every_s = float(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a driver that hangs never lets it see the end of stdin
    ask = answer()
    due_s = now_s()
    while True:
        print(pack(ask()).decode(), end="", flush=True)
        if not every_s:
            return 0
        due_s = max(due_s + every_s, now_s())
        if select.select([sys.stdin], [], [], max(0.0, due_s - now_s()))[0]:
            return 0


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
    """Return a reading from a line of the agent's own process; ValueError if it has another form."""
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


if __name__ == "__main__":
    sys.exit(main())

"""Read NVIDIA GPUs in a process of its own, so that a driver that hangs does not block the agent.

`python -m labkit.testbed.agent.gpus EVERY_S` writes a line of JSON now and each so many seconds, until stdin ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from labkit.testbed.agent.shapes import GpuReading, GpuUse
from labkit.testbed.agent.wire import now_s, pack

MB: Final = 1e6
PR_SET_PDEATHSIG: Final = 1
MODULES: Final = ("pynvml", "labkit.testbed.agent._pynvml")
ABSENT: Final = "Python has no module pynvml (nvidia-ml-py) here: fab install brings it where this side has it"
TX, RX = 0, 1
"""Direction of PCIe traffic, as NVML counts: from the GPU to the host, and back."""


def reading(nvml: Any) -> list[GpuUse]:
    """Return state and load of each GPU; None for a value that a GPU does not report."""
    count = int(nvml.nvmlDeviceGetCount())
    return [_device(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def _device(nvml: Any, index: int, device: Any) -> GpuUse:
    def ask(name: str, *given: Any) -> Any:
        return _maybe(nvml, lambda: getattr(nvml, name)(device, *given))

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
    """Return whether a GPU is partitioned now."""
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


if __name__ == "__main__":
    sys.exit(main())

"""What the first commands cost on a machine where kernels are compiled: processor seconds of whole processes.

The yardstick is measured in turns with them: a process that only imports numpy, pandas and numba, with which a trace is
read and compiled kernels run; so a slow machine cancels out.

python -m benchmarks first_commands
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

from benchmarks import Row, size

COMMAND = "python -m benchmarks first_commands"
ROUNDS = size(5, short=1)
LABKIT = [sys.executable, "-m", "labkit"]
COMPARE = ["compare", "demo", "--cluster", "demo"]
LINES = {
    "yardstick": [sys.executable, "-c", "import numpy, pandas, numba"],
    "labkit": LABKIT,
    "labkit --help": [*LABKIT, "--help"],
    "labkit compare demo, one scheduler": [*LABKIT, *COMPARE, "--schedulers", "fifo"],
    "labkit compare demo, six schedulers": [*LABKIT, *COMPARE],
}


def rows() -> list[Row]:
    """Return the processor seconds of each command, and how many times those of the yardstick they are."""
    spent: dict[str, list[float]] = {name: [] for name in LINES}
    for line in LINES.values():  # byte code and kernels: not what is measured
        cpu_s(line)
    for _ in range(ROUNDS):
        for name, line in LINES.items():
            spent[name].append(cpu_s(line))
    return [row for name in LINES for row in _told(name, spent)]


def _told(name: str, spent: dict[str, list[float]]) -> list[Row]:
    if name == "yardstick":
        shown = "a process imports numpy, pandas and numba: yardstick of the first commands"
        return [Row(shown, round(median(spent[name]), 2), "s of a processor, median", None, False, COMMAND)]
    times = median(cost / base for cost, base in zip(spent[name], spent["yardstick"], strict=True))
    return [
        Row(name, round(median(spent[name]), 2), "s of a processor, median", 3.0, False, COMMAND),
        Row(f"{name}, times the yardstick", round(times, 2), "times", GOALS[name], False, COMMAND),
    ]


GOALS = {
    "labkit": 1.5,
    "labkit --help": 1.5,
    "labkit compare demo, one scheduler": 3.5,
    "labkit compare demo, six schedulers": 5.0,
}


def cpu_s(line: list[str]) -> float:
    """Return processor seconds of a process and its children, user and system."""
    before = os.times()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:75s} {row.value:8} {row.unit}")

"""The laptop testbed at speed: how soon four hosts are up, run a command, and have 64 MB.

python -m benchmarks.testbed
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import Row, best_s, size
from labkit.testbed.laptop import Bed, down
from labkit.testbed.laptop.server import sshd_program
from labkit.testbed.ssh.fleet import Fleet

COMMAND = "python -m benchmarks.testbed"
N_HOSTS = 4
N_BYTES = size(64_000_000, short=1000)


def rows() -> list[Row]:
    """Return one row per figure, none where there is no sshd."""
    if not sshd_program():
        return []
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as top:
        folder = Path(top) / "bed"
        up_s = min(_up_s(folder) for _ in range(size(3, short=1)))
        with Bed.up(N_HOSTS, folder=folder) as bed:
            return [_row("bed up, 4 hosts, as typed", up_s, 1.0), *_fleet_rows(bed, Path(top) / "big")]


def _up_s(folder: Path) -> float:
    """Return how long `labkit bed up` takes, Python's own start included."""
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "labkit", "bed", "up", "--hosts", str(N_HOSTS), "--folder", str(folder)]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began_s
    finally:
        down(folder)


def _fleet_rows(bed: Bed, big: Path) -> list[Row]:
    big.write_bytes(os.urandom(N_BYTES))

    def connect() -> None:
        with Fleet(bed.inventory) as fleet:
            fleet.connect().checked()

    with Fleet(bed.inventory) as fleet:
        fleet.connect().checked()
        return [
            _row("connect to 4 hosts", best_s(connect), None),
            _row("a command on 4 connected hosts", best_s(lambda: fleet.run(["true"]).checked(), repeat=20), 0.1),
            _row("64 MB to 4 hosts", best_s(lambda: fleet.put(big, "big").checked(), repeat=5), 2.0),
            _row("64 MB from 4 hosts", best_s(lambda: fleet.get("big", big.parent / "got").checked()), None),
        ]


def _row(name: str, value: float, goal: float | None) -> Row:
    return Row(f"testbed: {name}", round(value, 4), "s", goal, False, COMMAND)


if __name__ == "__main__":
    from benchmarks.__main__ import show

    show(rows())

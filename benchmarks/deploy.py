"""Bring labkit to the four hosts of a laptop testbed: all of it, one file of it, nothing of it.

python -m benchmarks deploy
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import labkit
from benchmarks import Row, best_s, size
from labkit.testbed.doctor import examine
from labkit.testbed.install import install, sweep
from labkit.testbed.laptop import Bed
from labkit.testbed.ssh.fleet import Fleet

COMMAND = "python -m benchmarks deploy"
ROUNDS = size(5, short=1)


def rows() -> list[Row]:
    """Return seconds of deploys with open connections, and the bytes that travelled to a host."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as place:
        package = Path(place) / "checkout" / "labkit"
        here = Path(labkit.__file__).parent
        shutil.copytree(here, package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(here.parent / "pyproject.toml", package.parent)
        with Bed.up(4, folder=Path(place) / "bed") as bed, Fleet(bed.inventory) as fleet:
            fleet.connect().checked()
            return _measured(fleet, package)


def _measured(fleet: Fleet, package: Path) -> list[Row]:
    sizes: list[float] = []

    def bring() -> None:
        sizes.append(install(fleet, package=package).checked().rows[0].numbers["bytes"] / 1e6)

    whole = best_s(bring, repeat=1)
    unchanged = best_s(bring, repeat=ROUNDS)
    changed = []
    for i in range(ROUNDS):
        (package / "changed.py").write_text(f"NUMBER = {i}\n")
        changed.append(best_s(bring, repeat=1))
    looked = best_s(lambda: examine(fleet, torch=False), repeat=ROUNDS)
    swept = best_s(lambda: sweep(fleet).checked(), repeat=1)
    told = [
        ("fab install, 4 hosts, the first time", whole, "s"),
        ("fab install, 4 hosts, one file changed", min(changed), "s, best"),
        ("fab install, 4 hosts, nothing changed", unchanged, "s, best"),
        ("fab install, sent to each host the first time", sizes[0], "MB, before compression"),
        ("fab install, sent to each host with one file changed", sizes[-1], "MB, before compression"),
        ("fab doctor, 4 hosts, without torch", looked, "s, best"),
        ("fab gc, 4 hosts, of 5 labkits", swept, "s"),
    ]
    return [Row(name, round(value, 3), unit, None, False, COMMAND) for name, value, unit in told]

"""Compare ours with others' simulators, a row for each setting: see `benchmarks.foreign`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.foreign import SYSTEMS, Agreement
from labkit.core.errors import InputError, unknown

WIDTHS = "{:9} {:15} {:72} {:>10} {:>12} {:>9} {:>7}  {}"


def lines(wanted: Sequence[str]) -> Iterator[str]:
    """Return the lines of the table; a system without a folder has one that says how to get it."""
    yield WIDTHS.format("system", "trace", "setting", "jobs equal", "largest gap", "their CPU", "ours", "").rstrip()
    for one in wanted or SYSTEMS:
        name, _, folder = one.partition("=")
        if name not in SYSTEMS:
            raise unknown("system", name, SYSTEMS)
        place = Path(folder or Path(os.environ.get("LABKIT_FOREIGN", "")) / name)
        if not (folder or "LABKIT_FOREIGN" in os.environ) or not place.is_dir():
            yield f"{name:9} skipped: no folder of its repository; git clone {SYSTEMS[name]}, then {name}=FOLDER"
            continue
        try:
            yield from map(shown, import_module(f"benchmarks.foreign.{name}").rows(place))
        except (subprocess.CalledProcessError, ImportError, OSError) as error:
            yield f"{name:9} skipped: {str(error).splitlines()[0]}"


def shown(row: Agreement) -> str:
    """Return the line of a row."""
    gap = f"{row.gap:+.4g} {row.unit}" if row.gap else "none"
    cpu = [f"{value:.2f} s" if value == value else "" for value in (row.theirs_cpu_s, row.ours_cpu_s)]
    told = WIDTHS.format(row.system, row.trace, row.setting, f"{row.equal:,}/{row.n:,}", gap, *cpu, row.note)
    return told.rstrip()


if __name__ == "__main__":
    try:
        for line in lines(sys.argv[1:]):
            print(line, flush=True)
    except InputError as error:
        sys.exit(str(error))

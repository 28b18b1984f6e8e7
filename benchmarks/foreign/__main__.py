"""Compare ours with others' simulators, a row for each setting: see `benchmarks.foreign`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import pooch

from benchmarks.foreign import SYSTEMS, Agreement
from labkit.core.errors import InputError, unknown

KEPT: Final = Path(os.environ.get("LABKIT_FOREIGN") or Path(pooch.os_cache("labkit")) / "foreign")
"""Where a system's repository is, by its name, if no folder is given."""
WIDTHS = "{:9} {:15} {:72} {:>10} {:>12} {:>9} {:>7}  {}"


def lines(wanted: Sequence[str]) -> Iterator[str]:
    """Return the lines of the table; a system without a folder has one that says how to get it."""
    asked = [one.partition("=")[::2] for one in wanted or SYSTEMS]
    for name, folder in asked:
        if name not in SYSTEMS:
            raise unknown("system", name, SYSTEMS)
        if folder and not Path(folder).is_dir():
            raise InputError(f"{name}={folder}: no such folder; git clone {SYSTEMS[name]}, then {name}=FOLDER")
    yield WIDTHS.format("system", "trace", "setting", "jobs equal", "largest gap", "their CPU", "ours", "").rstrip()
    for name, folder in asked:
        place = Path(folder or KEPT / name)
        if not place.is_dir() and (not wanted or (failed := cloned(SYSTEMS[name], place))):
            why = f"git clone failed ({failed})" if wanted else "no folder of its repository"
            yield f"{name:9} skipped: {why}; git clone {SYSTEMS[name]}, then {name}=FOLDER"
            continue
        try:
            yield from map(shown, import_module(f"benchmarks.foreign.{name}").rows(place))
        except (subprocess.CalledProcessError, ImportError, OSError) as error:
            yield f"{name:9} skipped: {str(error).splitlines()[0]}"


def cloned(url: str, folder: Path) -> str:
    """Clone the newest commit of each branch of a repository; return why it failed, or ""."""
    with tempfile.TemporaryDirectory() as scratch:
        git = ["git", "clone", "--quiet", "--depth=1", "--no-single-branch", url, scratch]
        done = subprocess.run(git, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            shutil.copytree(scratch, folder)
        return " ".join(done.stderr.split()) if done.returncode else ""


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

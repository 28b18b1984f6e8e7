"""Where numbers come from: commit, versions, machine and command of a run."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from labkit.system import release

PACKAGES = ("numpy", "pandas", "numba", "scipy", "networkx", "altair")


@cache
def commit() -> str:
    """Return the commit of labkit's repository, with "+" behind it where files were changed; "" outside of one."""
    here = Path(__file__).resolve().parent
    try:
        revision = _git(here, "rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version(), "labkit": release.version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def host() -> str:
    """Return the kind of this machine, without its name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def command() -> str:
    """Return the typed command line, if it was a command of labkit; "" in a notebook."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return shlex.join([program, *sys.argv[1:]]) if program == "labkit" else ""


def stamp() -> dict[str, Any]:
    """Return all of it, as `labkit.results.RunInfo` takes it."""
    return {
        "commit": commit(),
        "versions": versions(),
        "host": host(),
        "command": command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

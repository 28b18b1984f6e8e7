"""What this machine has for labkit, what it lacks, and how to get it.

It runs before anything is installed, too, in a checkout: `python3 -m labkit.system.doctor`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from labkit.system.printing import terminal

if TYPE_CHECKING:
    from rich.table import Table

PATIENCE_S = 10.0
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
OLDEST_PYTHON = (3, 11)

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Check:
    """One thing that labkit needs or can use."""

    name: str
    """What it is."""
    ok: bool
    """True if it is there."""
    found: str
    """Which version or where; empty where there is none."""
    hint: str
    """What it is for and how to get it."""
    required: bool = False
    """False: labkit works without it, and leaves out what needs it."""


def checks() -> list[Check]:
    """Return the checks of this machine, required ones first."""
    return [
        python(),
        module("venv", "ensurepip", hint="the environment that make builds; apt-get install python3-venv"),
        program("git", hint="the commit of a run; apt-get install git", required=True),
        package("numba", hint="compiled kernels; make installs it", required=True),
        package("altair", hint="figures and reports; make installs it", required=True),
        package("jupyterlab", hint="notebooks; make lab installs it"),
        package("torch", hint="learned schedulers and the parameter-server runtime; make demo installs it"),
        gpu(),
        program("sshd", hint="the laptop testbed; apt-get install openssh-server"),
        program(*CHROMIUM_NAMES, name="Chromium", hint="the browser test; apt-get install chromium fonts-dejavu-core"),
        user_namespaces(),
        program("tc", hint="shaped links of the testbed; apt-get install iproute2"),
    ]


def python() -> Check:
    """Check that the interpreter is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Check(
        "Python", sys.version_info >= OLDEST_PYTHON, found, f"{oldest} or newer; apt-get install python3", True
    )


def module(name: str, *needed: str, hint: str) -> Check:
    """Check that modules of the standard library, which Debian packages apart, are there."""
    missing = [part for part in (name, *needed) if find_spec(part) is None]
    found = "" if missing else "with the standard library"
    return Check(name, not missing, found, hint, required=True)


def package(name: str, *, hint: str, required: bool = False) -> Check:
    """Check that a package is installed, without importing it."""
    try:
        return Check(name, True, version(name), hint, required)
    except PackageNotFoundError:
        return Check(name, False, "", hint, required)


def program(*names: str, hint: str, name: str = "", required: bool = False) -> Check:
    """Check that one of some programs is there, also in folders that only root has on its path."""
    where = next((place for each in names if (place := which(each))), "")
    return Check(name or names[0], bool(where), where, hint, required)


def which(name: str) -> str:
    """Return where a program is, empty where it is not."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS))
    return shutil.which(name, path=path) or ""


def gpu() -> Check:
    """Check for an NVIDIA GPU."""
    hint = "faster training; labkit works without one"
    said = _output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    cards = said.splitlines() if said else []
    more = f" and {len(cards) - 1} more" if len(cards) > 1 else ""
    return Check("GPU", bool(cards), f"{cards[0]}{more}" if cards else "", hint)


def user_namespaces() -> Check:
    """Check that an ordinary user may have a network of their own, for the shaped testbed without root."""
    ok = _output_of("unshare", "--user", "--map-root-user", "--net", "echo", "yes") == "yes"
    hint = "a shaped testbed without root; sysctl -w kernel.unprivileged_userns_clone=1 (or run outside a container)"
    return Check("user namespaces", ok, "usable" if ok else "", hint)


def _output_of(program: str, *arguments: str) -> str:
    """Return the output of a program, empty where it is missing, fails or hangs."""
    where = which(program)
    if not where:
        return ""
    try:
        done = subprocess.run([where, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def table(found: Sequence[Check]) -> Table:
    """Return checks as a table for the terminal; a hint stands only where something is missing."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title="labkit doctor", title_justify="left", header_style="bold", box=None, pad_edge=False)
    for heading in ("", "what", "found", "what for, and how to get it"):
        shown.add_column(heading, overflow="fold")
    for check in found:
        mark = ("yes", "green") if check.ok else ("NO", "bold red") if check.required else ("no", "yellow")
        shown.add_row(Text(*mark), check.name, check.found or "–", "" if check.ok else check.hint)
    return shown


def plain(found: Sequence[Check]) -> str:
    """Return checks as lines of text.

    >>> print(plain([Check("git", False, "", "apt-get install git")]))
    no   git: apt-get install git
    """
    return "\n".join(
        f"{'yes' if check.ok else 'no':<4} {check.name}: {check.found if check.ok else check.hint}" for check in found
    )


def verdict(found: Sequence[Check]) -> str:
    """Return one line that sums the checks up."""
    missing = [check.name for check in found if not check.ok and check.required]
    optional = [check.name for check in found if not check.ok and not check.required]
    if missing:
        return f"labkit cannot work without: {', '.join(missing)}."
    return (
        f"labkit works on this machine. Optional and missing: {', '.join(optional)} (see above)."
        if optional
        else "labkit works on this machine. Nothing is missing."
    )


def main(*, look: Callable[[], list[Check]] = checks) -> int:
    """Print what is here and what is missing; return 0 unless something required is missing."""
    found = look()
    if find_spec("rich"):
        terminal().print(table(found))
    else:
        print(plain(found))
    print(verdict(found))
    return int(any(check.required and not check.ok for check in found))


if __name__ == "__main__":
    sys.exit(main())

"""Cores and memory of a process that runs: what this host can limit, and without a restart.

Affinity limits the number of cores and needs no rights: a process has whole cores, and shares them with whoever else
has them. A control group (cgroup v2) limits shares of cores and memory; it needs a folder of the tree in
`/sys/fs/cgroup` that this user may write.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from labkit.core.errors import InputError

PERIOD_US: Final = 100_000
"""Of `cpu.max`: the kernel's own default."""
GB: Final = 1_000_000_000
TREE: Final = Path("/sys/fs/cgroup")
FOLDER: Final = "LABKIT_CGROUP"
"""Environment variable that names a folder of the tree of control groups."""
CONTROLLERS: Final = frozenset({"cpu", "memory"})


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a process may use.

    Attributes
    ----------
    cpus, memory_gb : float or None
        Cores and GB; None: no limit of ours.

    Raises
    ------
    InputError
        If one is not finite and > 0.
    """

    cpus: float | None = None
    memory_gb: float | None = None

    def __post_init__(self) -> None:
        for name, amount in (("cores", self.cpus), ("GB of memory", self.memory_gb)):
            number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if amount is not None and not (number and 0 < amount < math.inf):
                raise InputError(f"a process is to have {amount!r} {name}; expected a finite number > 0, or no limit.")


class Limits(Protocol):
    """A way to limit a process that runs."""

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit a process from now on; return what of it cannot be had here, a sentence each.

        Raises
        ------
        ProcessLookupError
            If there is no such process.
        """
        ...


class Affinity:
    """Whole cores, by affinity: every thread of the process, and those that it starts later.

    A process that is to have fewer cores than it may use gets those that the fewest others of this user were given.

    Parameters
    ----------
    allowed : iterable of int, optional
        Cores among which it chooses; those of the calling process by default.
    """

    def __init__(self, allowed: Iterable[int] | None = None) -> None:
        self.allowed = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit the cores of a process: a part of a core counts as one."""
        n = len(self.allowed) if amounts.cpus is None else math.ceil(amounts.cpus)
        give(pid, chosen(min(n, len(self.allowed)), self.allowed, but=pid))
        unable = [f"{n} cores: {len(self.allowed)} are there"] if n > len(self.allowed) else []
        if amounts.cpus is not None and amounts.cpus != n:
            unable.append(f"{amounts.cpus:g} cores: it has {min(n, len(self.allowed))}, for affinity gives whole ones")
        if amounts.memory_gb is not None:
            unable.append(f"{amounts.memory_gb:g} GB: memory is not limited here, for want of a control group")
        return unable


class ControlGroup:
    """Cores and memory by a control group of its own (cgroup v2), and whole cores by affinity beside it.

    Parameters
    ----------
    folder : Path
        Of the tree, in which groups are made; no process may sit in it itself.
    affinity : Affinity, optional
        Which cores it may have.
    """

    def __init__(self, folder: Path, *, affinity: Affinity | None = None) -> None:
        self.folder, self._affinity = folder, affinity or Affinity()

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit the cores and memory of a process."""
        whole = Amounts(None if amounts.cpus is None else math.ceil(amounts.cpus))
        unable = self._affinity.apply(pid, whole)
        group = self.folder / f"labkit-{pid}"
        try:
            if not group.exists():
                self._sweep()
                (self.folder / "cgroup.subtree_control").write_text("+cpu +memory")
                group.mkdir()
            (group / "cpu.max").write_text(
                "max" if amounts.cpus is None else f"{max(round(amounts.cpus * PERIOD_US), 1000)} {PERIOD_US}"
            )
            (group / "memory.max").write_text(
                "max" if amounts.memory_gb is None else f"{round(amounts.memory_gb * GB)}"
            )
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            unable.append(f"a control group in {self.folder}: {error.strerror}")
        return unable

    def _sweep(self) -> None:
        """Remove the groups of processes that have ended."""
        for group in self.folder.glob("labkit-*"):
            if not Path("/proc", group.name.removeprefix("labkit-")).exists():
                with contextlib.suppress(OSError):
                    group.rmdir()


def limits_here(*, tree: Path = TREE, own: Path = Path("/proc/self/cgroup")) -> Limits:
    """Return the best way that this host and user have."""
    folder = writable_group(tree=tree, own=own)
    return Affinity() if folder is None else ControlGroup(folder)


def writable_group(*, tree: Path = TREE, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return a folder of the tree of control groups in which this user may make groups with cores and memory.

    That which `LABKIT_CGROUP` names, or else the uppermost one above this process: a process may only be moved within
    a tree of which the user may write the top. None where there is none.
    """
    named = os.environ.get(FOLDER)
    if named:
        return Path(named) if _usable(Path(named)) else None
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    mine = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if mine is None:
        return None
    at = tree / mine
    above = [parent for parent in at.parents if parent != tree and parent.is_relative_to(tree)]
    return next((folder for folder in reversed(above) if _usable(folder)), None)


def _usable(folder: Path) -> bool:
    try:
        there = set((folder / "cgroup.controllers").read_text().split())
        sits = (folder / "cgroup.procs").read_text().strip()
    except OSError:
        return False
    files = ("cgroup.subtree_control", "cgroup.procs")
    return not sits and there >= CONTROLLERS and all(os.access(folder / file, os.W_OK) for file in (*files, "."))


def told() -> str:
    """Return what can be limited on this host, for people."""
    folder = writable_group()
    return "whole cores, not memory" if folder is None else f"cores and memory, in {folder}"


def give(pid: int, cores: Iterable[int]) -> None:
    """Give a process some cores, all its threads; those that are started meanwhile too.

    Raises
    ------
    ProcessLookupError
        If there is no such process.
    """
    mine, seen = set(cores), set[str]()
    while new := {path.name for path in Path(f"/proc/{pid}/task").glob("*")} - seen:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), mine)
        seen |= new
    if not seen:
        raise ProcessLookupError(f"process {pid} is gone")


def chosen(n: int, allowed: Iterable[int], *, but: int = 0) -> list[int]:
    """Return n cores, those first that the fewest processes of this user were limited to; `but` one does not count."""
    used = _used(set(os.sched_getaffinity(0)) | set(allowed), but=but)
    return sorted(sorted(allowed, key=lambda core: (used[core], core))[:n])


def _used(everything: set[int], *, but: int) -> Counter[int]:
    """Return how many processes of this user are limited to each core."""
    used: Counter[int] = Counter()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) == but or path.stat().st_uid != os.getuid():
                continue
            theirs = os.sched_getaffinity(int(path.name))
            if len(theirs) < len(everything):
                used.update(theirs)
    return used

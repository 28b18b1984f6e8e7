"""Control groups of the kernel (cgroup v2 and v1): find writable folders, make groups, and set their limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labkit.elastic.process.causes import counted, text_of
from labkit.elastic.process.usage import GB

PERIOD_US: Final = 100_000
"""Period of a quota of processor time in microseconds: the kernel's default."""
LEAST_CPUS: Final = 0.01
"""Smallest quota of the kernel in cores: a millisecond of each period."""
TREE: Final = Path("/sys/fs/cgroup")
FOLDER: Final = "LABKIT_CGROUP"
"""Environment variable that names a folder of the tree of control groups (v2)."""
CONTROLLERS: Final = frozenset({"cpu", "memory"})
OWN: Final = Path("/proc/self/cgroup")
MOUNTS: Final = Path("/proc/self/mountinfo")


def name_of(pid: int) -> str:
    """Return the name of the group of a process."""
    return f"labkit-{pid}"


@dataclass(frozen=True, slots=True)
class Trees:
    """Folders in which groups are made: one for all controllers (v2), or one for each (v1; memory may be missing).

    Attributes
    ----------
    cpu, memory : Path or None
        The same folder with v2.
    version : int
        1 or 2.
    """

    cpu: Path
    memory: Path | None
    version: int

    @property
    def folders(self) -> list[Path]:
        """Each folder once."""
        return list(dict.fromkeys(folder for folder in (self.cpu, self.memory) if folder is not None))

    def groups(self, pid: int) -> list[Path]:
        """Return the folders of the groups of a process, which need not exist."""
        return [folder / name_of(pid) for folder in self.folders]

    def make(self, pid: int) -> None:
        """Make the groups of a process, and remove those of processes that have ended; OSError where it fails."""
        for folder in self.folders:
            if not (folder / name_of(pid)).exists():
                sweep(folder)
                if self.version == 2:
                    (folder / "cgroup.subtree_control").write_text("+cpu +memory")
                (folder / name_of(pid)).mkdir()

    def limit_cpus(self, pid: int, cpus: float | None) -> None:
        """Limit the cores of a process; None: no limit."""
        group, quota = self.cpu / name_of(pid), None if cpus is None else round(max(cpus, LEAST_CPUS) * PERIOD_US)
        if self.version == 2:
            (group / "cpu.max").write_text("max" if quota is None else f"{quota} {PERIOD_US}")
            return
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text("-1" if quota is None else str(quota))

    def limit_memory(self, pid: int, n_bytes: int | None) -> None:
        """Limit the memory of a process, without swap, where memory can be limited; None: no limit."""
        if self.memory is None:
            return
        group = self.memory / name_of(pid)
        swap, nothing = ("memory.swap.max", "0") if self.version == 2 else ("memory.swappiness", "0")
        if n_bytes is not None and (group / swap).exists():
            with contextlib.suppress(OSError):
                (group / swap).write_text(nothing)
        name, unlimited = ("memory.max", "max") if self.version == 2 else ("memory.limit_in_bytes", "-1")
        (group / name).write_text(unlimited if n_bytes is None else str(n_bytes))

    def enter(self, pid: int) -> None:
        """Move a process with all its threads into its groups."""
        for group in self.groups(pid):
            (group / "cgroup.procs").write_text(str(pid))

    def oom_kills(self, pid: int) -> int:
        """Return the number of out-of-memory kills in the group of a process."""
        if self.memory is None:
            return 0
        file = self.memory / name_of(pid) / ("memory.events" if self.version == 2 else "memory.oom_control")
        return counted(text_of(file), "oom_kill") or 0

    def remove(self, pid: int) -> None:
        """Remove the groups of a process that has ended."""
        for group in self.groups(pid):
            with contextlib.suppress(OSError):
                group.rmdir()


def sweep(folder: Path) -> None:
    """Remove the groups of processes that have ended."""
    for group in folder.glob(f"{name_of(0)[:-1]}*"):
        if not Path("/proc", group.name.removeprefix(name_of(0)[:-1])).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def trees_here(*, versions: tuple[int, ...] = (2, 1)) -> Trees | None:
    """Return the folders in which this user may make groups that limit cores, the newest version first; None: none."""
    if 2 in versions and (folder := writable_group()) is not None:
        return Trees(folder, folder, version=2)
    return old_trees() if 1 in versions else None


# --- cgroup v2


def writable_group(*, tree: Path = TREE, own: Path = OWN) -> Path | None:
    """Return a folder of the tree of control groups (v2) in which this user may make groups with cores and memory.

    It is the folder that `LABKIT_CGROUP` names, or else the uppermost writable one above this process: the kernel moves
    a process only within a tree whose top the user may write. None where there is none.
    """
    named = os.environ.get(FOLDER)
    if named:
        return Path(named) if _usable(Path(named)) else None
    mine = next((path for kinds, path in _own(own) if not kinds), None)
    if mine is None:
        return None
    at = tree / mine.lstrip("/")
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


def _own(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the controllers (v2: none) and the path of each group of this process."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        yield kinds, path


# --- cgroup v1


def old_trees(*, own: Path = OWN, mounts: Path = MOUNTS) -> Trees | None:
    """Return the folders of cgroup v1 in which this user may make groups: below the groups of this process.

    A limit on the group of this process also holds for the groups below it. None where there is no folder for cores.
    """
    found = {kind: folder for kind, folder in _old_groups(own, mounts).items() if _old_usable(folder)}
    return Trees(found["cpu"], found.get("memory"), version=1) if "cpu" in found else None


def _old_groups(own: Path, mounts: Path) -> dict[str, Path]:
    """Return the group of this process for each controller, as it is mounted here."""
    at = _mounted(mounts)
    found = {}
    for kinds, path in _own(own):
        for kind in CONTROLLERS & set(kinds.split(",")) & set(at):
            root, point = at[kind]
            inside = Path(path).is_relative_to(root)  # else it is a path outside the container
            found[kind] = _above_ours(point / Path(path).relative_to(root)) if inside else point
    return found


def _above_ours(group: Path) -> Path:
    """Return a group, or its parent if labkit made it for a limited process: groups of processes are siblings."""
    return group.parent if group.name.startswith(name_of(0)[:-1]) else group


def _mounted(mounts: Path) -> Mapping[str, tuple[str, Path]]:
    """Return for each controller the part of its tree that is mounted, and the mount point."""
    at: dict[str, tuple[str, Path]] = {}
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return at
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = (*after.split(" ", 2), "", "")[:3]
        if kind == "cgroup":
            for controller in CONTROLLERS & set(options.split(",")):
                at[controller] = before.split()[3], Path(before.split()[4])
    return at


def _old_usable(folder: Path) -> bool:
    return all(os.access(folder / file, os.W_OK) for file in ("cgroup.procs", "."))


def gb(amount: float) -> int:
    """Return GB as bytes."""
    return round(amount * GB)

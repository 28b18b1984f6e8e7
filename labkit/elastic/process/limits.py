"""What processes use of cores and memory, and limits of a running one, changed without a restart.

There are four ways to limit, each with the interface `Limits`. `LABKIT_LIMITS` names one; else the first available one
is used:

v2, v1
    A control group, of cgroup v2 or v1: shares of cores, and memory. They need folders that this user may write.
brake
    No privileges: the process keeps to a share of cores by waiting (`elastic/process/limits.py`), and ends itself when
    it exceeds its memory.
affinity
    No privileges: whole cores only, and no memory. Only used when named.

All of them also set the affinity to whole cores.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from labkit.core.errors import InputError
from labkit.elastic.process.causes import counted, text_of
from labkit.elastic.protocol.messages.clients import MeasuredUsage
from labkit.system.proc import all_pids, belongs_to_user, threads

GB: Final = 1e9
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LEAST_READING_S: Final = 0.2
"""Shortest time in seconds over which cores are computed."""
EVERY_S: Final = 1.0
"""Seconds between two readings of a job's processes."""
_SCHEDULED: Final = 2
"""Kind of the processor clock: CPUCLOCK_SCHED of the kernel."""


class UsageReading(NamedTuple):
    """Processor seconds used by a process until `at_s` of its host's monotonic clock, and GB; NaN where unknown."""

    at_s: float
    cpu_s: float
    memory_gb: float


class MemberUsage(NamedTuple):
    """Cores in use between two readings, and GB resident at the second; None where unknown."""

    cores: float | None = None
    memory_gb: float | None = None


def cpu_s(pid: int) -> float:
    """Return processor seconds of all threads of a process, ended ones included; OSError if it is gone."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def resident_bytes(pid: int, *, proc: Path = Path("/proc")) -> int:
    """Return the resident bytes of a process, shared memory included; OSError if it is gone or there is no /proc."""
    return int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE


def read(pid: int) -> UsageReading:
    """Return the processor seconds and memory of a process until now."""
    nan = float("nan")
    try:
        spent_s = cpu_s(pid)
    except OSError:
        spent_s = nan
    try:
        memory_gb = resident_bytes(pid) / GB
    except (OSError, ValueError, IndexError):
        memory_gb = nan
    return UsageReading(time.monotonic(), spent_s, memory_gb)


def readings(pids: Mapping[str, int]) -> dict[str, UsageReading]:
    """Return a reading of each process by name; processes without a number (0) are left out."""
    return {name: read(pid) for name, pid in pids.items() if pid > 0}


def encode_readings(usage: Mapping[str, UsageReading]) -> dict[str, MeasuredUsage]:
    """Return readings as messages have them: None for NaN."""
    return {
        name: MeasuredUsage(at_s, None if cpu_s != cpu_s else cpu_s, None if memory_gb != memory_gb else memory_gb)
        for name, (at_s, cpu_s, memory_gb) in usage.items()
    }


def decode_readings(sent: Mapping[str, MeasuredUsage]) -> dict[str, UsageReading]:
    """Return the readings that `encode_readings` was given."""
    nan = float("nan")
    return {
        name: UsageReading(at_s, nan if cpu_s is None else cpu_s, nan if memory_gb is None else memory_gb)
        for name, (at_s, cpu_s, memory_gb) in sent.items()
    }


class Gauge:
    """Computes the cores in use from successive readings."""

    def __init__(self) -> None:
        self._before: dict[str, UsageReading] = {}
        self._used: dict[str, MemberUsage] = {}

    def used(self, now: Mapping[str, UsageReading]) -> dict[str, MemberUsage]:
        """Return the use of each process since its reading before; processes that are missing are forgotten.

        >>> gauge = Gauge()
        >>> _ = gauge.used({"ps-0": UsageReading(10.0, 3.0, 0.5)})
        >>> gauge.used({"ps-0": UsageReading(12.0, 4.0, 0.6)})
        {'ps-0': MemberUsage(cores=0.5, memory_gb=0.6)}
        """
        self._before = {name: was for name, was in self._before.items() if name in now}
        self._used = {name: self._since(name, reading) for name, reading in now.items()}
        return dict(self._used)

    def _since(self, name: str, now: UsageReading) -> MemberUsage:
        memory_gb = None if now.memory_gb != now.memory_gb else now.memory_gb
        was = self._before.setdefault(name, now)
        over_s, spent_s = now.at_s - was.at_s, now.cpu_s - was.cpu_s
        if over_s < LEAST_READING_S:
            return MemberUsage(self._used.get(name, MemberUsage()).cores, memory_gb)
        self._before[name] = now
        return MemberUsage(max(spent_s, 0.0) / over_s if spent_s == spent_s else None, memory_gb)


CHOICE: Final = "LABKIT_LIMITS"
"""Environment variable with the name of the way."""
BRAKE, AFFINITY, V1, V2 = "brake", "affinity", "v1", "v2"
WAYS: Final = (V2, V1, BRAKE, AFFINITY)


@dataclass(frozen=True, slots=True)
class Amounts:
    """Limits of a process.

    Raise InputError if one is not finite and > 0.
    """

    cpus: float | None = None
    memory_gb: float | None = None
    """`cpus` and `memory_gb`: cores and GB; None: no limit."""

    def __post_init__(self) -> None:
        for name, amount in (("cores", self.cpus), ("GB of memory", self.memory_gb)):
            number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if amount is not None and not (number and 0 < amount < math.inf):
                raise InputError(f"{amount!r} {name} for a process; expected a finite number > 0, or no limit.")


class Limits(Protocol):
    """A way to limit a running process."""

    how: str
    """Its name: one of `WAYS`."""

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit a process from now on; return a sentence for each amount that this host cannot limit exactly.

        Raise ProcessLookupError if there is no such process.
        """
        ...

    def keep(self, *, most_s: float = math.inf) -> bool:
        """Wait, in a thread of the limited process after a piece of work, until its share of cores is met.

        It waits at most `most_s` seconds, and returns True if the share is not met then. Where the kernel enforces the
        limit it returns at once.
        """
        ...

    def exceeded(self) -> str:
        """Return the reason to end this process if it exceeds its memory; "" if not, or if the kernel enforces it."""
        ...


class Affinity:
    """Whole cores, by affinity of all threads of the process, present and later.

    A process gets the cores that the fewest other processes of this user are limited to. `allowed`: cores to choose
    from; those of the calling process by default.
    """

    how = AFFINITY

    def __init__(self, allowed: Iterable[int] | None = None) -> None:
        self.allowed = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit the cores of a process, rounded up to whole cores."""
        unable = self.whole(pid, amounts.cpus)
        if amounts.cpus is not None and amounts.cpus != math.ceil(amounts.cpus):
            n = min(math.ceil(amounts.cpus), len(self.allowed))
            unable.append(f"{amounts.cpus:g} cores: it has {n}, since affinity sets whole cores")
        if amounts.memory_gb is not None:
            unable.append(f"{amounts.memory_gb:g} GB: memory is not limited here: there is no cgroup")
        return unable

    def whole(self, pid: int, cpus: float | None) -> list[str]:
        """Set the affinity of a process to `cpus` rounded up; return a sentence if this host has fewer cores."""
        n = len(self.allowed) if cpus is None else math.ceil(cpus)
        give(pid, chosen(min(n, len(self.allowed)), self.allowed, but=pid))
        return [f"{n} cores: {len(self.allowed)} are there"] if n > len(self.allowed) else []

    def keep(self, *, most_s: float = math.inf) -> bool:  # noqa: ARG002
        """Return at once: affinity needs no waiting."""
        return False

    def exceeded(self) -> str:
        """Return "": memory is not limited."""
        return ""


class ControlGroup(Affinity):
    """Shares of cores, and memory, by a control group for each process.

    The kernel leaves the pages that a process had before its first limit in its former group. So the limit that is
    written is the amount less those pages.
    """

    def __init__(
        self, trees: Trees, *, allowed: Iterable[int] | None = None,
        resident: Callable[[int], int] = resident_bytes,  # takes a process number, and returns its resident bytes
    ) -> None:  # fmt: skip
        super().__init__(allowed)
        self.trees, self.how, self._resident = trees, f"v{trees.version}", resident
        self._brought: dict[int, int] = {}

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit the cores and memory of a process."""
        unable = self.whole(pid, amounts.cpus)
        unable += too_few(amounts.cpus)
        has = _resident_of(pid, self._resident)
        room, why = room_for(amounts.memory_gb, has)
        unable += why
        if amounts.memory_gb is not None and self.trees.memory is None:
            unable.append(f"{amounts.memory_gb:g} GB: there is no cgroup for memory that may be written here")
        try:
            self.trees.make(pid)
            self.trees.limit_cpus(pid, amounts.cpus)
            if pid not in self._brought:
                self.trees.enter(pid)
                self._brought[pid] = has or 0
            if amounts.memory_gb is None:
                self.trees.limit_memory(pid, None)
            elif room:
                self.trees.limit_memory(pid, gb(amounts.memory_gb) - self._brought[pid])
        except OSError as error:
            unable.append(f"a cgroup in {self.trees.cpu}: {error.strerror}")
        return unable


class Braked(Affinity):
    """A share of cores that this process enforces by waiting, and memory that it checks regularly.

    `want`: sentence about a way that was asked for and is not available; reported with each limit.
    """

    how = BRAKE

    def __init__(
        self, *, allowed: Iterable[int] | None = None, brake: Brake | None = None, want: str = "",
        resident: Callable[[int], int] = resident_bytes,
    ) -> None:  # fmt: skip
        super().__init__(allowed)
        self._brake, self._want, self._resident = brake or Brake(), want, resident
        self._most: float | None = None

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit this process; of another process only the affinity is set."""
        if pid != os.getpid():
            return super().apply(pid, amounts)
        unable = [*([self._want] if self._want else []), *self.whole(pid, amounts.cpus), *too_few(amounts.cpus)]
        self._brake.limit(None if amounts.cpus is None else max(amounts.cpus, LEAST_CPUS))
        has = _resident_of(pid, self._resident)
        room, why = room_for(amounts.memory_gb, has)
        unable += why
        if amounts.memory_gb is None:
            self._most = None
        elif has is None:
            unable.append(f"{amounts.memory_gb:g} GB: the memory of a process is unknown on this host")
        elif room:
            self._most = amounts.memory_gb
            unable.append(f"{amounts.memory_gb:g} GB: not limited by the kernel; it ends itself soon after it has more")
        return unable

    def keep(self, *, most_s: float = math.inf) -> bool:
        """Wait until the share is met."""
        return self._brake.keep(most_s=most_s)

    def exceeded(self) -> str:
        """Return the reason to end this process if it exceeds its memory; "" otherwise."""
        most, has = self._most, _resident_of(os.getpid(), self._resident)
        if most is None or has is None or has <= gb(most):
            return ""
        return f"it has {has / GB:.3g} GB, and may have {most:g}"


def _resident_of(pid: int, resident: Callable[[int], int]) -> int | None:
    try:
        return resident(pid)
    except (OSError, ValueError, IndexError):
        return None


def too_few(cpus: float | None) -> list[str]:
    """Return a sentence for a share below `LEAST_CPUS`, the least that can be given."""
    few = cpus is not None and cpus < LEAST_CPUS
    return [f"{cpus:g} cores: it has {LEAST_CPUS:g}, the least that can be given"] if few else []


def room_for(memory_gb: float | None, has: int | None) -> tuple[bool, list[str]]:
    """Return whether a process fits into a limit of memory, and a sentence if not: it would be killed at once."""
    if memory_gb is None or has is None or gb(memory_gb) > has:
        return True, []
    return False, [f"{memory_gb:g} GB: it has {has / GB:.3g} already; its limit of memory stays as it was"]


def limits_here() -> Limits:
    """Return the way that `LABKIT_LIMITS` names, or else the best one that this user has on this host."""
    wish = os.environ.get(CHOICE, "")
    if wish == AFFINITY:
        return Affinity()
    if wish == BRAKE:
        return Braked()
    trees = trees_here(versions={V1: (1,), V2: (2,)}.get(wish, (2, 1)))
    if trees is not None:
        return ControlGroup(trees)
    want = f"cgroups ({wish}): this user may make none here; the process limits itself"
    return Braked(want=want if wish else "")


def check_choice() -> None:
    """Raise InputError if `LABKIT_LIMITS` is set to an unknown name."""
    wish = os.environ.get(CHOICE, "")
    if wish and wish not in WAYS:
        raise InputError(f"{CHOICE} is '{wish}'; expected one of {', '.join(WAYS)}, or nothing.")


def describe_limits() -> str:
    """Return a sentence about what can be limited on this host."""
    here = limits_here()
    if isinstance(here, ControlGroup):
        what = "cores and memory" if here.trees.memory is not None else "cores, not memory"
        return f"{what}, in {' and '.join(map(str, here.trees.folders))}"
    return "cores, by waiting; memory is watched, not limited" if here.how == BRAKE else "whole cores, not memory"


def give(pid: int, cores: Iterable[int]) -> None:
    """Set the cores of all threads of a process, those included that start meanwhile.

    Raise ProcessLookupError if there is no such process.
    """
    mine, seen = set(cores), set[int]()
    while new := threads(pid) - seen:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, mine)
        seen |= new
    if not seen:
        raise ProcessLookupError(f"process {pid} is gone")


def chosen(n: int, allowed: Iterable[int], *, but: int = 0) -> list[int]:
    """Return the n cores that the fewest processes of this user are limited to; process `but` does not count."""
    used = _used(set(os.sched_getaffinity(0)) | set(allowed), but=but)
    return sorted(sorted(allowed, key=lambda core: (used[core], core))[:n])


def _used(everything: set[int], *, but: int) -> Counter[int]:
    """Return the number of processes of this user that are limited to each core."""
    used: Counter[int] = Counter()
    for pid in all_pids():
        if pid == but or not belongs_to_user(pid):
            continue
        with contextlib.suppress(OSError):
            theirs = os.sched_getaffinity(pid)
            if len(theirs) < len(everything):
                used.update(theirs)
    return used


PERIOD_S: Final = 0.1
"""Unused processor time may be used later: at most that of this many seconds."""
LEAST_S: Final = 0.05
"""Shorter waits are postponed until they add up to this, in seconds: each wait costs processor time of the share."""


class Brake:
    """Makes the threads of this process wait while it has used more than its share of cores.

    It needs no privileges, and changes when results are computed, not their values. It holds on average over times
    longer than a piece of work: at 0.1 cores a gradient of one second is computed at full speed, followed by a wait of
    nine.

    Parameters
    ----------
    spent_s : callable
        Returns the processor seconds of all threads of the process so far.
    now_s : callable
        Returns the seconds of a monotonic clock.

    Examples
    --------
    >>> spent, now = iter([0.0, 0.5]), iter([0.0, 1.0])
    >>> brake = Brake(spent_s=lambda: next(spent), now_s=lambda: next(now))
    >>> brake.limit(0.25)
    >>> brake.owed_s()
    1.0
    """

    def __init__(
        self, *, spent_s: Callable[[], float] = time.process_time, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._spent_s, self._now_s = spent_s, now_s
        self._changed = threading.Condition()
        self._cpus: float | None = None
        self._credit_s = self._at_s = self._before_s = 0.0

    def limit(self, cpus: float | None) -> None:
        """Set the limit in cores from now on; None: no limit. A debt of processor time is cancelled."""
        with self._changed:
            self._cpus, self._credit_s = cpus, 0.0
            self._at_s, self._before_s = self._now_s(), self._spent_s()
            self._changed.notify_all()

    def owed_s(self) -> float:
        """Return the seconds that all threads must wait to meet the limit."""
        with self._changed:
            return self._owed_s()

    def _owed_s(self) -> float:
        if self._cpus is None:
            return 0.0
        now_s, spent_s = self._now_s(), self._spent_s()
        earned_s, used_s = self._cpus * (now_s - self._at_s), spent_s - self._before_s
        self._credit_s = min(self._credit_s + earned_s - used_s, self._cpus * PERIOD_S)
        self._at_s, self._before_s = now_s, spent_s
        return max(-self._credit_s / self._cpus, 0.0)

    def keep(self, *, most_s: float = math.inf) -> bool:
        """Wait until the limit is met, at most `most_s` seconds; return True if it is not met then."""
        with self._changed:
            owed_s = self._owed_s()
            until_s = self._at_s + most_s
            while owed_s > LEAST_S:
                left_s = until_s - self._at_s
                if left_s <= 0:
                    return True
                self._changed.wait(min(owed_s, left_s))
                owed_s = self._owed_s()
        return False


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
    """Folders in which groups are made: one for all controllers (v2), or one for each (v1; memory may be missing)."""

    cpu: Path
    memory: Path | None
    """`cpu` and `memory`: the same folder with v2."""
    version: int
    """1 or 2."""

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
    usable = {kind: folder for kind, folder in _old_groups(own, mounts).items() if _old_usable(folder)}
    return Trees(usable["cpu"], usable.get("memory"), version=1) if "cpu" in usable else None


def _old_groups(own: Path, mounts: Path) -> dict[str, Path]:
    """Return the group of this process for each controller, as it is mounted here."""
    at = _mounted(mounts)
    groups = {}
    for kinds, path in _own(own):
        for kind in CONTROLLERS & set(kinds.split(",")) & set(at):
            root, point = at[kind]
            inside = Path(path).is_relative_to(root)  # else it is a path outside the container
            groups[kind] = _above_labkit_group(point / Path(path).relative_to(root)) if inside else point
    return groups


def _above_labkit_group(group: Path) -> Path:
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

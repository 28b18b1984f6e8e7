"""Limits of cores and memory of a running process, changed without a restart.

There are four ways, each with the interface `Limits`. `LABKIT_LIMITS` names one; else the first available one is used:

v2, v1
    A control group, of cgroup v2 or v1: shares of cores, and memory. They need folders that this user may write.
brake
    No privileges: the process keeps to a share of cores by waiting (`elastic/process/brake.py`), and ends itself when
    it exceeds its memory.
affinity
    No privileges: whole cores only, and no memory. Only used when named.

All of them also set the affinity to whole cores.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from labkit.core.errors import InputError
from labkit.elastic.process.brake import Brake
from labkit.elastic.process.control_groups import LEAST_CPUS, Trees, gb, trees_here
from labkit.elastic.process.usage import GB, resident_bytes
from labkit.system.proc import all_pids, is_ours, threads

CHOICE: Final = "LABKIT_LIMITS"
"""Environment variable with the name of the way."""
BRAKE, AFFINITY, V1, V2 = "brake", "affinity", "v1", "v2"
WAYS: Final = (V2, V1, BRAKE, AFFINITY)


@dataclass(frozen=True, slots=True)
class Amounts:
    """Limits of a process.

    Attributes
    ----------
    cpus, memory_gb : float or None
        Cores and GB; None: no limit.

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
                raise InputError(f"{amount!r} {name} for a process; expected a finite number > 0, or no limit.")


class Limits(Protocol):
    """A way to limit a running process."""

    how: str
    """Its name: one of `WAYS`."""

    def apply(self, pid: int, amounts: Amounts) -> list[str]:
        """Limit a process from now on; return a sentence for each amount that this host cannot limit exactly.

        Raises
        ------
        ProcessLookupError
            If there is no such process.
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

    A process gets the cores that the fewest other processes of this user are limited to.

    Parameters
    ----------
    allowed : iterable of int, optional
        Cores to choose from; those of the calling process by default.
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
            unable.append(f"{amounts.memory_gb:g} GB: memory is not limited here: there is no control group")
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

    Parameters
    ----------
    trees : Trees
        Folders in which groups are made.
    allowed : iterable of int, optional
        See `Affinity`.
    resident : callable
        Takes a process number, and returns its resident bytes.
    """

    def __init__(
        self, trees: Trees, *, allowed: Iterable[int] | None = None,
        resident: Callable[[int], int] = resident_bytes,
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
            unable.append(f"{amounts.memory_gb:g} GB: there is no control group for memory that may be written here")
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
            unable.append(f"a control group in {self.trees.cpu}: {error.strerror}")
        return unable


class Braked(Affinity):
    """A share of cores that this process enforces by waiting, and memory that it checks regularly.

    Parameters
    ----------
    brake : Brake, optional
        Brake of this process; a new one by default.
    want : str
        Sentence about a way that was asked for and is not available; reported with each limit.
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
            unable.append(f"{amounts.memory_gb:g} GB: not held by the kernel; it ends itself soon after it has more")
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
    want = f"control groups ({wish}): this user may make none here; the process limits itself"
    return Braked(want=want if wish else "")


def check_choice() -> None:
    """Raise InputError if `LABKIT_LIMITS` is set to an unknown name."""
    wish = os.environ.get(CHOICE, "")
    if wish and wish not in WAYS:
        raise InputError(f"{CHOICE} is '{wish}'; expected one of {', '.join(WAYS)}, or nothing.")


def told() -> str:
    """Return a sentence about what can be limited on this host."""
    here = limits_here()
    if isinstance(here, ControlGroup):
        what = "cores and memory" if here.trees.memory is not None else "cores, not memory"
        return f"{what}, in {' and '.join(map(str, here.trees.folders))}"
    return "cores, by waiting; memory is watched, not held" if here.how == BRAKE else "whole cores, not memory"


def give(pid: int, cores: Iterable[int]) -> None:
    """Set the cores of all threads of a process, those included that start meanwhile.

    Raises
    ------
    ProcessLookupError
        If there is no such process.
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
        if pid == but or not is_ours(pid):
            continue
        with contextlib.suppress(OSError):
            theirs = os.sched_getaffinity(pid)
            if len(theirs) < len(everything):
                used.update(theirs)
    return used

"""What follows from a failure: the delay until the next start, a host set aside, or a job given up."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Final

from labkit.core.errors import InputError

NO_MORE: Final = 2
"""Factor of `Retries.failures` from which a job is given up although it failed on one host only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Limits for jobs that fail, and hosts that fail jobs.

    Attributes
    ----------
    first_s, longest_s : float
        Seconds before a job starts again; doubled after each failure without progress, up to longest_s.
    failures : int
        Failures without a new checkpoint after which a job is given up, ...
    spread_s : float
        ... if the first of them is that many seconds ago, and not all were on one host while there were others.
    own_failures : int
        The same for failures in which the job itself reports that it cannot train.
    aside_s, longest_aside_s : float
        Seconds for which a host that fails a job is set aside if there are others; doubled each time, until a job
        trains there again.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    failures: int = 5
    spread_s: float = 60.0
    own_failures: int = 2
    aside_s: float = 10.0
    longest_aside_s: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            low = 1 if each.type == "int" else 0
            if not getattr(self, each.name) >= low:
                raise InputError(f"retries: {each.name} is {getattr(self, each.name)}; expected {low} or more.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequences of a failure."""

    drop: str = ""
    """Why the job is given up; empty: it starts again."""
    wait_s: float = 0.0
    """Seconds before it starts again."""
    aside: float = 0.0
    """Seconds for which its host is set aside; 0: it is not."""
    back: tuple[str, ...] = ()
    """Hosts that were set aside because of this job, and were not the cause."""


@dataclass(slots=True)
class _Trouble:
    """The failures of a job since its last progress."""

    since_s: float
    steps: float
    n: int = 0
    n_own: int = 0
    hosts: dict[str, str] = field(default_factory=dict)
    """Host -> error there, with numbers replaced."""
    blamed: set[str] = field(default_factory=set)


class Failures:
    """Counts the failures of jobs and hosts; progress resets the counts."""

    def __init__(self, limits: Retries) -> None:
        self.limits = limits
        self._jobs: dict[int, _Trouble] = {}
        self._hosts: dict[str, int] = {}

    def succeeded(self, host: str) -> None:
        """Note that a job trains on a host."""
        self._hosts.pop(host, None)

    def n_of(self, job: int) -> int:
        """Return the number of failures of a job without progress."""
        return self._jobs[job].n if job in self._jobs else 0

    def failed(
        self,
        job: int,
        *,
        host: str,  # host of the failure; empty: no host is involved
        why: str,
        steps: float,  # updates of the job that a checkpoint keeps
        now_s: float,
        own: bool = False,  # whether the job itself reports that it cannot train
        others: Collection[str] = (),  # other hosts that accept jobs
        busy: bool = False,  # whether other jobs have tasks on that host
    ) -> Verdict:
        """Count a failure, and return its consequences."""
        found = self._jobs.get(job)
        if found is None or steps > found.steps:
            found = self._jobs[job] = _Trouble(now_s, steps)
        found.n, found.n_own = found.n + 1, found.n_own + 1 if own else 0
        error, again = re.sub(r"\d+", "#", why).replace(host or "#", "#"), host in found.hosts
        elsewhere = any(each == error for name, each in found.hosts.items() if name != host)
        if host:
            found.hosts[host] = error
        if drop := self._drop(found, now_s, others=others, why=why):
            return Verdict(drop=drop, back=self._reset_blamed(found))
        wait_s = min(self.limits.first_s * 2.0 ** min(found.n - 1, 30), self.limits.longest_s)
        if own or elsewhere:  # the same error on two hosts: the job is the cause
            return Verdict(wait_s=wait_s, back=self._reset_blamed(found))
        blame = bool(host) and bool(others) and (again or not busy)
        return Verdict(wait_s=wait_s, aside=self._blame(found, host) if blame else 0.0)

    def _drop(self, found: _Trouble, now_s: float, *, others: Collection[str], why: str) -> str:
        limits = self.limits
        if found.n_own >= limits.own_failures:
            return f"it cannot train: {why}"
        spread = now_s - found.since_s >= limits.spread_s
        places = len(found.hosts) > 1 or not others or found.n >= NO_MORE * limits.failures
        if found.n < limits.failures or not spread or not places:
            return ""
        where = f" on {', '.join(sorted(found.hosts))}" if found.hosts else ""
        return f"{found.n} failures without progress in {now_s - found.since_s:.0f} s{where}; the last: {why}"

    def _blame(self, found: _Trouble, host: str) -> float:
        n = self._hosts[host] = self._hosts.get(host, 0) + 1
        found.blamed.add(host)
        return min(self.limits.aside_s * 2.0 ** min(n - 1, 30), self.limits.longest_aside_s)

    def _reset_blamed(self, found: _Trouble) -> tuple[str, ...]:
        names, found.blamed = tuple(sorted(found.blamed)), set()
        for name in names:
            self._hosts.pop(name, None)
        return names

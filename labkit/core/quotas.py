"""Quotas: the most GPUs that the jobs of a user may hold together, whatever the scheduler."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.files import read_table
from labkit.core.jobs import Jobs
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.placement import Placement, Reason
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK

OTHERS: Final = "*"
"""Stands for each user that no quota names."""
BEYOND: Final = "jobs beyond them wait, under every scheduler"
EXPECTED: Final = "expected USER=GPUS, as vision=8,nlp=16,*=4, or a TOML file with such lines below [quota]"


@dataclass(frozen=True, slots=True)
class Quotas:
    """The most GPUs that the jobs of each user may hold together.

    Jobs are admitted before the scheduler sees them, in order of priority and then of arrival: a user's jobs that wait
    are hidden from the first one on whose gang, with those of the user's jobs that run or were admitted, would exceed
    the quota. A job that waits for hosts which a reservation keeps from it takes none of the quota meanwhile. An
    elastic job may grow into what its user's other jobs leave. It is what queues in front of a scheduler do, such as
    Kueue's [1]_. Raise InputError if a quota is no number >= 0.

    Examples
    --------
    >>> print(Quotas.of("vision=8,*=4"))
    vision 8, each other user 4 GPUs

    References
    ----------
    .. [1] https://kueue.sigs.k8s.io/docs/concepts/cluster_queue
    """

    gpus: Mapping[str, float] = field(default_factory=dict)
    """GPUs by user; `*` is the quota of each user that has none of its own. Without it they have no limit."""

    def __post_init__(self) -> None:
        if not self.gpus:
            raise InputError(f"quotas are empty; {EXPECTED}.")
        for user, most in self.gpus.items():
            if isinstance(most, bool) or not isinstance(most, int | float | np.number) or not 0 <= most < math.inf:
                raise InputError(f"the quota of '{user}' is {most!r}; expected a number of GPUs >= 0.")

    @classmethod
    def of(cls, source: Quotas | Mapping[str, float] | str | Path) -> Self:
        """Return quotas of a mapping, of a text such as "vision=8,*=4", or of a TOML file with a table [quota].

        Raise InputError if it is none of them.
        """
        if isinstance(source, Quotas):
            return cls(source.gpus)
        if isinstance(source, Mapping):
            return cls(dict(source))
        if not isinstance(source, str | Path):
            raise InputError(f"quotas is a {type(source).__name__}; {EXPECTED}.")
        if "=" in str(source):
            return cls(_parsed(str(source)))
        return cls(read_table(Path(source), key="quota", what="quotas", expected=EXPECTED))

    def limits(self, jobs: Jobs) -> Floats:
        """Return the most GPUs of each user of some jobs, (U,); inf: no limit.

        Raise InputError if a user has no job, or a job's gang alone exceeds its user's quota.
        """
        for user in self.gpus:
            if user not in jobs.users and user != OTHERS:
                raise unknown("user in quotas", user, jobs.users)
        others = self.gpus.get(OTHERS, math.inf)
        most = np.array([float(self.gpus.get(user, others)) for user in jobs.users])
        gang = _gangs(jobs)
        if len(over := np.flatnonzero(gang > most[jobs.user] + SLACK)):
            job = int(over[0])
            user = jobs.users[jobs.user[job]]
            raise InputError(
                f"{len(over)} jobs ask for more GPUs than their user's quota, so they would wait for ever: job "
                f"{jobs.id[job]} of '{user}' asks for {gang[job]:g}, the quota is {most[jobs.user[job]]:g}. Raise the "
                f"quota, or leave the jobs out."
            )
        return most

    def __str__(self) -> str:
        own = [f"{user} {most:g}" for user, most in self.gpus.items() if user != OTHERS]
        rest = [f"each{' other' if own else ''} user {self.gpus[OTHERS]:g}"] if OTHERS in self.gpus else []
        return ", ".join(own + rest) + " GPUs"


class AdmissionControl:
    """Which jobs of a run a scheduler may see, and what of its decision exceeds no quota.

    Raise InputError as `Quotas.limits`.

    `quotas`: gPUs by user; `ledger`: what the run's jobs hold.
    """

    def __init__(self, quotas: Quotas, ledger: Ledger) -> None:
        self._ledger, jobs = ledger, ledger.jobs
        self._limit, self._user, self._users = quotas.limits(jobs), jobs.user, jobs.users
        self._gang, self._gpus = _gangs(jobs), np.stack([jobs.worker_demand[:, GPUS], jobs.ps_demand[:, GPUS]])
        self._rank = np.lexsort((np.arange(len(jobs)), -jobs.priority)).argsort()
        """Each job's place in the order of priority and arrival."""
        self._version, self._admitted = (-1, 0), self._ledger.active()
        self._able: Bools | None = None

    def admitted(self, *, able: Bools | None = None) -> Ints:
        """Return the active jobs that hold tasks or are within their user's quota, by arrival.

        Jobs that no host is open to now are among them too, and count for nothing: (N,) `able` tells which others are.
        """
        version = self._ledger.version, id(able)
        if self._version != version:  # a decision and the snapshot before it ask at the same moment
            self._version, self._able, self._admitted = version, able, self._find(able)
        return self._admitted

    def _find(self, able: Bools | None) -> Ints:
        active = self._ledger.active()
        holding = self._ledger.belief["phase"][active] == HOLDING
        counts = ~holding if able is None else ~holding & able[active]
        waiting = active[counts]
        waiting = waiting[np.lexsort((self._rank[waiting], self._user[waiting]))]
        user, gang = self._user[waiting], self._gang[waiting]
        taken = self._by_user(active[holding], self._gang[active[holding]])
        before = np.cumsum(gang) - gang
        first = np.r_[True, user[1:] != user[:-1]] if len(user) else np.empty(0, np.bool_)
        earlier = before - np.maximum.accumulate(np.where(first, before, 0.0))
        fits = taken[user] + earlier + gang <= self._limit[user] + SLACK
        shown = ~counts
        shown[np.searchsorted(active, waiting[fits])] = True
        admitted: Ints = active[shown]
        return admitted

    def within(self, placement: Placement, *, able: Bools | None = None) -> Placement:
        """Return a placement without what exceeds a quota, with the reasons: growth first, then jobs that would start.

        A job that is not admitted does not start; `able` is as `admitted` takes it.
        """
        jobs = placement.set_jobs
        if not len(jobs) or ((jobs < 0) | (jobs >= len(self._user))).any():
            return placement  # the backend says what is wrong
        waits = self._allocated_gpus(jobs) == 0
        hidden = waits & ~np.isin(jobs, self.admitted(able=able))
        count = placement.count.copy()
        count[np.isin(placement.job, jobs[hidden])] = 0
        over = self._excess(jobs, placement, count)
        for user in np.flatnonzero(over > SLACK):
            self._cut(placement, count, user=int(user), over=float(over[user]))
        if (count == placement.count).all():
            return placement
        return self._only(placement, count)

    def _excess(self, jobs: Ints, placement: Placement, count: Ints) -> Floats:
        """Return by how much each user's GPUs exceed the quota after a placement with other counts, (U,)."""
        active = self._ledger.active()
        stay = active[~np.isin(active, jobs)]
        after = self._by_user(stay, self._allocated_gpus(stay))
        after += self._by_user(placement.job, self._gpus[placement.role, placement.job] * count)
        excess: Floats = after - self._limit
        return excess

    def _cut(self, placement: Placement, count: Ints, *, user: int, over: float) -> None:
        """Take tasks with GPUs from rows of a user's jobs, the last first: growth, then starts, then the rest."""
        gpus = self._gpus[placement.role, placement.job]
        for keep in (self._gang, self._allocated_gpus(np.arange(len(self._user), dtype=np.int32))):
            for row in np.flatnonzero((self._user[placement.job] == user) & (gpus > 0) & (count > 0))[::-1]:
                job = placement.job[row]
                has = float((gpus * count)[placement.job == job].sum())
                spare = min(over, has - keep[job])
                if spare > SLACK:
                    n = min(int(count[row]), math.ceil((spare - SLACK) / gpus[row]))
                    count[row] -= n
                    over -= n * gpus[row]
                if over <= SLACK:
                    return

    def _only(self, placement: Placement, count: Ints) -> Placement:
        """Return the placement with these counts, and the reasons; a job that would start below its gang does not."""
        fewer = np.unique(placement.job[count < placement.count])
        granted = np.bincount(placement.job, self._gpus[placement.role, placement.job] * count, len(self._user))
        gone = fewer[(self._allocated_gpus(fewer) == 0) & (granted[fewer] < self._gang[fewer] - SLACK)]
        rows = (count > 0) & ~np.isin(placement.job, gone)
        kept = ~np.isin(placement.set_jobs, gone)
        reasons = [
            Reason(int(job), f"the quota of {self._users[self._user[job]]} is {self._limit[self._user[job]]:g} GPUs")
            for job in fewer
        ]
        parts = {name: getattr(placement, name) for name in ("partner", "missing", "cpus", "memory_gb")}
        sets = {name: parts[name][kept] for name in ("partner", "missing") if len(parts[name])}
        of_rows = {name: parts[name][rows] for name in ("cpus", "memory_gb") if len(parts[name])}
        return replace(
            placement, set_jobs=placement.set_jobs[kept], job=placement.job[rows], role=placement.role[rows],
            group=placement.group[rows], count=count[rows], reasons=(*placement.reasons, *reasons), **sets, **of_rows,
        )  # fmt: skip

    def _allocated_gpus(self, jobs: Ints) -> Floats:
        """Return the GPUs that some jobs hold."""
        gangs = self._ledger.book.allocations[jobs]
        gpus: Floats = gangs["n_workers"] * self._gpus[0, jobs] + gangs["n_ps"] * self._gpus[1, jobs]
        return gpus

    def _by_user(self, jobs: Ints, gpus: Floats) -> Floats:
        return np.bincount(self._user[jobs], gpus, len(self._limit)).astype(np.float64)


def _gangs(jobs: Jobs) -> Floats:
    """Return the GPUs of the gang that each job asks for."""
    gpus: Floats = jobs.n_workers * jobs.worker_demand[:, GPUS] + jobs.n_ps * jobs.ps_demand[:, GPUS]
    return gpus


def _parsed(text: str) -> dict[str, float]:
    """Return the quotas of a text."""
    quotas: dict[str, float] = {}
    for part in re.split("[,+]", text):
        user, equals, most = (word.strip() for word in part.rpartition("="))
        try:
            number = float(most)
        except ValueError:
            number = math.nan
        if not (user and equals and math.isfinite(number)):
            raise InputError(f"a quota is {part.strip()!r}; {EXPECTED}.")
        if user in quotas:
            raise InputError(f"user '{user}' has two quotas, {quotas[user]:g} and {number:g}; give one.")
        quotas[user] = number
    return quotas

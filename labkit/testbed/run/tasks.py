"""The tasks of a job on machines: their cores and memory, their numbers, and the events made of them.

Tasks are numbered within job and role from 0, in the order of the job's rows. A member of the elastic runtime gets the
first free seat of its site; when a member leaves, the last one of its site and role gets its seat: `ps-7` is task 0
after six others have left.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role, events
from labkit.core.resources import Amounts, Ints
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.run.job_events import JobEvent, LeftEvent, MemberName, StartedEvent
from labkit.testbed.run.training import site_names

MemberLimits = dict[str, tuple[float | None, float | None]]
"""Member -> most cores and GB; None: no limit."""
Row = tuple[int, str, int]
"""Role, site, and number of tasks."""
Seat = tuple[int, str, int]
"""Role, site, and position among the members of that role there."""


class TaskResources(NamedTuple):
    """Cores and GB of one task; None: as declared, which on machines means no limit."""

    site: str
    role: int
    cpus: float | None
    memory_gb: float | None


def task_resources(
    cluster: Cluster, *, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts
) -> list[TaskResources]:
    """Return the amounts of the tasks of some rows of a placement, one by one; empty if no row has amounts.

    Ordered by site and role; the tasks of a role on a site in the order of their rows, which numbers them.
    """
    names, tasks = site_names(cluster), []
    for i in range(len(role) if len(cpus) or len(memory_gb) else 0):
        each = TaskResources(names[group[i]], int(role[i]), _amount(cpus, i), _amount(memory_gb, i))
        tasks += [each] * int(count[i])
    some = any(each.cpus is not None or each.memory_gb is not None for each in tasks)
    return sorted(tasks, key=lambda each: (each.site, each.role)) if some else []


def by_row(tasks: Sequence[TaskResources], site: str, role: int, n: int) -> list[tuple[int, float, float]]:
    """Return the n tasks of a role on a site as rows (count, cores, GB); NaN: as declared."""
    mine = [(each.cpus, each.memory_gb) for each in tasks if (each.site, each.role) == (site, role)][:n]
    mine += [(None, None)] * (n - len(mine))
    return [(len(list(some)), _or_nan(cpus), _or_nan(gb)) for (cpus, gb), some in groupby(mine)]


def _amount(column: Amounts, row: int) -> float | None:
    return round(float(column[row]), 6) if len(column) and not np.isnan(column[row]) else None


def _or_nan(amount: float | None) -> float:
    return np.nan if amount is None else amount


class TaskNumbers:
    """The members of a job by seat; thread-safe."""

    def __init__(self) -> None:
        self._members: dict[tuple[int, str], list[MemberName]] = defaultdict(list)
        self._lock = threading.Lock()

    def note(self, event: JobEvent) -> None:
        """Take in an event of the elastic runtime: members start and leave."""
        if not isinstance(event, StartedEvent | LeftEvent):
            return
        member = MemberName.of(event.name)
        if member is None:
            return
        with self._lock:
            if isinstance(event, LeftEvent):
                self._left(member)
            elif not any(member in those for those in self._members.values()):
                self._members[int(member.role), event.site].append(member)

    def _left(self, member: MemberName) -> None:
        for those in self._members.values():
            if member in those:
                last = those.pop()
                if last != member:
                    those[those.index(member)] = last

    def clear(self) -> None:
        """Free all seats: the job starts again."""
        with self._lock:
            self._members.clear()

    def of_task(self, rows: Sequence[Row], role: int, task: int) -> MemberName | None:
        """Return the member that is a task, given the rows of a job; None: it has not started yet."""
        seats = [seat for seat in _seats(rows) if seat[0] == role]
        if not 0 <= task < len(seats):
            return None
        _, site, at = seats[task]
        with self._lock:
            there = self._members[role, site]
            return there[at] if at < len(there) else None

    def tasks(self, rows: Sequence[Row]) -> dict[MemberName, int]:
        """Return the task number of each member, without members that have no row yet, or no longer."""
        found: dict[MemberName, int] = {}
        n = [0, 0]
        with self._lock:
            for role, site, at in _seats(rows):
                there = self._members[role, site]
                if at < len(there):
                    found[there[at]] = n[role]
                n[role] += 1
        return found

    def amounts(self, tasks: Sequence[TaskResources]) -> MemberLimits:
        """Return the limits of members by name; members without a row have none."""
        at: dict[tuple[int, str], int] = defaultdict(int)
        named: MemberLimits = {}
        with self._lock:
            for each in tasks:
                there, number = self._members[each.role, each.site], at[each.role, each.site]
                at[each.role, each.site] += 1
                if number < len(there):
                    named[str(there[number])] = (each.cpus, each.memory_gb)
        return named


def _seats(rows: Sequence[Row]) -> Iterator[Seat]:
    taken: dict[tuple[int, str], int] = defaultdict(int)
    for role, site, n in rows:
        for _ in range(n):
            yield role, site, taken[role, site]
            taken[role, site] += 1


def row(kind: Kind, **columns: Any) -> Events:
    """Return one event."""
    event = events(1)
    event["kind"] = kind
    for name, value in columns.items():
        event[name] = value
    return event


def at(rows: list[Events], time_s: float) -> list[Events]:
    """Set the time of events."""
    for each in rows:
        each["time_s"] = time_s
    return rows


def seats(
    cluster: Cluster, job: int, place: JobPlacement, *, with_ps: bool, amounts: Sequence[TaskResources] = ()
) -> list[Events]:  # fmt: skip
    """Return PLACED rows for the tasks of a job; a PS that the job did not ask for has none."""
    names = site_names(cluster)
    return [
        row(Kind.PLACED, job=job, role=role, group=names.index(site), value=float(n), cpus=cpus, memory_gb=memory_gb)
        for site, counts in place.items()
        for role in (Role.WORKER, Role.PS)
        if counts[role] and (role == Role.WORKER or with_ps)
        for n, cpus, memory_gb in by_row(amounts, site, role, counts[role])
    ]


def hosts_of(place: JobPlacement) -> set[str]:
    """Return the hosts that a placement has tasks on."""
    return {site.rpartition("/")[0] for site, counts in place.items() if any(counts)}


def wall_s() -> float:
    """Return seconds since 1970, which another process can continue."""
    return datetime.now(UTC).timestamp()

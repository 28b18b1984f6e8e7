"""Which task of its job each member of the elastic runtime is: `ps-7` is task 0 after six others have left.

Tasks are numbered within job and role from 0, in the order of the job's rows. A member gets the first free seat of its
site; when a member leaves, the last one of its site and role gets its seat.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence

from labkit.elastic.event_quantities import MemberName
from labkit.testbed.run.amounts import Given, MemberLimits
from labkit.testbed.run.job_events import JobEvent, LeftEvent, StartedEvent

Row = tuple[int, str, int]
"""Role, site, and number of tasks."""
Seat = tuple[int, str, int]
"""Role, site, and position among the members of that role there."""


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

    def amounts(self, tasks: Sequence[Given]) -> MemberLimits:
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
    """Return the seats of a job's tasks, in the order of its rows."""
    taken: dict[tuple[int, str], int] = defaultdict(int)
    for role, site, n in rows:
        for _ in range(n):
            yield role, site, taken[role, site]
            taken[role, site] += 1

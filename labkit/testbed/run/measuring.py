"""What tasks on machines use and how fast they are: from agents' looks at /proc and the events of jobs, as MEASURED."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from labkit.core.errors import LabkitError
from labkit.core.events import Events, Kind, Quantity, Role, events, joined
from labkit.elastic.event_quantities import EventQuantities, MemberName
from labkit.testbed.run.agent_pool import AgentPool

MB_PER_GB: Final = 1000.0

Sampled = Mapping[str, Mapping[str, Any]]
"""What the agent of each host said."""


class RunMeasuring:
    """Measures all jobs of a run, at fixed times, in a thread of its own.

    Parameters
    ----------
    hosts : AgentPool
        Whose agents are asked; those that do not answer are left out until they do.
    every_s : float
        Seconds between two measurements.
    tell : callable
        Hears MEASURED events, without a time, in some thread.
    """

    def __init__(self, hosts: AgentPool, *, every_s: float, tell: Callable[[Events], None]) -> None:
        self._hosts, self._every_s, self._tell = hosts, every_s, tell
        self._jobs: dict[int, EventQuantities] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._before: Sampled = {}
        self._thread = threading.Thread(target=self._run, name="measuring", daemon=True)
        self._thread.start()

    def note(self, job: int, event: Mapping[str, Any]) -> None:
        """Take note of an event of a job."""
        with self._lock:
            self._jobs.setdefault(job, EventQuantities()).note(event)

    def close(self) -> None:
        """Measure no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            said = self._asked()
            rows = self.measured(self._before, said)
            self._before = said
            if len(rows):
                self._tell(rows)

    def _asked(self) -> Sampled:
        """Return what the agents of all hosts say; one that cannot be asked says nothing."""
        found: dict[str, Mapping[str, Any]] = {}

        def ask(host: str) -> None:
            try:
                found[host] = self._hosts.agent(host).measure(each=True)
            except (LabkitError, OSError):
                return  # whoever watches the hosts notices

        asking = [threading.Thread(target=ask, args=(host,), daemon=True) for host, up in self._hosts.up.items() if up]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(self._every_s)
        return dict(found)

    def measured(self, before: Sampled, after: Sampled) -> Events:
        """Return what there is to tell of all jobs, from two answers of agents and what was heard between them."""
        parts = []
        with self._lock:
            for job, heard in self._jobs.items():
                found = heard.taken() | _used(heard, before, after, run=self._hosts.run, task=f"job-{job}")
                parts.append(_rows(job, found))
        return joined(parts)


def _used(
    heard: EventQuantities, before: Sampled, after: Sampled, *, run: str, task: str
) -> dict[tuple[MemberName, Quantity], float]:
    """Return cores and memory of the members of a job whose processes an agent saw."""
    found: dict[tuple[MemberName, Quantity], float] = {}
    for member, (host, pid) in heard.where.items():
        then, now = (_task(said.get(host), run, task) for said in (before, after))
        cpu_s, earlier_s = (of.get("processes", {}).get(str(pid)) for of in (now, then))
        if (used_mb := now.get("processes_mb", {}).get(str(pid))) is not None:
            found[member, Quantity.MEMORY_GB] = float(used_mb) / MB_PER_GB
        if cpu_s is not None and earlier_s is not None:
            over_s = float(after[host]["boot_s"]) - float(before[host]["boot_s"])
            if over_s > 0:
                found[member, Quantity.CORES] = max(float(cpu_s) - float(earlier_s), 0.0) / over_s
    return found


def _task(said: Mapping[str, Any] | None, run: str, task: str) -> Mapping[str, Any]:
    tasks = () if said is None else said["tasks"]
    return next((row for row in tasks if (row["run"], row["task"]) == (run, task)), {})


def _rows(job: int, found: Mapping[tuple[MemberName, Quantity], float]) -> Events:
    """Return a row for each member, and one for all tasks of each role: what of them, `Quantity` says.

    `task` is the number of the member; which task of the job that is, `labkit.testbed.run.task_of_member` knows.
    """
    together: dict[tuple[Role, Quantity], list[float]] = defaultdict(list)
    for (member, quantity), value in found.items():
        together[member.role, quantity].append(value)
    values = [(member.role, member.number, quantity, value) for (member, quantity), value in found.items()]
    for (role, quantity), those in together.items():
        values.append((role, -1, quantity, sum(those) if quantity == Quantity.CORES else max(those)))
    rows = events(len(values))
    rows["kind"], rows["job"] = Kind.MEASURED, job
    for row, (role, task, quantity, value) in zip(rows, values, strict=True):
        row["role"], row["task"], row["quantity"], row["value"] = role, task, quantity, value
    return rows

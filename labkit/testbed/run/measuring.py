"""MEASURED events of a run on machines: resources from agents that read /proc, paces from the events of jobs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from labkit.core.errors import LabkitError
from labkit.core.events import Events, Kind, Quantity, Role, events, joined
from labkit.elastic.event_quantities import EventQuantities, MemberName
from labkit.testbed.agent.shapes import HostMeasurement, Used
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.job_events import JobEvent, columns_of

MB_PER_GB: Final = 1000.0

HostMeasurements = Mapping[str, HostMeasurement]
"""Host -> measurement of its agent."""


class RunMeasuring:
    """Measures all jobs of a run at an interval, in a thread of its own.

    Parameters
    ----------
    hosts : AgentPool
        Agents to ask; those that do not answer are left out until they do.
    every_s : float
        Seconds between two measurements.
    on_rows : callable
        Takes MEASURED events, without a time, in some thread.
    """

    def __init__(self, hosts: AgentPool, *, every_s: float, on_rows: Callable[[Events], None]) -> None:
        self._hosts, self._every_s, self._on_rows = hosts, every_s, on_rows
        self._jobs: dict[int, EventQuantities] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._before: HostMeasurements = {}
        self._thread = threading.Thread(target=self._run, name="measuring", daemon=True)
        self._thread.start()

    def note(self, job: int, event: JobEvent) -> None:
        """Take in an event of a job's elastic runtime."""
        with self._lock:
            self._jobs.setdefault(job, EventQuantities()).note(columns_of(event))

    def close(self) -> None:
        """End the measurements."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            now = self._measure_hosts()
            rows = self.measured(self._before, now)
            self._before = now
            if len(rows):
                self._on_rows(rows)

    def _measure_hosts(self) -> HostMeasurements:
        """Return the measurements of all hosts; a host that does not answer in time has none."""
        found: dict[str, HostMeasurement] = {}

        def measure(host: str) -> None:
            try:
                found[host] = self._hosts.agent(host).measure(each=True)
            except (LabkitError, OSError):
                return  # the pool watches the hosts, and reports the loss

        threads = [
            threading.Thread(target=measure, args=(host,), daemon=True) for host, up in self._hosts.up.items() if up
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._every_s)
        return dict(found)

    def measured(self, before: HostMeasurements, after: HostMeasurements) -> Events:
        """Return MEASURED rows of all jobs, from two measurements of hosts and the events between them."""
        parts = []
        with self._lock:
            for job, quantities in self._jobs.items():
                used = _used(quantities, before, after, run=self._hosts.run, task=f"job-{job}")
                parts.append(_rows(job, quantities.taken() | used))
        return joined(parts)


def _used(
    quantities: EventQuantities, before: HostMeasurements, after: HostMeasurements, *, run: str, task: str
) -> dict[tuple[MemberName, Quantity], float]:
    """Return cores and memory of the members of a job whose processes an agent measured."""
    found: dict[tuple[MemberName, Quantity], float] = {}
    for member, (host, pid) in quantities.where.items():
        then, now = (_task(measured.get(host), run, task) for measured in (before, after))
        if now is not None and (used_mb := now.processes_mb.get(str(pid))) is not None:
            found[member, Quantity.MEMORY_GB] = used_mb / MB_PER_GB
        if now is None or then is None or str(pid) not in now.processes.keys() & then.processes.keys():
            continue
        over_s = after[host].boot_s - before[host].boot_s
        if over_s > 0:
            found[member, Quantity.CORES] = max(now.processes[str(pid)] - then.processes[str(pid)], 0.0) / over_s
    return found


def _task(measured: HostMeasurement | None, run: str, task: str) -> Used | None:
    rows = () if measured is None else measured.tasks
    return next((row for row in rows if (row.run, row.task) == (run, task)), None)


def _rows(job: int, found: Mapping[tuple[MemberName, Quantity], float]) -> Events:
    """Return a row for each member and quantity, and one for all tasks of each role.

    Column `task` is the number of the member; `labkit.testbed.run.task_of_member` maps it to the task of the job.
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

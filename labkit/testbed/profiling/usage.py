"""Processor time that the processes of a run use between two measurements of all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labkit.testbed.agent.shapes import HostMeasurement, Used
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.ssh.parallel import together


@dataclass(frozen=True, slots=True)
class Look:
    """Measurements of the agents of all hosts at one moment, by host."""

    by_host: Mapping[str, HostMeasurement]

    @classmethod
    def at(cls, hosts: AgentPool) -> Look:
        """Measure all hosts at once."""
        names = list(hosts.up)
        found = together(lambda name: hosts.agent(name).measure(each=True), names, give_up=hosts.drop)
        return cls(dict(zip(names, found, strict=True)))

    def task(self, host: str, task: str, run: str) -> Used | None:
        """Return the use of a task on a host; None: it has no process there."""
        return next((row for row in self.by_host[host].tasks if (row.run, row.task) == (run, task)), None)

    def tasks_s(self, host: str) -> float:
        """Return the processor seconds of all tasks of a host."""
        return sum(row.cpu_s for row in self.by_host[host].tasks)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two looks."""

    before: Look
    after: Look

    def over_s(self, host: str) -> float:
        """Return the seconds between the looks, on the clock of a host."""
        return max(self.after.by_host[host].boot_s - self.before.by_host[host].boot_s, 1e-3)

    def cores(self, task: str, *, run: str) -> float:
        """Return the cores that a task kept busy, on all hosts together."""
        return sum(self._task_s(host, task, run) / self.over_s(host) for host in self.after.by_host)

    def seconds(self, task: str, *, run: str) -> float:
        """Return the processor seconds of a task on all hosts."""
        return sum(self._task_s(host, task, run) for host in self.after.by_host)

    def cores_of(self, task: str, members: Iterable[tuple[str, int]], *, run: str) -> float:
        """Return the cores that some processes of a task kept busy; each is (host, pid)."""
        total = 0.0
        for host, pid in members:
            before, after = (look.task(host, task, run) for look in (self.before, self.after))
            if before and after and str(pid) in before.processes and str(pid) in after.processes:
                total += (after.processes[str(pid)] - before.processes[str(pid)]) / self.over_s(host)
        return total

    def others(self, hosts: Iterable[str]) -> float:
        """Return the cores of a machine that were busy with anything but tasks of agents; `hosts` are all on it."""
        names = list(hosts)
        first = names[0]
        busy_s = self.after.by_host[first].host.busy_s - self.before.by_host[first].host.busy_s
        own_s = sum(self.after.tasks_s(name) - self.before.tasks_s(name) for name in names)
        return max((busy_s - own_s) / self.over_s(first), 0.0)

    def _task_s(self, host: str, task: str, run: str) -> float:
        before, after = (look.task(host, task, run) for look in (self.before, self.after))
        return max((after.cpu_s if after else 0.0) - (before.cpu_s if before else 0.0), 0.0)

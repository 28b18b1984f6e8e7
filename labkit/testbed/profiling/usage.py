"""What the processes of a run use: processor seconds between two looks at all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.ssh.parallel import together


@dataclass(frozen=True, slots=True)
class Look:
    """What the agents of all hosts said at a moment, by host."""

    said: Mapping[str, Mapping[str, Any]]

    @classmethod
    def at(cls, hosts: AgentPool) -> Look:
        """Ask all hosts at once."""
        names = list(hosts.up)
        answers = together(lambda name: hosts.agent(name).measure(each=True), names, give_up=hosts.drop)
        return cls(dict(zip(names, answers, strict=True)))


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two looks."""

    before: Look
    after: Look

    def over_s(self, host: str) -> float:
        """Return the seconds between them, on a host."""
        seconds: float = self.after.said[host]["boot_s"] - self.before.said[host]["boot_s"]
        return max(seconds, 1e-3)

    def cores(self, task: str, *, run: str) -> float:
        """Return how many cores a task kept busy, on all hosts together."""
        return sum(self._task_s(host, task, run) / self.over_s(host) for host in self.after.said)

    def seconds(self, task: str, *, run: str) -> float:
        """Return the processor seconds of a task on all hosts."""
        return sum(self._task_s(host, task, run) for host in self.after.said)

    def cores_of(self, task: str, members: Iterable[tuple[str, int]], *, run: str) -> float:
        """Return how many cores some processes of a task kept busy: (host, number on it) each."""
        total = 0.0
        for host, pid in members:
            before, after = (_processes(look.said[host], task, run) for look in (self.before, self.after))
            if str(pid) in before and str(pid) in after:
                total += (after[str(pid)] - before[str(pid)]) / self.over_s(host)
        return total

    def others(self, hosts: Iterable[str]) -> float:
        """Return how many cores of a machine were busy with anything but tasks of agents; `hosts` are all on it."""
        names = list(hosts)
        first = names[0]
        busy_s = self.after.said[first]["host"]["busy_s"] - self.before.said[first]["host"]["busy_s"]
        own = sum(_all_s(self.after.said[name]) - _all_s(self.before.said[name]) for name in names)
        return max(float(busy_s - own) / self.over_s(first), 0.0)

    def _task_s(self, host: str, task: str, run: str) -> float:
        before, after = (_cpu_s(look.said[host], task, run) for look in (self.before, self.after))
        return max(after - before, 0.0)


def _cpu_s(said: Mapping[str, Any], task: str, run: str) -> float:
    return sum(float(row["cpu_s"]) for row in said["tasks"] if (row["run"], row["task"]) == (run, task))


def _all_s(said: Mapping[str, Any]) -> float:
    return sum(float(row["cpu_s"]) for row in said["tasks"])


def _processes(said: Mapping[str, Any], task: str, run: str) -> Mapping[str, float]:
    for row in said["tasks"]:
        if (row["run"], row["task"]) == (run, task):
            found: Mapping[str, float] = row["processes"]
            return found
    return {}

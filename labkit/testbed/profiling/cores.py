"""Cores that a machine really has, measured, and loads that keep some of them busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from labkit.core.errors import LabkitError
from labkit.speed.profiled.profile import Pool
from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import HostError
from labkit.testbed.profiling.stage import LEASE_S, ProfilingSession
from labkit.testbed.profiling.usage import Usage
from labkit.testbed.ssh.frames import Number, decoded

SPIN: Final = "labkit.testbed.profiling.spin"
ALONE_S, TOGETHER_S = 0.3, 1.0
_numbers = count()


def pools(stage: ProfilingSession) -> list[Pool]:
    """Return the machines of a testbed, each with its measured number of cores.

    One load alone measures the work of a core per second; as many loads as cores measure the work of the machine per
    second. Cores that other processes use meanwhile are counted as free.
    """
    return [
        Pool(name=stage.hosts.agent(hosts[0]).hello.host or boot[:8], hosts=hosts, cores=_cores(stage, hosts))
        for boot, hosts in stage.machines.items()
    ]


def _cores(stage: ProfilingSession, hosts: list[str]) -> float:
    host = hosts[0]
    n = len(stage.hosts.agent(host).hello.cores)
    (alone,) = _spun(stage, host, 1, ALONE_S)
    before = stage.look()
    many = _spun(stage, host, n, TOGETHER_S)
    used = Usage(before, stage.look())
    loops, cpu_s = sum(each.loops for each in many), sum(each.cpu_s for each in many)
    worth = loops / max(cpu_s, 1e-3) / (alone.loops / max(alone.cpu_s, 1e-3))
    got = cpu_s / max(each.wall_s for each in many)
    others = max(used.others(hosts) - cpu_s / used.over_s(host), 0.0)  # the loads have ended, and are no tasks any more
    return round(min((got + others) * worth, float(n)), 3)


@dataclass(frozen=True)
class Spun:
    """Result of a load."""

    loops: Number
    cpu_s: Number
    wall_s: Number


def _spun(stage: ProfilingSession, host: str, n: int, seconds: float) -> list[Spun]:
    """Run some loads at once for some seconds; return their results."""
    agent = stage.hosts.agent(host)
    watching = agent.watch(stage.run, since=_last_event(agent, stage.run)) if _known(agent, stage.run) else None
    tasks = {_start(stage, agent, str(seconds)) for _ in range(n)}
    watching = watching or agent.watch(stage.run)
    left = set(tasks)
    while left:
        event = watching.next(timeout_s=seconds + 60.0)
        if event.kind == "ended":
            left.discard(event.task or "")
    return [decoded(agent.read(stage.run, task=task, file="log").data, Spun) for task in sorted(tasks)]


def _known(agent: Agent, run: str) -> bool:
    return any(listed.run == run for listed in agent.list())


def _last_event(agent: Agent, run: str) -> int:
    return max((listed.last_event for listed in agent.list() if listed.run == run), default=0)


def _start(stage: ProfilingSession, agent: Agent, *words: str) -> str:
    path = agent.bridge.path
    task = f"spin-{next(_numbers)}"
    agent.start(
        stage.run, task=task, argv=[str(agent.bridge.python), "-m", SPIN, *words],
        env={} if path is None else {"PYTHONPATH": path}, lease_s=LEASE_S,
    )  # fmt: skip
    return task


@contextmanager
def load(stage: ProfilingSession, host: str, n_cores: int) -> Iterator[None]:
    """Keep some cores of a host busy.

    Raises
    ------
    HostError
        If the load does not begin.
    """
    agent = stage.hosts.agent(host)
    tasks = [_start(stage, agent) for _ in range(n_cores)]
    try:
        _await_busy(stage, agent, tasks)
        yield
    finally:
        for task in tasks:
            with suppress(LabkitError):
                agent.stop(stage.run, task=task, grace_s=0.0)


def _await_busy(stage: ProfilingSession, agent: Agent, tasks: list[str]) -> None:
    """Wait until all loads have used the processor."""
    for _ in range(100):
        used = {row.task: row.cpu_s for row in agent.measure().tasks if row.run == stage.run}
        if all(used.get(task, 0.0) > 0.1 for task in tasks):
            return
        threading.Event().wait(0.05)
    raise HostError("the load does not begin to use the processor")

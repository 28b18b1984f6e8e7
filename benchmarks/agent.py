"""What the host agent costs: 8 busy tasks measured each second and followed, and how soon a task runs.

python -m benchmarks agent
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Row, best_s, size
from labkit.testbed.agent.client import Agent, Subscription
from labkit.testbed.run.session import LocalBridge

COMMAND = "python -m benchmarks agent"
N_TASKS, SECONDS, STARTS, CALLS = size(8, short=2), size(20, short=2), size(30, short=2), size(200, short=2)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TASK = """
import json, os, time
if os.fork() == 0:
    os.fork()
with open("events.jsonl", "a") as file:
    for step in range(10**9):
        file.write(json.dumps({"step": step, "loss": 1 / (step + 1)}) + "\\n")
        file.flush()
        time.sleep(0.1)
"""


def cpu_s(pid: int) -> float:
    said = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(said[11]) + int(said[12])) * TICK_S


def memory_mb(pid: int, what: str = "VmHWM") -> float:
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{what}:")[1].split()[0]) / 1e3


def rows() -> list[Row]:
    """Return cost and latencies of an agent of its own."""
    with tempfile.TemporaryDirectory() as place, Agent(LocalBridge(Path(place) / "home")) as agent:
        try:
            return [*_cost_rows(agent), *_latency_rows(agent), *_connection_rows(Path(place) / "home")]
        finally:
            for run in agent.list():
                agent.stop(run.run, grace_s=0.0)
            agent.shutdown()


def _cost_rows(agent: Agent) -> list[Row]:
    for number in range(N_TASKS):
        agent.start("cost", task=f"t{number}", argv=[sys.executable, "-c", TASK])
    samples = agent.measuring(every_s=1.0)
    samples.next(timeout_s=30)
    measured = _share(agent, samples)
    follows = [agent.follow("cost", task=f"t{number}", file="events.jsonl") for number in range(N_TASKS)]
    n_lines = [0] * N_TASKS
    readers = [threading.Thread(target=_take, args=(follow, n_lines, k)) for k, follow in enumerate(follows)]
    for reader in readers:
        reader.start()
    followed = _share(agent, samples)
    samples.close()
    agent.stop("cost", grace_s=0.5)
    for reader in readers:
        reader.join()
    assert min(n_lines) > 5 * SECONDS
    return [
        Row(
            f"Agent, {N_TASKS} tasks measured each second", round(100 * measured, 2), "% of a core", 2.0, False, COMMAND
        ),
        Row(
            f"Agent, {N_TASKS} tasks measured and followed",
            round(100 * followed, 2),
            "% of a core",
            2.0,
            False,
            COMMAND,
        ),
        Row("Agent, memory", round(memory_mb(agent.hello.pid), 1), "MB, peak", 100.0, False, COMMAND),
    ]


def _take(follow: Subscription[str], n_lines: list[int], k: int) -> None:
    for _ in follow:
        n_lines[k] += 1


def _share(agent: Agent, samples: Subscription[dict[str, Any]]) -> float:
    """Return the part of a core that the agent takes while it tells so many samples."""
    pid = agent.hello.pid
    before_s, began_s = cpu_s(pid), time.monotonic()
    for _ in range(SECONDS):
        samples.next(timeout_s=30)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


def _latency_rows(agent: Agent) -> list[Row]:
    answered, running, ended = [], [], []
    for number in range(STARTS):
        began_s, boot_s = time.perf_counter(), time.clock_gettime(time.CLOCK_BOOTTIME)
        name = f"t{number}"
        agent.start("latency", task=name, argv=["cat", "/proc/uptime"])
        answered.append(time.perf_counter() - began_s)
        agent.start("latency", task=f"p{number}", argv=["sleep", "1000"])
        task = agent.list("latency")[0].tasks[name]
        running.append(task.started_s - boot_s)
        began_s = time.perf_counter()
        agent.stop("latency", task=f"p{number}")
        ended.append(time.perf_counter() - began_s)
    call_s = best_s(lambda: [agent.list("latency") for _ in range(CALLS)]) / CALLS
    return [
        Row("Agent, start: asked until it runs", round(median(running), 4), "s, median", 0.1, False, COMMAND),
        Row("Agent, start: asked until answered", round(median(answered), 4), "s, median", 0.1, False, COMMAND),
        Row("Agent, stop: asked until nothing is left", round(median(ended), 4), "s, median", None, False, COMMAND),
        Row(f"Agent, a list of {2 * STARTS} tasks", round(1e3 * call_s, 2), "ms", None, False, COMMAND),
    ]


def _connection_rows(folder: Path) -> list[Row]:
    def connect() -> None:
        with Agent(LocalBridge(folder)):
            pass

    def begin() -> None:
        with tempfile.TemporaryDirectory() as place, Agent(LocalBridge(Path(place) / "home")) as agent:
            agent.shutdown()

    imports = _processor_s("import labkit.testbed.agent.daemon") - _processor_s("pass")
    return [
        Row("Agent, imports, beyond those of Python", round(imports, 4), "s of a core, best", 0.1, False, COMMAND),
        Row("Agent, a bridge to one that runs", round(best_s(connect, repeat=5), 3), "s, best", None, False, COMMAND),
        Row("Agent, a bridge that begins one", round(best_s(begin, repeat=5), 3), "s, best", None, False, COMMAND),
    ]


def _processor_s(program: str) -> float:
    """Return the processor time of a Python that does something; unlike the wall clock's it knows no neighbours."""

    def once() -> float:
        child = subprocess.Popen([sys.executable, "-c", program])
        used = os.wait4(child.pid, 0)[2]
        child.returncode = 0
        return used.ru_utime + used.ru_stime

    return min(once() for _ in range(9))

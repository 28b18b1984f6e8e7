"""A decision on the laptop testbed: how soon its first process starts, the job its first step, and how soon a job that
runs gets another worker.

python -m benchmarks.decision
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import Row, size
from labkit.core import Jobs, Placement
from labkit.core.events import Kind
from labkit.core.resources import amounts
from labkit.testbed.agent.client import Agent
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.processes import processes
from labkit.testbed.laptop.server import sshd_program
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.training import TrainingTable

COMMAND = "python -m benchmarks.decision"
N_JOBS = size(5, short=1)


def rows() -> list[Row]:
    """Return one row per figure, none where there is no sshd."""
    if not sshd_program():
        return []
    process_s, step_s, scaled = [], [], []
    jobs = Jobs.of(
        arrival_s=[0.0] * N_JOBS, total_steps=100_000, model="dssm", duration_s=60, n_workers=1, n_ps=1,
        worker_demand=amounts(gpus=1), ps_demand=amounts(cpus=0.01),
    )  # fmt: skip
    training = TrainingTable(width=0.05, samples=256)
    with (
        tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as top,
        Bed.up(4, folder=Path(top) / "bed", gpus=2) as bed,
        SshBackend(jobs, bed.inventory, run="decision", folder=Path(top) / "run", training=training) as backend,
    ):
        backend.advance(0.0, stop_at_event=False)
        for job in range(N_JOBS):
            process, step = _decide(backend, job)
            process_s.append(process)
            step_s.append(step)
            scaled.append(_rescale(backend, bed, job))
            _end(backend, job)
    return [
        _row("decision to first changed process", statistics.median(process_s), 0.3),
        _row("decision to first step, all processes new", statistics.median(step_s), None),
        _row("decision to the process of another worker", statistics.median(p for p, _ in scaled), 0.3),
        _row("decision to another worker at work", statistics.median(w for _, w in scaled), None),
    ]


def _decide(backend: SshBackend, job: int) -> tuple[float, float]:
    """Start a job; return seconds until its first process and its first step."""
    began = time.monotonic()
    backend.apply(Placement.of([job], job=[job, job], role=[0, 1], group=[0, 0], count=[1, 1]))
    agent, process_s = backend.hosts.agent("h0"), 0.0
    since = 0
    while not process_s:
        watching = agent.watch("decision", since=since) if _known(agent) else iter(())
        for event in watching:
            since = event.n
            if event.kind == "started" and event.task == f"job-{job}":
                process_s = time.monotonic() - began
                break
    while not (backend.advance(backend.now_s + 0.05, stop_at_event=False)["kind"] == Kind.STARTED).any():
        continue
    return process_s, time.monotonic() - began


def _rescale(backend: SshBackend, bed: Bed, job: int) -> tuple[float, float]:
    """Give a job that runs another worker; return seconds until there is its process, and until it works."""
    before, began_s = _members(bed), time.monotonic()
    backend.apply(Placement.of([job], job=[job, job], role=[0, 1], group=[0, 0], count=[2, 1]))
    while not _members(bed) - before:
        continue
    seen_s = time.monotonic() - began_s
    while not (backend.advance(backend.now_s + 0.05, stop_at_event=False)["kind"] == Kind.RESCALED).any():
        continue
    return seen_s, time.monotonic() - began_s


def _members(bed: Bed) -> set[int]:
    """Return the processes of jobs on the bed's hosts."""
    here = str(bed.folder)
    return {each.pid for each in processes() if "labkit.elastic" in each.command and here in each.command}


def _end(backend: SshBackend, job: int) -> None:
    backend.apply(Placement.of([job]))
    deployment = backend._deployments[job]
    with deployment._state.change:
        deployment._state.change.wait_for(lambda: not deployment.home, 60)


def _known(agent: Agent) -> bool:
    return any(listed.run == "decision" for listed in agent.list())


def _row(name: str, value: float, goal: float | None) -> Row:
    return Row(f"testbed: {name}", round(value, 3), "s", goal, False, COMMAND)


if __name__ == "__main__":
    from benchmarks.__main__ import show

    show(rows())

"""The network: max-min rates, speeds that follow from them, and building a large fat tree.

python -m benchmarks.network
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import Ints
from labkit.core.running import Running
from labkit.solvers.maxmin import max_min_rates
from labkit.speed.step_time import StepTime
from labkit.topology import fat_tree
from labkit.topology.export import _pod, inner_graph

COMMAND = "python -m benchmarks.network"


def rows() -> list[dict[str, Any]]:
    """Return one row per figure, in milliseconds of processor time, the median of repeats after a warm-up."""
    figures: list[tuple[str, float, float | None]] = [
        (f"routes and max-min rates, {n:,} flows on 2,000 machines", _max_min_ms(n, repeats=repeats), goal)
        for n, repeats, goal in ((5_000, 30, 10.0), (20_000, 15, 20.0))
    ]
    figures.append(("speeds of 1,000 jobs with PSs on fat_tree(20)", _step_time_ms(1000, repeats=15), 20.0))
    figures.append(("build fat_tree(20)", _cpu_ms(lambda: fat_tree(20), repeats=10), 1000.0))
    whole = fat_tree(20)
    figures.append(("a pod of fat_tree(20) as a graph, built", _cpu_ms(lambda: _pod(whole, 0), repeats=10), None))
    figures.append(("a pod of fat_tree(20) as a graph, again", _cpu_ms(lambda: inner_graph(whole, 0), repeats=10), 5.0))
    return [
        {"name": name, "value": value, "unit": "ms", "goal": goal, "higher_is_better": False, "command": COMMAND}
        for name, value, goal in figures
    ]


def uniform_flows(n: int, *, n_machines: int, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return source, destination and hash of n flows between machines at random."""
    ends = rng.integers(0, n_machines, size=(2, n), dtype=np.int32)
    return ends[0], ends[1], rng.integers(0, 2**31 - 1, size=n, dtype=np.int32)


def _max_min_ms(n: int, *, repeats: int) -> float:
    network = fat_tree(20).network
    assert network is not None
    flows = uniform_flows(n, n_machines=2000, rng=np.random.default_rng(1))
    return _cpu_ms(lambda: max_min_rates(network.route(*flows), network.link_gbps), repeats=repeats)


def _step_time_ms(n_jobs: int, *, repeats: int) -> float:
    """Time all speeds anew, as after any change, of jobs of 1 to 4 workers and 1 to 4 servers at random places."""
    rng, cluster = np.random.default_rng(1), fat_tree(20)
    n_workers, n_ps = rng.integers(1, 5, size=(2, n_jobs), dtype=np.int32)
    first = np.concatenate([[0], np.cumsum(n_workers + n_ps)]).astype(np.int32)
    n_tasks = int(first[-1])
    role = (np.arange(n_tasks) - np.repeat(first[:-1] + n_workers, n_workers + n_ps) >= 0).astype(np.int8)
    group = rng.integers(0, cluster.n_groups, n_tasks, dtype=np.int32)
    job = np.arange(n_jobs, dtype=np.int32)
    running = Running(job, first, role, group, np.ones(n_tasks, np.int32), n_workers, n_ps)
    jobs = Jobs.of(arrival_s=np.zeros(n_jobs), total_steps=1, n_ps=1)
    model = StepTime(jobs, cluster, compute_s=0.5, model_bytes=1e8)
    return _cpu_ms(lambda: model._speeds(running, alone=False), repeats=repeats)


def _cpu_ms(call: Callable[[], object], *, repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        times.append(1e3 * (time.thread_time() - began))
    return round(float(np.median(times)), 3)


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:50} {row['value']:9.3f} {row['unit']}  (goal {row['goal']})")

"""Network kernels: max-min rates and building a large fat tree.

python -m benchmarks.network
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.core.resources import Ints
from labkit.solvers.maxmin import max_min_rates
from labkit.topology import fat_tree

COMMAND = "python -m benchmarks.network"


def rows() -> list[dict[str, Any]]:
    """Return one row per figure, in milliseconds of processor time, the median of repeats after a warm-up."""
    figures = [
        (f"max-min rates, {n:,} flows on 2,000 machines", _max_min_ms(n, repeats=repeats), goal)
        for n, repeats, goal in ((5_000, 30, 10.0), (20_000, 15, 20.0))
    ]
    figures.append(("build fat_tree(20)", _cpu_ms(lambda: fat_tree(20), repeats=10), 1000.0))
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
        print(f"{row['name']:45} {row['value']:9.3f} {row['unit']}  (goal < {row['goal']:g} {row['unit']})")

"""How CPU time grows with the number of jobs: the exponent of each scheduler, and the table of docs/scale.md.

Philly-like jobs on 480 GPUs, which ask for half as many GPUs again as there are: queues grow with the trace. All sizes
are measured in one process, one after the other, the kernels compiled before.

python -m benchmarks exponents
python -m benchmarks.exponents --table
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks import Row, size
from benchmarks.session import at_load, plain_s
from labkit.core import Cluster, Jobs
from labkit.experiment import Experiment
from labkit.experiment.session import MANY_JOBS
from labkit.schedulers import make
from labkit.topology import build
from labkit.workloads import philly_like

COMMAND: Final = "python -m benchmarks exponents"
SIZES: Final = (3_000, 10_000, 30_000)
COMPILED: Final = ("fifo", "fifo(backfill=True)", "sjf", "sjf(backfill=True)", "srtf", "las")
OTHERS: Final = ("tetris", "drf")
LOAD: Final = 1.5
GOAL: Final = 1.1
TICK_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Growth:
    """CPU seconds of one scheduler by number of jobs."""

    scheduler: str
    n_jobs: tuple[int, ...]
    cpu_s: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Exponent of CPU time in the number of jobs, from the least to the most.

        >>> Growth("fifo", (10, 1000), (1.0, 100.0)).exponent
        1.0
        """
        return self.between(0, -1)

    @property
    def last(self) -> float:
        """The same over the last step."""
        return self.between(-2, -1)

    def between(self, i: int, k: int) -> float:
        """Return the exponent between two sizes."""
        slower = max(self.cpu_s[k], TICK_S) / max(self.cpu_s[i], TICK_S)
        return math.log(slower) / math.log(self.n_jobs[k] / self.n_jobs[i])


def rows() -> list[Row]:
    """Return one row per scheduler."""
    return [
        Row(
            f"{growth.scheduler}, exponent of CPU time, {growth.n_jobs[0]:,} to {growth.n_jobs[-1]:,} jobs",
            round(growth.exponent, 2), "", GOAL, False, COMMAND,
        )
        for growth in measured()
    ]  # fmt: skip


def measured() -> Iterator[Growth]:
    """Measure every scheduler, and first a plain event loop."""
    cluster = build("philly-480")
    sizes = tuple(size(n, short=40 * (i + 1)) for i, n in enumerate(SIZES))
    traces = [overloaded(n, cluster) for n in sizes]
    yield Growth("a plain event loop", sizes, tuple(plain_s(jobs, cluster) for jobs in traces))
    for name in (*COMPILED, *OTHERS):
        _cpu_s(name, overloaded(min(MANY_JOBS, sizes[-1]), cluster), cluster)  # compile
        yield Growth(name, sizes, tuple(_cpu_s(name, jobs, cluster) for jobs in traces))


def overloaded(n_jobs: int, cluster: Cluster) -> Jobs:
    """Return philly-like jobs that ask for more GPUs than there are."""
    rng = np.random.default_rng(1)
    return at_load(philly_like(np.cumsum(rng.exponential(1.0, n_jobs)), rng=rng), cluster, load=LOAD)


def _cpu_s(name: str, jobs: Jobs, cluster: Cluster) -> float:
    experiment, scheduler = Experiment.of(jobs, cluster=cluster, speed="recorded"), make(name)
    began = time.process_time()
    experiment.session(scheduler).run(scheduler)
    return time.process_time() - began


def lines() -> Iterator[str]:
    """Return the lines of a table in Markdown."""
    yield f"| CPU s | {' | '.join(f'{n:,} jobs' for n in SIZES)} | exponent | last step |"
    yield "|---" * (3 + len(SIZES)) + "|"
    for growth in measured():
        took = " | ".join(f"{cpu_s:.3g}" for cpu_s in growth.cpu_s)
        yield f"| {growth.scheduler} | {took} | {growth.exponent:.2f} | {growth.last:.2f} |"


if __name__ == "__main__":
    for line in lines() if "--table" in sys.argv else (f"{row.name:70} {row.value:6.2f}" for row in rows()):
        print(line, flush=True)

"""How CPU time grows with the number of jobs: the exponent of each scheduler, and the table of docs/scale.md.

Philly-like jobs on 480 GPUs: once they ask for half as many GPUs again as there are, and queues grow with the trace;
once for nine tenths of them, and queues do not. All sizes are measured in one process, one after the other, the kernels
compiled before.

python -m benchmarks exponents
python -m benchmarks.exponents --table
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks import Row, size
from benchmarks.session import WAITS, at_load, plain_s
from labkit.core import Cluster, Jobs
from labkit.experiment import Experiment
from labkit.experiment.session import MANY_JOBS
from labkit.schedulers import make
from labkit.topology import build
from labkit.workloads import philly_like
from labkit.workloads.gavel_traces import gavel_jobs

COMMAND: Final = "python -m benchmarks exponents"
SIZES: Final = (3_000, 10_000, 30_000)
COMPILED: Final = ("fifo", "fifo(backfill=True)", "sjf", "sjf(backfill=True)", "srtf", "las")
OTHERS: Final = ("tetris", "drf")
LOAD: Final = 1.5
STEADY: Final = 0.9
"""GPUs that jobs ask for on average, as parts of those that there are."""
GOAL, WAITS_GOAL = 1.1, 1.15
GAVEL: Final = "gavel_las"
GAVEL_SIZES, GAVEL_GAP_S, GAVEL_GOAL = (1_000, 2_000, 4_000), 400.0, 1.2
"""A trace of Gavel's, with so many seconds between arrivals: half of 36:36:36 GPUs are busy."""
TICK_S: Final = 1e-6
REPEATS, SHORT_S = 9, 0.5
"""Runs shorter than this many seconds are measured so often: what else the machine does only ever adds to it."""


@dataclass(frozen=True, slots=True)
class Growth:
    """CPU seconds of one scheduler, and events of its runs, by number of jobs."""

    scheduler: str
    n_jobs: tuple[int, ...]
    cpu_s: tuple[float, ...]
    n_events: tuple[int, ...] = ()
    goal: float = GOAL
    load: float = LOAD

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

    @property
    def of_events(self) -> float:
        """Exponent of the number of events: no run takes less than it takes to tell what happened.

        >>> round(Growth("las", (10, 1000), (1.0, 100.0), (40, 16_000)).of_events, 1)
        1.3
        """
        return math.log(self.n_events[-1] / self.n_events[0]) / math.log(self.n_jobs[-1] / self.n_jobs[0])

    def between(self, i: int, k: int) -> float:
        """Return the exponent between two sizes."""
        slower = max(self.cpu_s[k], TICK_S) / max(self.cpu_s[i], TICK_S)
        return math.log(slower) / math.log(self.n_jobs[k] / self.n_jobs[i])


def rows() -> list[Row]:
    """Return a row per scheduler, and one of the events that its runs have where that grows faster than the jobs."""
    found = []
    for growth in (*measured(), *steady(), gavel()):
        sizes = f"{growth.n_jobs[0]:,} to {growth.n_jobs[-1]:,} jobs"
        if growth.load == STEADY:
            sizes += f" at load {STEADY}"
        name = f"{growth.scheduler}, exponent of CPU time, {sizes}"
        found.append(Row(name, round(growth.exponent, 2), "", growth.goal, False, COMMAND))
        if growth.n_events and growth.of_events > growth.goal:
            name = f"{growth.scheduler}, exponent of the number of events, {sizes}"
            found.append(Row(name, round(growth.of_events, 2), "", None, False, COMMAND))
    return found


def measured() -> Iterator[Growth]:
    """Measure every scheduler on jobs that ask for more GPUs than there are, and first a plain event loop."""
    return _measured((*COMPILED, *OTHERS), load=LOAD)


def steady() -> Iterator[Growth]:
    """Measure the classic schedulers on jobs for which there are GPUs enough, and first a plain event loop.

    Then once more where gangs wait for as few machines as they need.
    """
    return _measured((*COMPILED, *(f"{name}{WAITS}" for name in COMPILED)), load=STEADY)


def _measured(names: Iterable[str], *, load: float) -> Iterator[Growth]:
    cluster = build("philly-480")
    sizes = tuple(size(n, short=40 * (i + 1)) for i, n in enumerate(SIZES))
    traces = [_trace(n, cluster, load=load) for n in sizes]
    plain = tuple(min(plain_s(jobs, cluster) for _ in range(REPEATS)) for jobs in traces)
    yield Growth("a plain event loop", sizes, plain, load=load)
    for name in names:
        _run(name, _trace(min(MANY_JOBS, sizes[-1]), cluster, load=load), cluster)  # compile
        runs = [_run(name, jobs, cluster) for jobs in traces]
        goal = WAITS_GOAL if name.endswith(WAITS) else GOAL
        yield Growth(name, sizes, tuple(cpu_s for cpu_s, _ in runs), tuple(n for _, n in runs), goal, load)


def gavel() -> Growth:
    """Measure Gavel's policy of least attained service on its own traces."""
    sizes, cluster = tuple(size(n, short=20 * (i + 1)) for i, n in enumerate(GAVEL_SIZES)), build("gavel-36x3")
    traces = [gavel_jobs(n, seed=0, mean_gap_s=GAVEL_GAP_S) for n in sizes]
    _run(GAVEL, traces[0], cluster, speed="auto")  # compile
    runs = [_run(GAVEL, jobs, cluster, speed="auto") for jobs in traces]
    return Growth(GAVEL, sizes, tuple(cpu_s for cpu_s, _ in runs), tuple(n for _, n in runs), GAVEL_GOAL)


def _trace(n_jobs: int, cluster: Cluster, *, load: float) -> Jobs:
    """Return philly-like jobs that ask for this part of a cluster's GPUs on average."""
    rng = np.random.default_rng(1)
    return at_load(philly_like(np.cumsum(rng.exponential(1.0, n_jobs)), rng=rng), cluster, load=load)


def _run(name: str, jobs: Jobs, cluster: Cluster, *, speed: str = "recorded") -> tuple[float, int]:
    """Return the CPU seconds of a run and its number of events, the best of `REPEATS` where it is short."""
    best_s, n_events = math.inf, 0
    name, waits, _ = name.partition(WAITS)
    consolidate = "wait" if waits else None
    for _ in range(REPEATS):
        experiment = Experiment.of(jobs, cluster=cluster, speed=speed, consolidate=consolidate)
        scheduler = make(name)
        began = time.process_time()
        n_events = len(experiment.session(scheduler).run(scheduler))
        best_s = min(best_s, time.process_time() - began)
        if best_s > SHORT_S:
            break
    return best_s, n_events


def lines() -> Iterator[str]:
    """Return the lines of three tables in Markdown: queues that grow, queues that do not, and Gavel's policy."""
    for growths in (measured(), steady()):
        yield from _table(SIZES, growths)
        yield ""
    yield from _table(GAVEL_SIZES, (gavel() for _ in range(1)))


def _table(sizes: tuple[int, ...], growths: Iterator[Growth]) -> Iterator[str]:
    yield f"| CPU s | {' | '.join(f'{n:,} jobs' for n in sizes)} | exponent | last step | of the events |"
    yield "|---" * (4 + len(sizes)) + "|"
    for growth in growths:
        took = " | ".join(f"{cpu_s:.3g}" for cpu_s in growth.cpu_s)
        events = f"{growth.of_events:.2f}" if growth.n_events else ""
        yield f"| {growth.scheduler} | {took} | {growth.exponent:.2f} | {growth.last:.2f} | {events} |"


if __name__ == "__main__":
    for line in lines() if "--table" in sys.argv else (f"{row.name:70} {row.value:6.2f}" for row in rows()):
        print(line, flush=True)

"""The session at speed: large traces through the ordinary loop, its own cost per decision, and single decisions.

python -m benchmarks.session
"""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

from benchmarks import Row, size
from labkit.core import Cluster, Jobs, Placement, Snapshot
from labkit.experiment import Experiment
from labkit.experiment.session import MANY_JOBS, Session
from labkit.schedulers import make
from labkit.speed.recorded import Recorded
from labkit.topology import build
from labkit.workloads import catalogue_jobs, philly_like, read

COMMAND = "python -m benchmarks.session"
PHILLY = Path(__file__).parents[2] / "shared" / "data" / "philly" / "philly.csv"
LOAD = 0.9
LARGE = {"large": 100_000, "huge": 1_000_000}
"""Jobs on 6,500 GPUs."""
REPEATS = {"large": 5}
"""Runs of which the shortest counts, where there are several: what else the machine does only ever adds to it."""
PLAIN = "plain"
"""In the place of a scheduler: a loop that does next to nothing."""


WAITS = " wait"
"""Behind a scheduler: its gangs wait for as few machines as they need. The plain loop's do not."""


def rows() -> list[Row]:
    """Return one row per figure; each whole run has a process of its own, so that its memory is its own."""
    return [*_large_runs(), *_philly_runs(), *_decisions()]


def _row(name: str, value: float, unit: str, goal: float, *, higher_is_better: bool = False) -> Row:
    return Row(name, round(value, 3), unit, goal, higher_is_better, COMMAND)


def _large_runs() -> list[Row]:
    """Return jobs a second and memory of 100,000 jobs on 6,500 GPUs."""
    found = []
    plain = _apart("large", PLAIN)
    plain_rate = plain["n_jobs"] / plain["cpu_s"]
    found.append(
        Row("a plain event loop, 100,000 jobs on 6,500 GPUs", round(plain_rate), "jobs/CPU s", None, True, COMMAND)
    )
    for name in ("fifo", "sjf", "srtf", "las"):
        took = _apart("large", name)
        rate = took["n_jobs"] / took["cpu_s"]
        found += [
            Row(f"{name}, 100,000 jobs, a plain loop's time", round(plain_rate / rate, 1), "times", 4, False, COMMAND),
            _row(f"{name}, 100,000 jobs on 6,500 GPUs", rate, "jobs/CPU s", 10_000, higher_is_better=True),
            _row(f"{name}, 100,000 jobs on 6,500 GPUs, peak memory", took["memory_mb"], "MB", 1000),
        ]
        waits = _apart("large", f"{name}{WAITS}")
        slower = plain_rate * waits["cpu_s"] / waits["n_jobs"]
        told = f"{name} whose gangs wait, 100,000 jobs, a plain loop's time"
        found.append(Row(told, round(slower, 1), "times", 3, False, COMMAND))
    if not size(1, short=0):
        return found
    for name in ("fifo", "srtf"):
        took = _apart("huge", name)
        found += [
            _row(f"{name}, 1,000,000 jobs on 6,500 GPUs", took["cpu_s"], "CPU s", 60),
            _row(f"{name}, 1,000,000 jobs on 6,500 GPUs, peak memory", took["memory_mb"], "MB", 2000),
        ]
    return found


def _philly_runs() -> list[Row]:
    """Return seconds of the 82,247 Philly jobs on 480 GPUs; none where the trace is not at hand."""
    if not size(1, short=0):
        return []
    if not PHILLY.exists():
        print("philly.csv is not at hand: its rows are left out (labkit traces fetch philly)", file=sys.stderr)
        return []
    return [
        _row(f"{name}, 82,247 Philly jobs on 480 GPUs", _apart("philly", name)["cpu_s"], "CPU s", 3)
        for name in ("srtf", "las")
    ]


def _apart(what: str, scheduler: str) -> dict[str, float]:
    """Run one simulation in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.session", what, scheduler], check=True, capture_output=True, text=True
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def simulate(what: str, scheduler: str) -> dict[str, float]:
    """Return what a whole run took: processor seconds of the loop, and peak memory of the process."""
    if what in LARGE:
        n_jobs = size(LARGE[what], short=300)
        cluster = build("alibaba-6500")
        rng = np.random.default_rng(1)
        jobs = at_load(philly_like(np.cumsum(rng.exponential(1.0, n_jobs)), rng=rng), cluster, load=LOAD)
    else:
        cluster, jobs = build("philly-480"), read(PHILLY)
    if scheduler == PLAIN:
        return _timed_plainly(jobs, cluster, n_runs=REPEATS.get(what, 1))
    few = jobs.take(np.arange(min(len(jobs), MANY_JOBS)))
    scheduler, waits, _ = scheduler.partition(WAITS)
    how = "wait" if waits else None
    Experiment.of(few, cluster=cluster, speed="recorded", consolidate=how).run(scheduler)  # compile
    runs = [_timed(jobs, cluster, scheduler, how) for _ in range(REPEATS.get(what, 1))]
    cpu_s, n_decisions = min(runs)
    return {"cpu_s": cpu_s, "memory_mb": _peak_mb(), "n_jobs": len(jobs), "n_decisions": n_decisions}


def _timed(jobs: Jobs, cluster: Cluster, scheduler: str, consolidate: str | None) -> tuple[float, int]:
    """Return processor seconds and decisions of one run."""
    experiment = Experiment.of(jobs, cluster=cluster, speed="recorded", consolidate=consolidate)
    began = time.process_time()
    session = experiment.session(make(scheduler))
    session.run(make(scheduler))
    return time.process_time() - began, session.n_decisions


def _timed_plainly(jobs: Jobs, cluster: Cluster, *, n_runs: int) -> dict[str, float]:
    """Return what `plain_s` takes, as `simulate` does for a scheduler."""
    cpu_s = min(plain_s(jobs, cluster) for _ in range(n_runs))
    return {"cpu_s": cpu_s, "memory_mb": _peak_mb(), "n_jobs": len(jobs), "n_decisions": 2 * len(jobs)}


def plain_s(jobs: Jobs, cluster: Cluster) -> float:
    """Return the CPU seconds that the least that is a simulation takes: FIFO by number of GPUs alone, on a heap.

    It is the yardstick of this machine: no places, no speeds, no events to look at afterwards.
    """
    arrival, gpus, duration = jobs.arrival_s.tolist(), jobs.gpus.tolist(), jobs.duration_s.tolist()
    began, free = time.process_time(), float(cluster.n_gpus)
    ends: list[tuple[float, int]] = []
    queue: deque[int] = deque()
    done_s = [0.0] * len(arrival)
    k = 0
    while k < len(arrival) or ends:
        if k < len(arrival) and (not ends or arrival[k] <= ends[0][0]):
            now = arrival[k]
            queue.append(k)
            k += 1
        else:
            now, job = heapq.heappop(ends)
            free += gpus[job]
            done_s[job] = now
        while queue and gpus[queue[0]] <= free:
            job = queue.popleft()
            free -= gpus[job]
            heapq.heappush(ends, (now + duration[job], job))
    cpu_s = time.process_time() - began
    assert min(done_s) > 0
    return cpu_s


def _peak_mb() -> float:
    """Return the peak memory of this program; getrusage would count that of the one which started it, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def at_load(jobs: Jobs, cluster: Cluster, *, load: float) -> Jobs:
    """Return the jobs with arrivals stretched so that they ask for this fraction of the cluster's GPUs on average."""
    now = float((jobs.gpus * jobs.duration_s).sum() / jobs.arrival_s[-1] / cluster.n_gpus)
    return jobs.with_columns(arrival_s=jobs.arrival_s * (now / load))


class _Timed:
    """A scheduler that notes how long each of its decisions took."""

    def __init__(self, name: str) -> None:
        self.inner, self.took_s = make(name), 0.0

    def schedule(self, snapshot: Snapshot) -> Placement:
        began = time.process_time()
        placement = self.inner.schedule(snapshot)
        self.took_s += time.process_time() - began
        return placement


def _decisions() -> list[Row]:
    own = _own_cost_us()
    found = [_row("session's own cost per decision, 1,000 active jobs", own, "us", 100)]
    for name in ("drf", "optimus"):
        found.append(_row(f"one {name} decision, 1,000 malleable jobs", _decision_ms(name), "CPU ms", 20))
    return found


def _own_cost_us(n_jobs: int = size(1000, short=50), n_decisions: int = size(2000, short=20)) -> float:
    """Return processor time per decision outside the scheduler, with so many jobs running or waiting."""
    rng = np.random.default_rng(2)
    cluster = build("no_network(60)")
    arrival = np.concatenate([np.zeros(n_jobs), np.sort(rng.uniform(1, n_decisions, n_decisions))])
    duration = rng.uniform(0.5, 1.5, len(arrival)) * n_jobs  # one leaves about as often as one comes
    jobs = Jobs.of(arrival_s=arrival, total_steps=duration, duration_s=duration)
    costs = []
    for _ in range(3):
        timed = _Timed("fifo")
        session = Session(Experiment.of(jobs, cluster=cluster, speed="recorded").simulator())
        began = time.process_time()
        for _ in range(n_decisions):
            session.step(timed.schedule(session.snapshot()))
        costs.append(1e6 * (time.process_time() - began - timed.took_s) / n_decisions)
    return float(np.median(costs))


def _decision_ms(name: str, n_jobs: int = size(1000, short=20)) -> float:
    """Return processor time of one decision about malleable jobs on 500 four-GPU machines, when one of them arrived."""
    rng = np.random.default_rng(3)
    cluster = build("no_network(500)")
    arrival = np.sort(rng.uniform(0, 600, n_jobs))
    jobs = catalogue_jobs(arrival, rng=rng).with_columns(duration_s=np.full(n_jobs, 1e9))  # none completes
    experiment = Experiment.of(jobs, cluster=cluster, speed=Recorded(jobs, cluster))
    scheduler = make(name)
    session = experiment.session(scheduler)
    while session.ledger.n_active < n_jobs:
        session.step(scheduler.schedule(session.snapshot()))
    times = []
    for _ in range(9):
        snapshot = session.snapshot()
        began = time.thread_time()
        scheduler.schedule(snapshot)
        times.append(1e3 * (time.thread_time() - began))
    return float(np.median(times))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(simulate(sys.argv[1], sys.argv[2])))
    else:
        for row in rows():
            goal = "" if row.goal is None else f" (goal {row.goal:g})"
            print(f"{row.name:60} {row.value:12,.3f} {row.unit:10}{goal}")

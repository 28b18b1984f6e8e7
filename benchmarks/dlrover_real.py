"""What limits, stragglers, slow and hot servers do to a real job, and what mends them: Wide&Deep, asynchronous.

Every process is held to a share of a core (a few hundredths), so that what is measured is the share and not how busy
the machine is. The way is what `LABKIT_LIMITS` names, or the best that is there; new limits are tried with each way.

python -m benchmarks dlrover_real
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

from benchmarks import Row, size
from labkit.elastic import Job, models, start
from labkit.elastic.controller.job_files import now
from labkit.elastic.data import dataset
from labkit.elastic.process.limits import CHOICE, cpu_s, trees_here

COMMAND = "python -m benchmarks dlrover_real"
WIDTH = 0.3
ROUNDS = size(5, short=1)
WINDOW_S = float(size(6, short=2))
"""Over which a speed is measured."""
SETTLE_S = 2.0
WORKER, SERVER, PLENTY = 0.12, 0.06, 0.4
"""Cores of a worker and of a server where they are what a job waits for; of those that it does not wait for."""


def rows() -> list[Row]:
    """Return medians of all scenarios; each is printed when it is known."""
    found: list[Row] = []
    for way in ways():
        off = [new_limits(way) for _ in range(ROUNDS)]
        found.append(
            Row(f"use 5 s after a new limit, {way}, off by", rounded(off), "of the limit", 0.1, False, COMMAND)
        )
    for scenario in (straggler, slow_server, hot_server, hot_server_with_more_cores):
        runs = [scenario() for _ in range(ROUNDS)]
        for told in runs[0]:
            name, unit, goal, higher = told
            values = [run[told] for run in runs]
            found.append(Row(name, rounded(values), unit, goal, higher, COMMAND))
            print(f"{name}: {', '.join(f'{value:.3g}' for value in values)} {unit}", file=sys.stderr, flush=True)
    return found


def ways() -> list[str]:
    """Return the ways to limit that this machine has."""
    return [*(f"v{n}" for n in (2, 1) if trees_here(versions=(n,)) is not None), "brake"]


def rounded(values: list[float]) -> float:
    """Return the median of some values, to three digits."""
    return float(f"{median(values):.3g}")


Told = Mapping[tuple[str, str, float | None, bool], float]
"""What a scenario measured: name, unit, goal and whether more is better, and the value."""


# --- scenarios


def new_limits(way: str) -> float:
    """Return how far the use of a worker is from each of its limits, at the most, in the second that ends 5 s later."""
    with limited_by(way), job(workers=1, servers=1) as running:
        pid = seats(running)["worker-0"].pid
        off = []
        for cpus in (0.08, 0.04, 0.06):  # less than it would use on a busy machine
            running.resize({"worker-0": (cpus, None)})
            wait(4.0)
            off.append(abs(used(pid) / cpus - 1))
        return max(off)


def straggler() -> Told:
    """One of three workers has a quarter of the others' cores."""
    with job(workers=3, servers=1) as running:
        running.resize({f"worker-{i}": (WORKER, None) for i in range(3)})
        before = speed(running)
        running.resize({"worker-1": (WORKER / 4, None)})
        since_s = now() + SETTLE_S
        after = speed(running)
        done = counted(running, since_s)
    others = np.mean([done.get("worker-0", 0), done.get("worker-2", 0)])
    slow = done.get("worker-1", 0)
    static = 3 * max(slow, 1) / WINDOW_S  # with a third of the samples each, the slowest decides
    return {
        ("a worker at a quarter of its cores, its samples", "of another worker's", 0.35, False): float(slow / others),
        ("a worker at a quarter of its cores, throughput", "x a static split", 2.0, True): after / static,
        ("a worker at a quarter of its cores, speed", "of that before", None, True): after / before,
    }


def slow_server() -> Told:
    """One of two servers has a quarter of the other's cores, and is replaced."""
    with job(workers=2, servers=2) as running:
        running.resize({"ps-0": (SERVER, None), "ps-1": (SERVER, None)})
        before = speed(running)
        running.resize({"ps-1": (SERVER / 4, None)})
        slow = speed(running)
        began_s = now()
        running.scale(replace=["ps-1"])
        await_event(running, "scaled", since_s=began_s)
        took_s = now() - began_s
        running.resize(dict.fromkeys((name for name in seats(running) if name.startswith("ps")), (SERVER, None)))
        after = speed(running)
        running.stop()
        result = running.wait(timeout_s=60)
    lost_s = float(result.scalings["lost_s"].iloc[-1])
    return {
        ("a server at a quarter of its cores, speed", "of that before", None, True): slow / before,
        ("a slow server replaced, speed", "of that before", 0.8, True): after / before,
        ("a slow server replaced, after", "s", None, False): took_s,
        ("a slow server replaced, work lost", "s", 2.0, False): max(lost_s, 0.0),
    }


def hot_server() -> Told:
    """One of two servers has most of the blocks; they are balanced."""
    with job(workers=2, servers=2, partition="tensor") as running:
        running.resize({"ps-0": (SERVER, None), "ps-1": (SERVER, None)})
        before = speed(running)
        began_s = now()
        running.balance()
        await_event(running, "scaled", since_s=began_s)
        after = speed(running)
        moved = next(e for e in running.events(follow=False) if e["event"] == "assignment")
    return {
        ("a hot server, part of the load", "", None, False): max(moved["before"].values()),
        ("a hot server balanced, part of the load", "", None, False): max(moved["after"].values()),
        ("a hot server balanced, speed at the same cores", "x that before", 1.25, True): after / before,
    }


def hot_server_with_more_cores() -> Told:
    """One of two servers has most of the blocks; it gets more cores."""
    with job(workers=2, servers=2, partition="tensor") as running:
        running.resize({"ps-0": (SERVER, None), "ps-1": (SERVER, None)})
        before = speed(running)
        running.resize({"ps-1": (3 * SERVER, None)})
        after = speed(running)
    return {("a hot server with three times the cores, speed", "x that before", 2.0, True): after / before}


# --- a job


@contextmanager
def limited_by(way: str) -> Iterator[None]:
    """Let the processes of jobs be limited in one way."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = way
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHOICE]
        else:
            os.environ[CHOICE] = before


@contextmanager
def job(**options: Any) -> Iterator[Job]:
    """Run a job that trains until it is stopped, each of its processes held to plenty."""
    model, samples = models.build("wide-deep", width=WIDTH), dataset("wide-deep", n=400_000, width=WIDTH)
    options = {"steps": 10**6, "batch": 128, "optimizer": "sgd", "lr": 0.05, "sync": False, **options}
    with start(model, samples, models.loss("wide-deep"), **options) as running:
        until(lambda: running.status().step >= 10)
        running.resize(dict.fromkeys(seats(running), (PLENTY, None)))
        yield running
        running.stop()


def seats(running: Job) -> dict[str, Any]:
    """Return who is there, by name."""
    return {seat.name: seat for seat in running.status().members}


def wait(seconds: float) -> None:
    """Let time pass."""
    threading.Event().wait(seconds)


def until(true: Callable[[], bool], *, within_s: float = 120.0) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_s:
            raise RuntimeError(f"a job did not get there within {within_s:g} s")
        wait(0.1)


def speed(running: Job) -> float:
    """Return steps per second, from a moment on at which limits have settled."""
    wait(SETTLE_S)
    before, began_s = running.status().step, time.monotonic()
    wait(WINDOW_S)
    return max(running.status().step - before, 1) / (time.monotonic() - began_s)


def used(pid: int) -> float:
    """Return the cores that a process uses in a second."""
    before, began_s = cpu_s(pid), time.monotonic()
    wait(1.0)
    return (cpu_s(pid) - before) / (time.monotonic() - began_s)


def counted(running: Job, since_s: float) -> dict[str, int]:
    """Return how many updates each worker has made since a time of day, of one window."""
    names = [
        event["name"] for event in running.events(follow=False)
        if event["event"] == "stepped" and since_s <= event["time"] < since_s + WINDOW_S
    ]  # fmt: skip
    return {name: names.count(name) for name in set(names)}


def await_event(running: Job, name: str, *, since_s: float) -> None:
    """Wait for an event."""
    until(lambda: any(e["event"] == name and e["time"] >= since_s for e in running.events(follow=False)))


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60s} {row.value:10} {row.unit}")

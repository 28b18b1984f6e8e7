"""What it costs to start a worker, forked from a server that has its imports, and by itself; how soon one more trains.

Both ways take turns in one run: the plain start is the yardstick. A worker is measured until it has read its program,
with what the fork server spends on it.

python -m benchmarks forks
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Row, size
from labkit.elastic import start
from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver.protocol import SWITCH
from labkit.elastic.protocol.program import FILE, Spec
from labkit.elastic.trial import table

COMMAND = "python -m benchmarks forks"
ROUNDS = size(7, short=1)
QUIET_STEPS = 10
TELLS = (
    "import os, time; "
    "stat = open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split(); "
    "print(time.process_time(), int(stat[11]) + int(stat[12]), flush=True); os._exit(0)"
)
"""Processor seconds of a process so far, and ticks of its parent."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WAYS = {"on": "forked", "off": "by itself"}


class Tells:
    """A program that says what its process has cost as soon as it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (TELLS, {})


def rows() -> list[Row]:
    """Return processor seconds of a start, and seconds to the first step of one more worker, both ways."""
    began = {way: median(costs) for way, costs in starts().items()}
    joined: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(size(3, short=1)):
        for way in WAYS:
            joined[way].append(join_s(way))
    return [
        *(
            Row(f"a worker starts, {name}", round(began[way], 3), "s of a processor, median",
                0.1 if way == "on" else None, False, COMMAND)
            for way, name in WAYS.items()
        ),
        Row("a worker starts, times cheaper forked", round(began["off"] / began["on"]), "times", 20, True, COMMAND),
        *(
            Row(f"one more worker, {name}, from request to its first step", round(median(joined[way]), 2),
                "s, median", None, False, COMMAND)
            for way, name in WAYS.items()
        ),
    ]  # fmt: skip


def starts() -> dict[str, list[float]]:
    """Return processor seconds of each start, by way."""
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        Spec(params=(), extents=(), optimizer="sgd", options={}, batch=1, n_shards=1, n_steps=1).save(home)
        (home / FILE).write_bytes(pickle.dumps(Tells()))
        line = [sys.executable, "-m", "labkit.elastic.process.member", str(home), "worker", "worker-0"]
        _, before = _forked(line, home / "log")
        for _ in range(ROUNDS):
            own_s, after = _forked(line, home / "log")
            costs["on"].append(own_s + (after - before) * TICK_S)
            before = after
            costs["off"].append(_by_itself(line, home / "log"))
    return costs


def _forked(line: list[str], log: Path) -> tuple[float, int]:
    """Return processor seconds of a process that was forked, and the ticks of its server so far."""
    with log.open("wb") as file:
        child = forks.started(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, log=file)
    if child is None or child.wait():
        raise RuntimeError(f"no worker was forked: {log.read_text()}")
    own_s, ticks = log.read_text().split()
    return float(own_s), int(ticks)


def _by_itself(line: list[str], log: Path) -> float:
    """Return processor seconds of a process that imports all by itself."""
    with log.open("wb") as file:
        subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=file, check=True)
    return float(log.read_text().split()[0])


def join_s(way: str) -> float:
    """Return seconds from a request for one more worker to the end of the first step in which it computed."""
    given = {"steps": 100_000, "batch": 8, "shards": 2, "optimizer": "sgd", "lr": 0.1, "workers": 1, "servers": 1}
    with _switched(way), start(*table(1), **given) as job:
        n_steps, asked_s, first_s = 0, 0.0, 0.0
        for event in job.events():
            n_steps += event["event"] == "loss"
            if event["event"] == "stepped" and event["name"] == "worker-1" and event["shards"]:
                first_s = float(event["time"])
                break
            if n_steps == QUIET_STEPS and not asked_s:
                asked_s = float(event["time"])
                job.scale(workers=1)
        job.stop()
        job.wait()
    return first_s - asked_s


@contextmanager
def _switched(way: str) -> Iterator[None]:
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = way
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60s} {row.value:10} {row.unit}")

"""Step time of a synchronous job of 100 MB without compute, 2 workers and 2 servers, beside gloo's all_reduce.

Servers and workers are those of a job, in processes of their own; only who tells them what to do is this file. All
take turns in one run: each round lasts a few steps of each, in shuffled order.

python -m benchmarks.elastic
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import Row, size, transport
from benchmarks._members import ACCESS, N
from benchmarks.transport import cpu_s
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.codec import FrameKind, at, encode, hello
from labkit.elastic.transport import Address, Handler, connect

COMMAND = "python -m benchmarks elastic"
STEPS, ROUNDS = 5, size(11, short=1)
SCHEMES = ("shm", "unix", "tcp")
SENT_GB = 4 * 4 * N / 1e9
"""Two workers send all gradients and receive all parameters."""
COPIES = 4
"""What shared memory cannot do without, in copies of 100 MB, which read and write: two gradients and the parameters are
read and the parameters written, then two workers copy them."""


class Child:
    """A process, and what it says."""

    def __init__(self, role: str, name: str, scheme: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._members", role, name, scheme, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"process {self.process.pid} of the benchmark ended with {self.process.wait(20)}.")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True, slots=True)
class Took:
    """What a step took in one round: seconds, and processor seconds of all processes together."""

    seconds: float
    cpu_s: float


class Team:
    """Processes that do steps together: here two ranks of gloo."""

    def __init__(self, name: str, folder: str, stack: contextlib.ExitStack) -> None:
        self.name, self.folder, self.steps = name, folder, 0
        self._stack = stack
        self.others: list[Child] = []
        self.workers = self.start()
        for worker in self.workers:
            worker.hear()

    def start(self) -> list[Child]:
        """Start all, and return those that are told how many steps to do."""
        return [self.child("gloo", f"rank-{rank}") for rank in range(2)]

    def child(self, role: str, name: str) -> Child:
        """Start a process that ends with the benchmark."""
        child = Child(role, name, self.name, self.folder)
        self._stack.callback(child.close)
        return child

    def prepare(self) -> None:
        """Make gradients ready."""
        self._all(fill=True)

    def round(self) -> Took:
        """Do a few steps."""
        self.prepare()
        self.steps += STEPS
        used_s, began_s = -self._cpu_s(), time.perf_counter()
        self._all(limit=self.steps)
        took_s = time.perf_counter() - began_s
        return Took(took_s / STEPS, (used_s + self._cpu_s()) / STEPS)

    def _all(self, **what: Any) -> None:
        for worker in self.workers:
            worker.tell(**what)
        for worker in self.workers:
            worker.hear()

    def _cpu_s(self) -> float:
        return sum(cpu_s(child.process.pid) for child in (*self.others, *self.workers))


class Job(Team):
    """Two servers and two workers of labkit."""

    def start(self) -> list[Child]:
        """See Team."""
        servers = {f"ps-{number}": self.child("server", f"ps-{number}") for number in range(2)}
        addresses = {name: child.hear()["address"] for name, child in servers.items()}
        self.others = list(servers.values())
        cut = layout([("weight", N)])
        owner = [[block, f"ps-{block % 2}", 0] for block in range(cut.n_blocks)]
        for name, address in addresses.items():
            _install(address, {block: cut.sizes[block] for block, who, _ in owner if who == name})
        workers = [self.child("worker", f"worker-{number}") for number in range(2)]
        for number, worker in enumerate(workers):
            worker.tell(servers=addresses, begin={"shards": [number, number + 1], "owners": owner})
        return workers

    def prepare(self) -> None:
        """See Team; they are there."""


def _install(address: str, sizes: dict[int, int]) -> None:
    """Give a server its blocks, as another server does."""
    said = hello("ps-9", "server")
    channel = connect(Address.parse(address), handler=Handler(), access=ACCESS, hello=said)
    card = encode(BlockState(version=0, moves=0))
    for block, n in sizes.items():
        channel.request(FrameKind.STATE, np.zeros(n, np.float32), meta=card, block=block, step=at(1, 0)).result(20)
    channel.close()


def measure() -> dict[str, list[Took]]:
    """Return what each round took, by who did it; memcpy and bare TCP for 100 MB once."""
    rng = np.random.default_rng(4)
    with tempfile.TemporaryDirectory(prefix="lk") as folder, contextlib.ExitStack() as stack:
        os.environ[transport.FOLDER] = folder
        bare = transport.start("bare tcp")
        stack.callback(bare.close)
        teams = [*(Job(scheme, folder, stack) for scheme in SCHEMES), Team("gloo", folder, stack)]
        source, target = np.ones(N, np.float32), np.ones(N, np.float32)
        found: dict[str, list[Took]] = {name: [] for name in (*SCHEMES, "gloo", "memcpy", "bare tcp")}
        for round_ in range(ROUNDS + 1):
            took = {team.name: team.round() for team in rng.permutation(np.array(teams, object))}
            took["memcpy"] = copied(source, target)
            took["bare tcp"] = Took(*transport.timed(bare, bare.push))
            for name, one in took.items():
                found[name] += [one] if round_ else []  # the first one warms up
    return found


def copied(source: np.ndarray, target: np.ndarray) -> Took:
    """Return what a copy takes."""
    began_s = time.perf_counter()
    np.copyto(target, source)
    return Took(took_s := time.perf_counter() - began_s, took_s)


def ratio(found: dict[str, list[Took]], name: str, other: str, *, times: float = 1.0) -> float:
    """Return the median over rounds of how long one took beside so many times the other."""
    return float(np.median([a.seconds / b.seconds / times for a, b in zip(found[name], found[other], strict=True)]))


def rows() -> list[Row]:
    """Return ratios as medians over the rounds of one run, and processor time."""
    found = measure()
    where = {"shm": "shared memory", "unix": "unix sockets", "tcp": "TCP"}
    goals = {"shm": 0.6, "unix": None, "tcp": 1.2}
    made = [
        _row(f"step of 100 MB over {where[name]}, time / gloo's all_reduce", ratio(found, name, "gloo"), "x", goal)
        for name, goal in goals.items()
    ]
    made += [
        _row(f"step of 100 MB over {where[name]}, processor time", _cpu_per_gb(found[name]), "CPU s/GB", goal)
        for name, goal in (("unix", None), ("tcp", 0.6))
    ]
    limits = {"shm": "memcpy", "tcp": "bare tcp"}
    made += [
        _row(f"step of 100 MB over {where[name]}, time / that of {COPIES} times {other}", value, "x", None)
        for name, other in limits.items()
        for value in [ratio(found, name, other, times=COPIES)]
    ]
    shm_ms = 1e3 * float(np.median([took.seconds for took in found["shm"]]))
    return [*made, _row("step of 100 MB over shared memory", shm_ms, "ms", None)]


def _row(name: str, value: float, unit: str, goal: float | None) -> Row:
    return Row(name, round(value, 3), unit, goal, False, COMMAND)


def _cpu_per_gb(rounds: list[Took]) -> float:
    """Return processor seconds per GB sent, updates included."""
    return float(np.median([took.cpu_s for took in rounds])) / SENT_GB


def main() -> None:
    found = measure()
    for name, rounds in found.items():
        ms = np.array([(1e3 * took.seconds, 1e3 * took.cpu_s) for took in rounds])
        print(
            f"{name:8} {np.median(ms[:, 0]):8.1f} ms (best {ms[:, 0].min():6.1f}) {np.median(ms[:, 1]):8.1f} CPU ms"
            f" {ratio(found, name, 'gloo'):6.2f} x gloo"
        )


if __name__ == "__main__":
    main()

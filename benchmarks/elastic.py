"""Step time of a synchronous job of 100 MB without compute, 2 workers and 2 servers, beside gloo's all_reduce.

Servers and workers are those of a job, in processes of their own; only who tells them what to do is this file. All
take turns in one run: each round lasts a few steps of each.

python -m benchmarks.elastic
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.transport import cpu_s, memcpy_s
from labkit.elastic.transport import MIB, Access, Address, Handler, Listener, connect

COMMAND = "python -m benchmarks elastic"
N = 100 * MIB // 4
LR = 1e-3
STEPS, ROUNDS = 5, 11
BUCKET = 25 * MIB // 4
ACCESS = Access(token=bytes(range(32)), plaintext=True)
SCHEMES = ("shm", "unix", "tcp")


# --- in the processes


def tell(**what: Any) -> None:
    """Say something to the parent."""
    print(json.dumps(what), flush=True)


def heard() -> Any:
    """Yield what the parent says until it ends."""
    for line in sys.stdin:
        yield json.loads(line)


def serve(name: str, scheme: str, folder: str) -> None:
    """Be a parameter server."""
    from labkit.elastic.lending import Shelf
    from labkit.elastic.optimizers import optimizer
    from labkit.elastic.server import Arrivals, Server

    made = optimizer("sgd", lr=LR)
    made.init(1)
    server = Server(
        name, optimizer=made, n_shards=2, sync=True, report=lambda *_, **__: None, copy=lambda *_: None,
        shelf=Shelf() if scheme == "shm" else None,
    )  # fmt: skip
    where = f"{scheme}://127.0.0.1:0" if scheme == "tcp" else f"{scheme}:{folder}/{scheme}-{name}"
    listener = Listener(
        Address.parse(where),
        welcome=lambda peer: Arrivals(server, role=str(peer.hello.get("role")), tell=lambda _: None),
        access=ACCESS,
    )
    server.begin_era(1)
    tell(address=str(listener.address))
    for _ in heard():
        pass
    listener.close()


def work(name: str, scheme: str, folder: str) -> None:  # noqa: ARG001
    """Be a worker whose gradients cost nothing; it does as many steps as the parent says."""
    import torch

    from labkit.elastic.blocks import layout
    from labkit.elastic.flat import Flat
    from labkit.elastic.lending import Lender
    from labkit.elastic.worker import FromServers, Worker

    torch.set_num_threads(1)

    class Ready(Flat):
        """Gradients that are there already."""

        filled: set[int]

        def gradient(self, loss_of: Any, into: Any) -> None:  # noqa: ARG002
            known = self.__dict__.setdefault("filled", set())
            if into.ctypes.data not in known:
                known.add(into.ctypes.data)
                into.fill(1e-3)

    gate, limit = threading.Condition(), 0

    def loss_of(step: int, leaf: int) -> Any:  # noqa: ARG001
        with gate:
            gate.wait_for(lambda: step < limit)
        return torch.zeros(())

    def report(event: str, **columns: Any) -> None:
        if event == "ready" or (event == "stepped" and columns["version"] + 1 == limit):
            tell(event=event)

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(N))
    cut, channels = layout(model), {}
    worker = Worker(
        Ready(model, lender=Lender() if scheme == "shm" else None), extents=cut.extents, loss_of=loss_of, n_shards=2, n_steps=1 << 30,
        channel_of=channels.__getitem__, report=report,
    )  # fmt: skip
    for what in heard():
        if "servers" in what:
            for server, address in what["servers"].items():
                hello = {"name": name, "role": "worker"}
                channels[server] = connect(
                    Address.parse(address), handler=FromServers(worker), access=ACCESS, hello=hello
                )
            worker.told({"do": "begin", "era": 1, "version": 0, **what["begin"]})
            threading.Thread(target=worker.run, daemon=True).start()
        else:
            with gate:
                limit = what["limit"]
                gate.notify_all()
    worker.told({"do": "stop"})
    for channel in channels.values():
        channel.close()
    os._exit(0)


def reduce(name: str, _: str, folder: str) -> None:
    """Be a rank of gloo: sum buckets of 25 MB, and make the update of each as soon as it is there."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=int(name[-1]), world_size=2)
    grad, param = torch.empty(N), torch.zeros(N)
    pairs = list(zip(grad.split(BUCKET), param.split(BUCKET), strict=True))
    tell(event="ready")
    done = 0
    for what in heard():
        grad.fill_(1e-3)
        dist.barrier()
        tell(event="filled")
        sys.stdin.readline()
        while done < what["limit"]:
            works = [dist.all_reduce(bucket, async_op=True) for bucket, _ in pairs]
            for waited, (bucket, part) in zip(works, pairs, strict=True):
                waited.wait()
                part.add_(bucket, alpha=-LR / 2)
            done += 1
        tell(event="stepped")
    dist.destroy_process_group()


ROLES: dict[str, Callable[[str, str, str], None]] = {"server": serve, "worker": work, "gloo": reduce}


# --- in the parent


class Child:
    """A process, and what it says."""

    def __init__(self, role: str, name: str, scheme: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.elastic", role, name, scheme, folder],
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
    """What one round took, per step."""

    seconds: float
    cpu_s: float


class Team:
    """Processes that do steps together."""

    def __init__(self, name: str, folder: str, stack: contextlib.ExitStack) -> None:
        self.name, self.steps = name, 0
        self.children: list[Child] = []
        self._folder, self._stack = folder, stack
        self.workers = [self._child(*each) for each in self._who()]
        for worker in self.workers:
            worker.hear()

    def _child(self, role: str, name: str) -> Child:
        child = Child(role, name, self.name, self._folder)
        self._stack.callback(child.close)
        self.children.append(child)
        return child

    def _who(self) -> list[tuple[str, str]]:
        return [("gloo", "rank-0"), ("gloo", "rank-1")]

    def _prepare(self) -> None:
        """Let gradients be there."""
        self._say_all(limit=self.steps + STEPS)

    def _say_all(self, **what: Any) -> None:
        for worker in self.workers:
            worker.tell(**what)
        for worker in self.workers:
            worker.hear()

    def round(self) -> Took:
        """Do a few steps."""
        self._prepare()
        used_s = -self._cpu_s()
        began_s = time.perf_counter()
        self._say_all(limit=self.steps + STEPS)
        took_s = time.perf_counter() - began_s
        self.steps += STEPS
        return Took(took_s / STEPS, (used_s + self._cpu_s()) / STEPS)

    def _cpu_s(self) -> float:
        return sum(cpu_s(child.process.pid) for child in self.children)


class Job(Team):
    """Two servers and two workers."""

    def _who(self) -> list[tuple[str, str]]:
        from labkit.elastic.blocks import layout
        from labkit.elastic.protocol import Kind, at

        servers = [self._child("server", f"ps-{number}") for number in range(2)]
        addresses = {f"ps-{number}": server.hear()["address"] for number, server in enumerate(servers)}
        cut = layout([("weight", N)])
        owner = [[block, f"ps-{block % 2}", 0] for block in range(cut.n_blocks)]
        for server, address in addresses.items():
            channel = connect(Address.parse(address), handler=Handler(), access=ACCESS, hello={"name": "controller"})
            for block, who, _ in owner:
                if who == server:
                    card = {"version": 0, "moves": 0, "due": [], "names": [], "seen": []}
                    zeros = np.zeros(cut.sizes[block], np.float32)
                    channel.request(Kind.STATE, zeros, meta=card, block=block, step=at(1, 0)).result(20)
            channel.close()
        workers = [self._child("worker", f"worker-{number}") for number in range(2)]
        for number, worker in enumerate(workers):
            worker.tell(servers=addresses, begin={"leaves": [number, number + 1], "map": owner})
        self.children = [*servers, *workers]
        self.workers = workers
        return []

    def __init__(self, name: str, folder: str, stack: contextlib.ExitStack) -> None:
        super().__init__(name, folder, stack)
        self.workers = self.children[2:]
        for worker in self.workers:
            worker.hear()

    def _prepare(self) -> None:
        """Do nothing: gradients are there."""


def measure(schemes: tuple[str, ...] = SCHEMES) -> dict[str, list[Took]]:
    """Return what each round took."""
    rng = np.random.default_rng(4)
    with tempfile.TemporaryDirectory(prefix="lk") as folder, contextlib.ExitStack() as stack:
        teams = [*(Job(scheme, folder, stack) for scheme in schemes), Team("gloo", folder, stack)]
        found: dict[str, list[Took]] = {team.name: [] for team in teams} | {"memcpy": []}
        for round_ in range(ROUNDS + 1):
            for team in rng.permutation(np.array(teams, object)):
                took = team.round()
                if round_:  # the first one warms up
                    found[team.name].append(took)
            copied_s = memcpy_s()
            if round_:
                found["memcpy"].append(Took(copied_s, copied_s))
    return found


def main() -> None:
    found = measure()
    for name, rounds in found.items():
        ms = np.array([(1e3 * took.seconds, 1e3 * took.cpu_s) for took in rounds])
        ratio = np.median([a.seconds / b.seconds for a, b in zip(rounds, found["gloo"], strict=True)])
        print(
            f"{name:8} {np.median(ms[:, 0]):8.1f} ms (best {ms[:, 0].min():6.1f}) {np.median(ms[:, 1]):8.1f} CPU ms"
            f" {ratio:6.2f} x gloo"
        )


if __name__ == "__main__":
    if len(sys.argv) == 5:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        main()

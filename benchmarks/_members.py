"""The processes that benchmarks.elastic measures: servers and workers as a job has them, and ranks of gloo.

Each does what lines of JSON on its standard input say: python -m benchmarks._members ROLE NAME SCHEME FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import size
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.messages.codec import greeted, hello
from labkit.elastic.protocol.messages.orders import BeginTraining, OwnedBlock
from labkit.elastic.protocol.messages.reports import Report, StepDone, TrainingBegun
from labkit.elastic.transport import MIB, Access, Address, Channel, Listener, connect
from labkit.elastic.transport.shared_arrays import SharedArrayPool, SharedRegions

N = size(100, short=1) * MIB // 4
"""Parameters."""
BUCKET = min(25 * MIB // 4, N)
"""Numbers of a bucket, as torch's data parallel training has them."""
LR = 1e-3
ACCESS = Access(token=bytes(range(32)), plaintext=True)


def tell(event: str, **what: Any) -> None:
    """Say something to the parent."""
    print(json.dumps({"event": event, **what}), flush=True)


def heard() -> Iterator[Any]:
    """Yield what the parent says until it ends."""
    for line in sys.stdin:
        yield json.loads(line)


def serve(name: str, scheme: str, folder: str) -> None:
    """Be a parameter server."""
    from labkit.elastic.server.optimizers import optimizer
    from labkit.elastic.server.server import Arrivals, ParameterServer

    made = optimizer("sgd", lr=LR)
    made.init(1)
    server = ParameterServer(
        name, optimizer=made, n_shards=2, sync=True, report=_nothing, copy=_nothing,
        shared_pool=SharedArrayPool() if scheme == "shm" else None,
    )  # fmt: skip
    where = f"{scheme}://127.0.0.1:0" if scheme == "tcp" else f"{scheme}:{folder}/{scheme}-{name}"
    listener = Listener(
        Address.parse(where),
        welcome=lambda peer: Arrivals(server, role=greeted(peer).role),
        access=ACCESS,
    )
    server.begin_era(1)
    tell("listens", address=str(listener.address))
    for _ in heard():
        pass
    listener.close()


def _nothing(*_: Any, **__: Any) -> None:
    pass


class Gate:
    """How many steps a worker may do."""

    def __init__(self) -> None:
        self._changed, self.limit = threading.Condition(), 0

    def open_until(self, limit: int) -> None:
        """Let it do the steps before this one."""
        with self._changed:
            self.limit = limit
            self._changed.notify_all()

    def wait(self, step: int) -> None:
        """Wait until it may do a step."""
        with self._changed:
            self._changed.wait_for(lambda: step < self.limit)


def work(name: str, scheme: str, _: str) -> None:
    """Be a worker whose gradients are there already; it does as many steps as the parent says."""
    from labkit.elastic.worker.push_pull import FromServers

    gate, channels = Gate(), dict[str, Channel]()
    worker = _worker(scheme, gate, channels)
    for what in heard():
        for server, address in what.get("servers", {}).items():
            handler, said = FromServers(worker), hello(name, "worker")
            channels[server] = connect(Address.parse(address), handler=handler, access=ACCESS, hello=said)
        if "begin" in what:
            first, last = what["begin"]["shards"]
            owners = [OwnedBlock(*row) for row in what["begin"]["owners"]]
            worker.on_order(BeginTraining(1, 0, (first, last), 0, owners))
            threading.Thread(target=worker.run, daemon=True).start()
        else:
            gate.open_until(what["limit"])
    for channel in channels.values():
        channel.close()


def _worker(scheme: str, gate: Gate, channels: dict[str, Channel]) -> Any:
    import torch

    from labkit.elastic.worker.shard_gradients import FlatModel
    from labkit.elastic.worker.synchronous import Worker

    class Ready(FlatModel):
        """Computes nothing; a gradient is written the first time only."""

        def gradient(self, loss_of: Any, into: Any) -> None:  # noqa: ARG002
            if into[0] != np.float32(LR):
                into.fill(LR)

    def loss_of(step: int, leaf: int) -> Any:  # noqa: ARG001
        gate.wait(step)
        return torch.zeros(())

    def report(report: Report) -> None:
        if isinstance(report, TrainingBegun) or (isinstance(report, StepDone) and report.version + 1 == gate.limit):
            tell(report.EVENT)

    torch.set_num_threads(1)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(N))
    return Worker(
        Ready(model, lender=SharedRegions() if scheme == "shm" else None),
        extents=layout(model).extents,
        loss_of=loss_of,
        n_shards=2,
        n_steps=1 << 30,
        channel_of=channels.__getitem__,
        report=report,
    )


def reduce(name: str, _: str, folder: str) -> None:
    """Be a rank of gloo: sum the buckets, and make the update of each as soon as it is there."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=int(name[-1]), world_size=2)
    grad, param = torch.empty(N), torch.zeros(N)
    pairs = list(zip(grad.split(BUCKET), param.split(BUCKET), strict=True))
    tell("ready")
    done = 0
    for what in heard():
        if "fill" in what:
            grad.fill_(LR)  # each sum of the buckets doubles it
        while done < what.get("limit", 0):
            works = [dist.all_reduce(bucket, async_op=True) for bucket, _ in pairs]
            for waited, (bucket, part) in zip(works, pairs, strict=True):
                waited.wait()
                part.add_(bucket, alpha=-LR / 2)
            done += 1
        tell("stepped")
    dist.destroy_process_group()


ROLES: dict[str, Callable[[str, str, str], None]] = {"server": serve, "worker": work, "gloo": reduce}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)

"""Bytes between two processes: labkit's transports beside memcpy, bare sockets, zmq and gloo, in one run.

python -m benchmarks.transport
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row, size
from labkit.elastic.transport import (
    MIB,
    Access,
    Address,
    Authority,
    Certificates,
    Channel,
    Handler,
    Listener,
    Message,
    Region,
    connect,
)

COMMAND = "python -m benchmarks.transport"
N_SLICES, N_ROUNDS = size(100, short=1), size(9, short=1)
N_BYTES = N_SLICES * MIB
PUSH, PULL, DONE = 16, 17, 18
TOKEN = bytes(range(32))
FOLDER = "LABKIT_BENCHMARK_FOLDER"


class Link:
    """One transport with a child process at its other end; `push` moves 100 MB there, `exchange` there and back."""

    def __init__(self, name: str, child: subprocess.Popen[str], told: str) -> None:
        self.name, self.child, self.told = name, child, told

    def push(self) -> None:
        raise NotImplementedError

    def exchange(self) -> None:
        raise NotImplementedError

    def round_trip(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(20)
        assert self.child.stdout is not None
        self.child.stdout.close()


class LabkitLink(Link):
    """A channel of labkit; over shm, gradients are copied into the region first, which is one copy."""

    def __init__(self, name: str, child: subprocess.Popen[str], told: str) -> None:
        super().__init__(name, child, told)
        address = Address.parse(told)
        self.channel = connect(address, handler=Handler(), access=access(name))
        self.region = Region(N_BYTES, writable=True)
        self.shared = self.channel.share(self.region)
        self.place = np.frombuffer(self.region.view, np.uint8)
        self.gradient, self.back = np.ones(N_BYTES, np.uint8), np.zeros(N_BYTES, np.uint8)

    def _slices(self, *, copy: bool) -> Iterator[tuple[int, memoryview]]:
        for start in range(0, N_BYTES, MIB):
            if self.shared and copy:
                self.place[start : start + MIB] = self.gradient[start : start + MIB]
            source = self.place if self.shared else self.gradient
            yield start, source[start : start + MIB].data

    def push(self) -> None:
        for _, piece in self._slices(copy=True):
            self.channel.send(PUSH, piece)
        self.channel.request(DONE).result(60)

    def exchange(self) -> None:
        replies = [
            self.channel.request(PULL, piece, into=self.back[start : start + MIB])
            for start, piece in self._slices(copy=True)
        ]
        for reply in replies:
            reply.result(60)

    def in_place(self) -> None:
        for reply in [self.channel.request(PULL, piece) for _, piece in self._slices(copy=False)]:
            reply.result(60)

    def round_trip(self) -> None:
        self.channel.request(PULL, b"x" * 1024).result(60)

    def close(self) -> None:
        self.channel.close()
        super().close()


class Server(Handler):
    """Receives each slice where it belongs, and sends it back where that is asked for."""

    def __init__(self) -> None:
        self.buffers = [np.zeros(MIB, np.uint8) for _ in range(N_SLICES)]
        self.n_received = 0

    def place(self, head: Any) -> Any:  # noqa: ARG002
        self.n_received += 1
        return self.buffers[self.n_received % N_SLICES]

    def received(self, channel: Channel, message: Message) -> None:
        if message.head.kind == PULL:
            channel.reply(message, message.payload)
        elif message.head.kind == DONE:
            channel.reply(message)


def access(name: str) -> Access:
    if name == "tls":
        folder = Path(os.environ[FOLDER]) / "keys"
        paths = (folder / each for each in ("authority.pem", "ps.pem", "ps.key"))
        return Access(certificates=Certificates("benchmark", *paths))
    return Access(token=TOKEN, plaintext=True)


def serve_labkit(name: str) -> None:
    local = name in ("shm", "unix")
    where = f"{name}:{os.environ[FOLDER]}/{name}" if local else f"{name}://127.0.0.1:0"
    listener = Listener(Address.parse(where), welcome=lambda _: Server(), access=access(name))
    tell(str(listener.address))
    listener.close()


def tell(text: str) -> None:
    """Say where this child can be reached, and wait until the parent has no more use for it."""
    print(text, flush=True)
    sys.stdin.read()


# bare sockets, as the floor of what Python can do


class BareLink(Link):
    def __init__(self, name: str, child: subprocess.Popen[str], told: str) -> None:
        super().__init__(name, child, told)
        family, where = bare_address(name, told)
        self.sock = socket.socket(family)
        self.sock.connect(where)
        self.data = memoryview(np.ones(N_BYTES, np.uint8).data)
        self.back = memoryview(np.zeros(N_BYTES, np.uint8).data)

    def push(self) -> None:
        self.sock.sendall(b"p")
        for start in range(0, N_BYTES, MIB):
            self.sock.sendall(self.data[start : start + MIB])
        self.sock.recv(1)

    def exchange(self) -> None:
        import threading

        self.sock.sendall(b"x")

        def send() -> None:
            for start in range(0, N_BYTES, MIB):
                self.sock.sendall(self.data[start : start + MIB])

        sender = threading.Thread(target=send)
        sender.start()
        for start in range(0, N_BYTES, MIB):
            fill(self.sock, self.back[start : start + MIB])
        sender.join()

    def round_trip(self) -> None:
        self.sock.sendall(b"r" + b"x" * 1024)
        fill(self.sock, self.back[:1024])

    def close(self) -> None:
        self.sock.close()
        super().close()


def bare_address(name: str, told: str) -> tuple[int, Any]:
    return (socket.AF_UNIX, told) if name == "bare unix" else (socket.AF_INET, ("127.0.0.1", int(told)))


def fill(sock: socket.socket, view: memoryview) -> None:
    n_got = sock.recv_into(view, len(view), socket.MSG_WAITALL)
    if n_got < len(view):
        raise EOFError


def serve_bare(name: str) -> None:
    import threading

    local = name == "bare unix"
    listener = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
    listener.bind(f"{os.environ[FOLDER]}/bare" if local else ("127.0.0.1", 0))
    listener.listen()
    threading.Thread(target=answer_bare, args=(listener,), daemon=True).start()
    tell(listener.getsockname() if local else str(listener.getsockname()[1]))


def answer_bare(listener: socket.socket) -> None:
    import queue
    import threading

    sock, _ = listener.accept()
    buffers = [memoryview(np.zeros(MIB, np.uint8).data) for _ in range(N_SLICES)]
    out: queue.Queue[memoryview] = queue.Queue()

    def send() -> None:
        while True:
            sock.sendall(out.get())

    threading.Thread(target=send, daemon=True).start()
    while what := sock.recv(1):
        if what == b"r":
            fill(sock, buffers[0][:1024])
            sock.sendall(buffers[0][:1024])
            continue
        for buffer in buffers:
            fill(sock, buffer)
            if what == b"x":
                out.put(buffer)
        if what == b"p":
            sock.sendall(b"d")


# zmq


class ZmqLink(Link):
    def __init__(self, name: str, child: subprocess.Popen[str], told: str) -> None:
        import zmq

        super().__init__(name, child, told)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set_hwm(0)
        self.socket.connect(told)
        self.data = np.ones(N_BYTES, np.uint8)
        self.back = np.zeros(N_BYTES, np.uint8)

    def _send(self, kind: bytes) -> None:
        for start in range(0, N_BYTES, MIB):
            self.socket.send_multipart([kind, self.data[start : start + MIB].data], copy=False)

    def push(self) -> None:
        self._send(b"p")
        self.socket.send_multipart([b"d", b""])
        self.socket.recv_multipart()

    def exchange(self) -> None:
        self._send(b"x")
        for start in range(0, N_BYTES, MIB):
            _, payload = self.socket.recv_multipart(copy=False)
            self.back[start : start + MIB] = np.frombuffer(payload.buffer, np.uint8)

    def round_trip(self) -> None:
        self.socket.send_multipart([b"x", b"x" * 1024])
        self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close(linger=0)
        self.context.term()
        super().close()


def serve_zmq(name: str) -> None:
    import threading

    import zmq

    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.set_hwm(0)
    sock.bind(f"ipc://{os.environ[FOLDER]}/zmq" if name == "zmq ipc" else "tcp://127.0.0.1:*")
    threading.Thread(target=answer_zmq, args=(sock,), daemon=True).start()
    tell(sock.getsockopt_string(zmq.LAST_ENDPOINT))
    os._exit(0)


def answer_zmq(sock: Any) -> None:
    place, n_got = np.zeros(N_BYTES, np.uint8), 0
    while True:
        kind, payload = sock.recv_multipart(copy=False)
        if bytes(kind.buffer) == b"p":
            start = n_got % N_SLICES * MIB
            place[start : start + MIB] = np.frombuffer(payload.buffer, np.uint8)
            n_got += 1
        else:
            sock.send_multipart([kind, payload], copy=False)


# gloo


class GlooLink(Link):
    def __init__(self, name: str, child: subprocess.Popen[str], told: str) -> None:
        import torch

        super().__init__(name, child, told)
        start_gloo(told, rank=0)
        self.slices = list(torch.ones(N_BYTES // 4).split(MIB // 4))
        self.back = [torch.zeros_like(piece) for piece in self.slices]
        self.small = torch.zeros(256)

    def push(self) -> None:
        import torch.distributed as dist

        self._ask(0)
        for piece in self.slices:
            dist.send(piece, 1)
        dist.recv(self.small, 1)

    def exchange(self) -> None:
        import torch.distributed as dist

        self._ask(1)
        works = [dist.irecv(piece, 1) for piece in self.back]
        for piece in self.slices:
            dist.send(piece, 1)
        for work in works:
            work.wait()

    def round_trip(self) -> None:
        import torch.distributed as dist

        self._ask(2)
        dist.recv(self.small, 1)

    def _ask(self, what: int) -> None:
        import torch.distributed as dist

        self.small[0] = what
        dist.send(self.small, 1)

    def close(self) -> None:
        import torch.distributed as dist

        self._ask(3)
        self.child.wait(20)
        dist.destroy_process_group()
        super().close()


def start_gloo(path: str, *, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)


def serve_gloo(_: str) -> None:
    import torch
    import torch.distributed as dist

    path = f"{os.environ[FOLDER]}/gloo"
    print(path, flush=True)
    start_gloo(path, rank=1)
    small, slices = torch.zeros(256), list(torch.zeros(N_BYTES // 4).split(MIB // 4))
    while True:
        dist.recv(small, 0)
        what = int(small[0])
        if what == 3:
            break
        if what == 2:
            dist.send(small, 0)
            continue
        works = []
        for piece in slices:
            dist.recv(piece, 0)
            if what == 1:
                works.append(dist.isend(piece, 0))
        for work in works:
            work.wait()
        if what == 0:
            dist.send(small, 0)
    dist.destroy_process_group()


# measuring


@dataclass(frozen=True, slots=True)
class Kind:
    """A transport: who serves it in the child, and who drives it in the parent."""

    serve: Callable[[str], None]
    link: type[Link]
    package: str = "labkit"


KINDS = {
    **{name: Kind(serve_labkit, LabkitLink) for name in ("shm", "unix", "tcp", "tls")},
    **{name: Kind(serve_bare, BareLink) for name in ("bare unix", "bare tcp")},
    **{name: Kind(serve_zmq, ZmqLink, "zmq") for name in ("zmq ipc", "zmq tcp")},
    "gloo": Kind(serve_gloo, GlooLink, "torch"),
}


def start(name: str) -> Link:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transport", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.stdout is not None
    return KINDS[name].link(name, child, child.stdout.readline().strip())


def cpu_s(pid: int) -> float:
    """Return processor seconds of a process so far [clock_getcpuclockid(3)]."""
    return time.clock_gettime((~pid << 3) | 2)


def timed(link: Link, run: Callable[[], None]) -> tuple[float, float]:
    """Return seconds of a run, and processor seconds of both processes."""
    used_s = -cpu_s(link.child.pid) - time.process_time()
    began_s = time.perf_counter()
    run()
    took_s = time.perf_counter() - began_s
    return took_s, used_s + cpu_s(link.child.pid) + time.process_time()


def memcpy_s() -> float:
    source, target = np.ones(N_BYTES, np.uint8), np.zeros(N_BYTES, np.uint8)
    began_s = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began_s


def measure() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return seconds and processor seconds by transport and what was run, in rounds of shuffled order."""
    rng = np.random.default_rng(4)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"memcpy": {"push": []}}
    names = [name for name, kind in KINDS.items() if find_spec(kind.package)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lk"))
        os.environ[FOLDER] = folder
        Authority("benchmark").issue("ps", folder=Path(folder) / "keys")
        links = [start(name) for name in names]
        for link in links:
            stack.callback(link.close)
            found[link.name] = {"push": [], "exchange": [], "round trip": [], "in place": []}
        for round_ in range(N_ROUNDS + 1):
            for link in rng.permutation(np.array(links, object)):
                one = run_once(link)
                if round_:  # the first one warms up
                    for what, took in one.items():
                        found[link.name][what].append(took)
            if round_:
                found["memcpy"]["push"].append((memcpy_s(), 0.0))
    return found


def run_once(link: Link) -> dict[str, tuple[float, float]]:
    took = {"push": timed(link, link.push), "exchange": timed(link, link.exchange)}
    trips = sorted(timed(link, link.round_trip) for _ in range(50))
    took["round trip"] = trips[25]
    if isinstance(link, LabkitLink) and link.shared:
        took["in place"] = timed(link, link.in_place)
    return took


def rows() -> list[Row]:
    """Return processor time and rates; ratios are medians of the rounds of one run, each round beside its own peers."""
    found = measure()
    made = [
        _row("processor time per GB over TCP, both ends", cpu_per_gb(found["tcp"]["push"]), "CPU s/GB", 0.6),
        _row("processor time per GB over TLS, both ends", cpu_per_gb(found["tls"]["push"]), "CPU s/GB", None),
        _row("processor time per GB over unix sockets, both ends", cpu_per_gb(found["unix"]["push"]), "CPU s/GB", None),
        _row("shared memory, one copy, time / memcpy", ratio(found, "shm", "memcpy", "push"), "x", None),
    ]
    for name, other in (("tcp", "bare tcp"), ("unix", "bare unix"), ("tcp", "gloo"), ("unix", "gloo"), ("shm", "gloo")):
        if other in found:
            value = ratio(found, name, other, "exchange")
            made.append(_row(f"100 MB there and back over {name}, time / {other}", value, "x", None))
    return made


def _row(name: str, value: float, unit: str, goal: float | None) -> Row:
    return Row(name, round(value, 3), unit, goal, False, COMMAND)


def cpu_per_gb(samples: list[tuple[float, float]]) -> float:
    return float(np.median([used_s for _, used_s in samples])) / (N_BYTES / 1e9)


def ratio(found: dict[str, dict[str, list[tuple[float, float]]]], name: str, other: str, what: str) -> float:
    """Return the median over rounds of how long one took beside the other."""
    return float(np.median([a[0] / b[0] for a, b in zip(found[name][what], found[other][what], strict=True)]))


def main() -> None:
    found = measure()
    gb = N_BYTES / 1e9
    heads = ("push GB/s", "CPU s/GB", "exchange ms", "CPU s/GB", "1 KB us", "in place ms")
    print(" " * 12 + "".join(f"{head:>12}" for head in heads))
    for name, what in found.items():
        cells = [f"{name:12}"]
        push = np.median(what["push"], axis=0)
        cells.append(f"{gb / push[0]:12.2f}{push[1] / gb:12.3f}")
        if "exchange" in what:
            exchange, trip = np.median(what["exchange"], axis=0), np.median(what["round trip"], axis=0)
            cells.append(f"{1e3 * exchange[0]:12.1f}{exchange[1] / gb / 2:12.3f}{1e6 * trip[0]:12.0f}")
        if what.get("in place"):
            cells.append(f"{1e3 * np.median(what['in place'], axis=0)[0]:12.2f}")
        print("".join(cells))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        KINDS[sys.argv[1]].serve(sys.argv[1])
    else:
        main()

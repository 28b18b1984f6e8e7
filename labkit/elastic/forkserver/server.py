"""A process that has imported the modules of workers and servers, and forks them: see docs/why/fork-server.md.

`labkit.elastic.forkserver.client` starts it with a listening socket. It never has a second thread, imports no module of
a user, and does not touch a GPU. A forked process takes the state of one that `python -m` has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import random  # noqa: TID251 - seeded anew, as in a new interpreter
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from labkit.elastic.forkserver.protocol import (
    GO,
    NETWORK,
    OF_PYTHON,
    ForkEnded,
    ForkOrder,
    ForkRefused,
    ForkStarted,
    ForkWatch,
    Message,
    OrderError,
    OrderFrames,
    clear,
    early_of,
    encode,
    lock_of,
    locked,
)
from labkit.system.proc import stat
from labkit.system.proc import threads as threads_of
from labkit.system.unix_sockets import peer_uid

CLONE_NEWNET: Final = 0x40000000
MADE_HERE: Final = ("NUMBA_CACHE_DIR",)
"""Variables that `import labkit` sets."""


def become(order: ForkOrder, files: Sequence[int], client: socket.socket) -> None:
    """Become the requested process, send its number to the client, and wait for `GO`.

    If that fails, or the client is gone, this process ends, and the program has not run.
    """
    try:
        os.setsid()
        _enter_network(files[3:])
        _take_files(files)
        os.chdir(order.cwd)
        os.umask(order.umask)
        os.sched_setaffinity(0, order.cores)
        if order.nice:
            os.nice(order.nice)
        _settle_signals(order.ignored)
        _settle_python(order)
        client.sendall(encode(ForkStarted(os.getpid(), start_of(os.getpid()))))
        if client.recv(1) != GO:
            os._exit(0)
        client.close()
    except BaseException as error:
        _refuse(client, error)


def _refuse(client: socket.socket, error: BaseException) -> None:
    try:
        client.sendall(encode(ForkRefused(f"{type(error).__name__}: {error}"[:1000])))
    finally:
        os._exit(127)


def start_of(pid: int) -> int:
    """Return the start of a process in clock ticks since the host started; 0 if there is no such process."""
    status = stat(pid)
    return 0 if status is None else status.start


def _enter_network(files: Sequence[int]) -> None:
    for handle in files:
        there, here = os.fstat(handle), os.stat(NETWORK)
        libc = ctypes.CDLL(None, use_errno=True)
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) and libc.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "the client's network cannot be entered")


def _take_files(files: Sequence[int]) -> None:
    for target, source in enumerate(files[:3]):
        os.dup2(source, target)
    for handle in files:
        os.close(handle)


def _settle_signals(ignored: Sequence[int]) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        as_python = signal.SIG_IGN if number in OF_PYTHON else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else as_python)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _settle_python(order: ForkOrder) -> None:
    """Replace what is the server's: environment, command line, module search path, random numbers."""
    argv = list(order.argv)
    kept = {name: os.environ[name] for name in MADE_HERE if name in os.environ}
    os.environ.clear()
    os.environ.update({**kept, **order.env})
    show(argv, order.env)
    time.tzset()
    tempfile.tempdir = None
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())  # as -m does
    importlib.invalidate_caches()
    sys.orig_argv = argv
    _settle_numbers(order)


def _settle_numbers(order: ForkOrder) -> None:
    """Seed the random generators anew, and set the number of threads that the environment asks for."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # models may draw from it
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
        torch.set_num_threads(threads(order.env, len(order.cores)))


def threads(env: Mapping[str, str], n_cores: int) -> int:
    """Return the number of threads with which torch computes in a new process.

    >>> threads({"OMP_NUM_THREADS": "1"}, 8), threads({}, 2)
    (1, 2)
    """
    value = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(value) if value.isdigit() and int(value) else max(1, n_cores)


def run(order: ForkOrder) -> None:
    """Run the requested program, as `python -m` would; it does not return before the program ends."""
    module = importlib.import_module(order.argv[2])
    sys.modules["__main__"] = module
    sys.argv = [str(module.__file__), *order.argv[3:]]
    module.main(sys.argv[1:])


PR_SET_NAME: Final = 15
PR_SET_MM: Final = 35
PR_SET_MM_MAP: Final = 14
_MAP: Final = struct.Struct("=12QII")
"""`struct prctl_mm_map` of prctl(2)."""
_FIELDS: Final = (26, 27, 45, 46, 47, 28)
"""Numbers of /proc/PID/stat [proc(5)]: code, code's end, data, data's end, heap, stack."""

_kept: list[mmap.mmap] = []
"""Memory from which the kernel reads command line and environment while this process lives."""


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Set /proc/self/cmdline and /proc/self/environ to these arguments and variables.

    It needs no privilege [PR_SET_MM_MAP of prctl(2)], but a kernel with CONFIG_CHECKPOINT_RESTORE. Raise OSError if the
    kernel cannot do it.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(words) + len(variables)] = words + variables
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _point_to(at, at + len(words), at + len(words) + len(variables))
    _kept.append(memory)
    name(os.path.basename(argv[0]))


def _point_to(arguments: int, environment: int, end: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    columns = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    code, code_end, data, data_end, heap, stack = (int(columns[number - 3]) for number in _FIELDS)
    places = (code, code_end, data, data_end, heap, libc.sbrk(0), stack, arguments, environment, environment, end)
    card = _MAP.pack(*places, 0, 0, 0xFFFFFFFF)  # neither another auxiliary vector nor another program
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, card, ctypes.c_ulong(len(card)), 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel does not let a process change its command line: {os.strerror(number)}")


def name(word: str) -> None:
    """Give this process a short name, as `top` shows it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, os.fsencode(word)[:15], 0, 0, 0)


TITLE: Final = ("labkit-forks",)
PRELOADED: Final = (
    "torch",
    "torch._dynamo",
    "pydantic",
    "labkit.elastic.process.member",
    "labkit.elastic.process.newcomer",
    "labkit.elastic.controller.process",
    "labkit.elastic.process.host_launcher",
    "labkit.elastic.server.server",
    "labkit.elastic.worker.push_pull",
    "labkit.elastic.worker.synchronous",
    "labkit.elastic.worker.asynchronous",
    "labkit.elastic.worker.shard_gradients",
    "labkit.elastic.worker.forward",
    "labkit.elastic.transport.shared_arrays",
    "labkit.elastic.protocol.messages.prepared",
    "labkit.elastic.protocol.program",
    "labkit.elastic.shards",
    "labkit.elastic.models",
    "labkit.elastic.data",
    "labkit.elastic.server.optimizers",
    "labkit.elastic.server.kernels",
    "labkit.elastic.job_start",
    "labkit.testbed.run.job_process",
)
"""Modules to import, by name: some are of packages above this one. Optimizers import `torch._dynamo`, in a second."""
LOOK_S: Final = 5.0
"""Seconds between two checks that the socket still exists."""
KEPT: Final = 256
"""Number of ended processes whose status is kept for later requests."""
MOST_FILES: Final = 4


class InChild(Exception):  # noqa: N818 - not an error: it leads out of the server's loop
    """Raised in a child, with the order that it is to run."""

    def __init__(self, order: ForkOrder) -> None:
        self.order = order


@dataclass(slots=True)
class Caller:
    """A connected client, with the bytes and files that it has sent so far."""

    sock: socket.socket
    frames: OrderFrames = field(default_factory=OrderFrames)
    files: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close the connection, and the files that the client has sent."""
        for handle in self.files:
            os.close(handle)
        self.files.clear()
        self.sock.close()


@dataclass(slots=True)
class Child:
    """A forked process; `watchers` are connections to which its end is sent."""

    pid: int
    start: int
    handle: int
    watchers: list[socket.socket]


class ForkServer:
    """Forks processes on request, and sends their exit status.

    `listener`: listening socket; renamed to `path` when the server is ready. `path`: path of the socket; lock and log
    are in the same folder. `idle_s`: seconds without children and orders after which the server ends.
    """

    def __init__(self, listener: socket.socket, path: Path, *, idle_s: float) -> None:
        self._listener, self._path, self._idle_s = listener, path, idle_s
        self._selector = selectors.DefaultSelector()
        self._callers: dict[int, Caller] = {}
        self._children: dict[int, Child] = {}
        self._over: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._active_s, self._gone = time.monotonic(), False
        listener.setblocking(False)
        self._on(listener, self._accept)
        self._inode = os.stat(path).st_ino

    def _on(self, what: socket.socket | int, call: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, call)

    def run(self) -> None:
        """Serve until there are no clients, no children, and `idle_s` has passed; raises `InChild` in each child."""
        look_s = min(LOOK_S, self._idle_s / 4)
        while not self._done():
            for key, _ in self._selector.select(look_s):
                key.data()

    # --- clients

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            if peer_uid(sock) != os.getuid():
                sock.close()
                return
            sock.setblocking(False)
            caller = Caller(sock)
            self._callers[sock.fileno()] = caller
            self._on(sock, lambda: self._receive(caller))

    def _receive(self, caller: Caller) -> None:
        self._active_s = time.monotonic()
        try:
            data, files, _, _ = socket.recv_fds(caller.sock, 1 << 16, MOST_FILES)
            caller.files += files
            caller.frames.feed(data)
            message = caller.frames.take()
        except BlockingIOError:
            return
        except (OSError, OrderError) as error:
            self._leave(caller)
            self._refuse(caller, str(error))
            return
        if not data or message is not None:
            self._leave(caller)
            self._serve(caller, message)

    def _leave(self, caller: Caller) -> None:
        """Read no more from a client: the next bytes are for its process."""
        self._selector.unregister(caller.sock)
        del self._callers[caller.sock.fileno()]

    def _serve(self, caller: Caller, message: Message | None) -> None:
        if isinstance(message, ForkOrder):
            self._fork(caller, message)
        elif isinstance(message, ForkWatch):
            self._watch(caller, message)
        else:
            caller.close()

    @staticmethod
    def _refuse(caller: Caller, why: str) -> None:
        with contextlib.suppress(OSError):
            caller.sock.sendall(encode(ForkRefused(why)))
        caller.close()

    # --- children

    def _fork(self, caller: Caller, order: ForkOrder) -> None:
        if len(caller.files) < 3 or n_threads() > 1:
            fault = f"{len(caller.files)} files came with it, 3 are needed" if n_threads() == 1 else "it has threads"
            self._refuse(caller, f"the fork server cannot fork: {fault}")
            return
        try:
            pid = os.fork()
        except OSError as error:
            self._refuse(caller, f"no process can be forked: {error.strerror}")
            return
        if pid == 0:
            self._be_child(caller, order)
        for handle in caller.files:
            os.close(handle)
        caller.files.clear()
        child = Child(pid, start_of(pid), os.pidfd_open(pid), [caller.sock])
        self._children[pid] = child
        self._on(child.handle, lambda: self._reap(child))

    def _be_child(self, caller: Caller, order: ForkOrder) -> None:
        self._selector.close()
        self._listener.close()
        for other in self._callers.values():
            other.close()
        for child in self._children.values():
            os.close(child.handle)
            for sock in child.watchers:
                sock.close()
        caller.sock.setblocking(True)
        become(order, caller.files, caller.sock)
        raise InChild(order)

    def _reap(self, child: Child) -> None:
        self._active_s = time.monotonic()
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.handle)
        os.close(child.handle)
        del self._children[child.pid]
        self._over[child.pid, child.start] = status
        if len(self._over) > KEPT:
            self._over.popitem(last=False)
        for sock in child.watchers:
            _send_end(sock, status)

    def _watch(self, caller: Caller, request: ForkWatch) -> None:
        child = self._children.get(request.pid)
        if child is not None and child.start == request.start:
            child.watchers.append(caller.sock)
        elif (status := self._over.get((request.pid, request.start))) is not None:
            _send_end(caller.sock, status)
        else:
            self._refuse(caller, f"process {request.pid} was not started by this fork server")

    # --- the end

    def _done(self) -> bool:
        """Return whether the server may end: its socket is gone, or it was idle for `idle_s`."""
        if not self._gone and self._is_gone():
            self._gone = True
            self._selector.unregister(self._listener)
        if self._children or self._callers:
            return False
        return self._gone or (time.monotonic() - self._active_s > self._idle_s and self._is_closed())

    def _is_gone(self) -> bool:
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def _is_closed(self) -> bool:
        """Remove the socket, unless a client holds the lock to start a server."""
        with locked(lock_of(self._path), wait=False) as held:
            if held:
                clear(self._path)  # a client that has connected, and gets no answer, tries again
            return held


def _send_end(sock: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # the client is gone
        sock.setblocking(True)
        sock.sendall(encode(ForkEnded(status)))
    sock.close()


def n_threads() -> int:
    """Return the number of threads of this process."""
    return len(threads_of(os.getpid()))


def preload() -> None:
    """Import the modules of job processes; `kernels` loads the compiled ones."""
    for module in PRELOADED:
        importlib.import_module(module)


def main(arguments: Sequence[str]) -> None:
    """Run a fork server; arguments: ROOT of labkit, PATH of the socket, descriptor of the listener, `idle_s`."""
    root, path, listener, idle_s = arguments
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    show(TITLE, {})
    name(TITLE[0])
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    preload()
    sys.path.remove(root)
    if n_threads() > 1:
        sys.exit(f"the fork server has {n_threads()} threads after its imports; it must have one.")
    gc.collect()
    gc.freeze()
    place = Path(path)
    early_of(place).rename(place)
    order = _serve(ForkServer(socket.socket(fileno=int(listener)), place, idle_s=float(idle_s)))
    if order is not None:
        run(order)


def _serve(server: ForkServer) -> ForkOrder | None:
    """Return in each child with its order, and in the server at its end with None."""
    try:
        server.run()
    except InChild as forked:
        return forked.order
    return None

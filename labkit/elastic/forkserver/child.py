"""A process that a fork server has forked: it takes the state of a process that `python -m` has started."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import random  # noqa: TID251 - seeded anew, as in a new interpreter
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from labkit.elastic.forkserver.protocol import GO, NETWORK, OF_PYTHON, ForkOrder, ForkRefused, ForkStarted, encode
from labkit.system.proc import stat

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
        torch.set_num_threads(threads(order.env, len(order.cores), torch.get_num_threads()))


def threads(env: Mapping[str, str], n_cores: int, most: int) -> int:
    """Return the number of threads with which torch computes in a new process.

    >>> threads({"OMP_NUM_THREADS": "1"}, 8, 4), threads({}, 2, 4)
    (1, 2)
    """
    value = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(value) if value.isdigit() and int(value) else max(1, min(n_cores, most))


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

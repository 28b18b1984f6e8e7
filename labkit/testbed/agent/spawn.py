"""Start a process in a session of its own with its cores, environment and log, or report why that failed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from labkit.testbed.agent.places import LOG
from labkit.testbed.agent.records import BOOT
from labkit.testbed.agent.wire import Refusal

BED: Final = ("LABKIT_BED", "LABKIT_BED_HOST", BOOT)
"""Environment variables of a laptop testbed: processes with them end with it."""
BASE: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR",
    "LD_LIBRARY_PATH", *BED,
)  # fmt: skip
"""Variables that a task inherits; LD_LIBRARY_PATH leads to the NVIDIA driver on some hosts."""

TO_LOG: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
"""Flags that open a task's log, a file of mode 0600."""
RESET: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A process to start."""

    folder: Path
    argv: Sequence[str]
    env: Mapping[str, str]
    cores: Sequence[int] | None = None
    nice: int = 0


def environment(label: Mapping[str, str], given: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Return the environment of a task: label, inherited variables, GPUs, and the requested variables."""
    base = {name: os.environ[name] for name in BASE if name in os.environ}
    seen = {} if gpus is None else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return {**label, **base, **seen, **given, **label}


def spawn(order: SpawnRequest) -> int:
    """Start a process, and return its number once it executes the program.

    Raises
    ------
    Refusal
        If it cannot be started; nothing is left of it.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(order, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        fault = pipe.read().decode()
    if fault:
        os.waitpid(pid, 0)
        raise Refusal("cannot_start", f"{order.argv[0]!r} cannot be started: {fault}")
    return pid


def _become(order: SpawnRequest, writing: int) -> NoReturn:
    """Become the requested program in the forked child; on failure report why."""
    try:
        os.setsid()
        os.chdir(order.folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(LOG, TO_LOG, 0o600)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        if order.cores is not None:
            os.sched_setaffinity(0, order.cores)
        os.nice(order.nice)
        os.execvpe(order.argv[0], list(order.argv), dict(order.env))
    except BaseException as error:
        with contextlib.suppress(BaseException):
            why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            os.write(writing, why.encode()[:4096] or b"?")
    os._exit(127)

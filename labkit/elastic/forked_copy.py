"""Work in a forked copy of this process, for a proof: what it does to the user's objects is gone with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from labkit.elastic.errors import ChangedError
from labkit.elastic.process.local_members import MARK, end_offspring

PROOF: Final = "proof/"
"""Beginning of the mark of processes that a program starts in a copy."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found."""

    summary: str
    """One line: what was checked, or why nothing was."""
    fault: str = ""
    """What would train another model, in one line; empty: nothing."""


def in_a_copy(work: Callable[[], Proof], *, timeout_s: float) -> Proof:
    """Do something in a forked child; its output is dropped, and what it started ends with it."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads of this process may hold locks: then the time runs out
        pid = os.fork()
    if not pid:
        _be_copy(work, writer)
    os.close(writer)
    try:
        raw = _read(reader, timeout_s=timeout_s)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # it is a child that nobody has waited for
        end_offspring(pid, f"{PROOF}{pid}")
        _, status = os.waitpid(pid, 0)
    if raw is None:
        return Proof(f"nothing was proved: one step in a copy of this process took more than {timeout_s:g} s")
    if not raw:
        return Proof(f"nothing was proved: a copy of this process ended with code {os.waitstatus_to_exitcode(status)}")
    return Proof(**json.loads(raw))


def _be_copy(work: Callable[[], Proof], writer: int) -> None:
    """Work, send what was found, and end, whatever happens."""
    try:
        os.setsid()
        os.environ[MARK] = f"{PROOF}{os.getpid()}"
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - a notebook's would write to its front end
        report = caught(work)
        data = json.dumps({"summary": report.summary, "fault": report.fault}).encode()
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def caught(work: Callable[[], Proof]) -> Proof:
    """Return what was found, errors of the work included."""
    try:
        return work()
    except ChangedError as error:
        return Proof("", str(error))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Proof(f"nothing was proved: the program raised {why}")


def _read(reader: int, *, timeout_s: float) -> bytes | None:
    """Return the output of a child until it closes its end; None if that takes too long."""
    until_s, received = time.monotonic() + timeout_s, b""
    readable = select.poll()
    readable.register(reader, select.POLLIN)
    while readable.poll(max(0.0, until_s - time.monotonic()) * 1000):
        data = os.read(reader, 1 << 16)
        if not data:
            return received
        received += data
    return None


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Give back the random generators and the number of threads after work in this process itself."""
    import random  # noqa: TID251 - users' data may draw from it

    import torch

    n_threads, kept, drawn = torch.get_num_threads(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(n_threads)
        random.setstate(kept)
        np.random.set_state(drawn)  # noqa: NPY002

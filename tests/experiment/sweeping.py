"""Grids and schedulers that the tests of sweeps run."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labkit.core import Placement, Snapshot
from labkit.experiment import Grid
from labkit.placers import Pack
from labkit.schedulers.base import requested_gangs
from tests.hang import HANG_S

TRACE = "poisson(12, per_hour=60, median_s=600, mean_s=700)"


def small(**changes: object) -> Grid:
    """Return a grid of eight quick cells."""
    given: dict[str, object] = {"schedulers": ["fifo", "srtf"], "trace": TRACE, "cluster": "demo", "seeds": 4}
    return Grid(**(given | changes))  # type: ignore[arg-type]


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a table that no clock and no folder has a part in."""
    return table.drop(columns=["cpu_s", "wall_s", "run"])


def until(condition: Callable[[], object]) -> None:
    """Wait until another process has done something."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        threading.Event().wait(0.02)


def pids(folder: Path) -> set[int]:
    """Return the processes that a `Noting` scheduler noted."""
    told = [path.read_text() for path in folder.iterdir() if path.is_file() and path.name != "hold"]
    return {int(text) for text in told if text}


def n_lines(folder: Path) -> int:
    """Return how many lines are complete, while another process may write."""
    path = folder / "cells.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@dataclass(frozen=True)
class Fair:
    """First come, first served: a scheduler of a user's own."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        return Pack().place(snapshot, requested_gangs(snapshot, snapshot.waiting))


@dataclass(frozen=True)
class Noting(Fair):
    """Notes in a folder that it was asked, with its process; waits there while a file `hold` is there."""

    folder: str

    def schedule(self, snapshot: Snapshot) -> Placement:
        if snapshot.number == 0:
            (Path(self.folder) / f"{os.getpid()}-{uuid.uuid4().hex}").write_text(str(os.getpid()))
            while (Path(self.folder) / "hold").exists():
                threading.Event().wait(0.01)
        return super().schedule(snapshot)


@dataclass(frozen=True)
class Dying(Fair):
    """Ends its process the way it was told to; with `once`, only where this file is not there yet."""

    how: str
    once: str = ""

    def schedule(self, snapshot: Snapshot) -> Placement:
        if not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            if self.how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().schedule(snapshot)


@dataclass(frozen=True)
class Raising(Fair):
    """Raises while a file is there."""

    while_there: str

    def schedule(self, snapshot: Snapshot) -> Placement:
        if Path(self.while_there).exists():
            raise RuntimeError("the file is there")
        return super().schedule(snapshot)

"""Follow a run from outside: its record on disk, as it grows. Nothing is written, nothing is asked of hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.below import read_plain
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.live.model import LiveModel, RunStatus, status_of
from labkit.results import files
from labkit.results.files import writer_of
from labkit.results.record import RunInfo
from labkit.results.store import FLUSH_S, REASONS, RunTail
from labkit.topology import build

EVERY_S: Final = FLUSH_S
"""Seconds between two looks: a writer does not write more often."""
NOTES: Final = "notes.txt"
SHOWN_NOTES: Final = 5

Listener = Callable[[], None]


def with_network(cluster: Cluster, info: RunInfo) -> Cluster:
    """Return the cluster of a simulated run with its network, which a run's folder does not hold.

    It is built again from the cluster's name; where that gives other machines, or nothing, there is no network. Runs on
    machines have none here: what their jobs send is neither measured nor told by the catalogue of models.
    """
    if info.backend != "simulator":
        return cluster
    try:
        built = build(info.cluster)
    except (InputError, OSError):
        return cluster
    same = built.machines == cluster.machines and np.array_equal(built.capacity, cluster.capacity)
    return replace(cluster, network=built.network) if same else cluster


class FollowedRun:
    """A run as far as its folder tells, while it goes on or after its end.

    Raise InputError if a file of the run is missing or damaged.

    `folder`: of the run; `clock`: seconds on the wall, to tell how long nothing has been heard.

    Attributes
    ----------
    model : LiveModel
        What is shown.
    info : RunInfo
        As `run.json` has it.
    writer : dict or None
        Which process writes it.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.jobs, self.cluster = files.read_jobs(folder / "jobs.parquet"), files.read_cluster(folder / "cluster.json")
        self.cluster = with_network(self.cluster, files.read_info(folder / "run.json"))
        self.model = LiveModel(self.jobs, self.cluster)
        self._tail, self._clock = RunTail(folder, jobs=self.jobs, cluster=self.cluster), clock
        self._listeners: list[Listener] = []
        self._version: Any = None
        self._heard_s, self._heard = clock(), False
        self.update()

    def update(self) -> bool:
        """Take in what was written since; return whether anything changed.

        A folder that did not change is not read. The writer is looked for first: what it wrote at its end is there when
        it is gone.
        """
        try:
            writer, changed_ns = writer_of(self.folder), os.stat(self.folder).st_mtime_ns
        except FileNotFoundError:
            raise InputError(
                f"{self.folder} is gone: the run came to nothing before it began, or was removed."
            ) from None
        seen = (changed_ns, writer)
        if seen == self._version:
            return self._notify_silence()
        self.info, self.writer = files.read_info(self.folder / "run.json"), writer
        rows = self._tail.news()
        with self.model.lock:
            self.model.decisions.reasons = files.read_reasons(self.folder / REASONS)
            self.model.fold(rows)
        if len(rows):
            self._heard_s, self._heard = self._clock(), True
        self._version = seen
        self._was = self.status
        self._tell()
        return True

    def _notify_silence(self) -> bool:
        """Notify listeners where the only change is the length of the silence."""
        if self.status == self._was:
            return False
        self._was = self.status
        self._tell()
        return True

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def listen(self, listener: Listener) -> None:
        """Call a view after every change."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Leave a view alone from now on."""
        self._listeners = [other for other in self._listeners if other != listener]

    @property
    def name(self) -> str:
        """Its scheduler."""
        return self.info.scheduler

    @property
    def now_s(self) -> float:
        """When its last event was."""
        return self.model.signals.now_s

    @property
    def going(self) -> bool:
        """Whether a process writes it."""
        return self.writer is not None

    @property
    def status(self) -> RunStatus:
        """How it is doing."""
        silent_s = self._clock() - self._heard_s
        return status_of(self.info, writer=self.writer, folder=self.folder, silent_s=silent_s, heard=self._heard)

    def header(self) -> str:
        """Return the run in a line."""
        names, up, board = self.cluster.machines, self.model.signals.ledger.up, self.model.board
        gone = [name for name, there in zip(names, up.tolist(), strict=True) if not there]
        given_up = f", {board.n_dropped} given up" if board.n_dropped else ""
        without = f" (without {', '.join(gone)})" if gone else ""
        machines = f"{len(names) - len(gone)} of {len(names)} machines up{without}"
        return (
            f"{self.info.run}: {self.info.scheduler}, {self.now_s:.0f} s, {board.n_done} of {len(self.jobs)} jobs done"
            f"{given_up}, {machines}; {self.status.text or self.status.state}"
        )

    def notes(self) -> list[str]:
        """Return the last things that went wrong, in words."""
        try:
            return read_plain(self.folder / NOTES).decode(errors="replace").splitlines()[-SHOWN_NOTES:]
        except (OSError, InputError):
            return []

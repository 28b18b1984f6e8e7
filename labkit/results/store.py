"""Runs on disk: a folder each, written so that a crash loses at most the last second.

`runs/<id>/` holds `run.json` (what was asked), `jobs.parquet`, `cluster.json`, and the events in numbered parts
`events-00000.parquet`, ...; a run that has ended has one, `events-00000-00041.parquet`, in the place of its 42 parts.
Every file is written under another name, synced and renamed: it is whole, or not there.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, unknown
from labkit.core.events import EventLog, Events, events
from labkit.core.jobs import Jobs
from labkit.results import files
from labkit.results.record import RunInfo, RunRecord, State

FLUSH_S = 1.0
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
PART = re.compile(r"events-(\d{5,})(?:-(\d{5,}))?\.parquet")


class RunWriter:
    """Writes a run while it goes on; use it in a `with`, and append what happens.

    Leaving the block marks the run as done, or as stopped (keyboard interrupt) or failed (any other exception).

    Attributes
    ----------
    folder : Path
        `runs/<id>`.
    info : RunInfo
        As it stands in `run.json`.
    """

    def __init__(self, folder: Path, info: RunInfo, *, first_part: int, clock: Callable[[], float]) -> None:
        self.folder, self.info = folder, info
        self._clock, self._n_parts, self._pending = clock, first_part, EventLog()
        self._began_s = self._flushed_s = clock()

    @classmethod
    def create(
        cls,
        root: Path | str,
        *,
        info: RunInfo,
        jobs: Jobs,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Make the folder `root/<info.run>` and begin to write; where that fails, there is no folder.

        Raises
        ------
        InputError
            If the id cannot be a file name, or the folder is already there.
        """
        if not RUN_ID.fullmatch(info.run):
            raise InputError(f"run id '{info.run}' cannot name a folder; use letters, digits, '.', '_', '+' and '-'.")
        folder = Path(root) / info.run
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError(
                f"run '{info.run}' is already in {root}; take another id (labkit.results.free_id finds one), "
                "or go on with it: RunWriter.attach."
            ) from None
        try:
            files.write_frame(folder / "jobs.parquet", jobs.to_frame(), name=jobs.name)
            files.write_cluster(folder / "cluster.json", cluster)
            writer = cls(folder, info, first_part=0, clock=clock)
            writer._mark(State.RUNNING)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return writer

    @classmethod
    def attach(cls, folder: Path | str, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Go on with a run that was stopped or whose writer died; its events so far: `load(folder)`."""
        path = Path(folder)
        info = files.read_info(path / "run.json")
        writer = cls(path, info, first_part=_parts(path)[1], clock=clock)
        writer._mark(State.RUNNING)
        return writer

    def append(self, batch: Events) -> None:
        """Take note of events; they reach the disk at most a second later, when more is appended."""
        self._pending.append(batch)
        if self._clock() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what was appended since the last time."""
        if len(self._pending):
            files.write_events(self.folder / f"events-{self._n_parts:05d}.parquet", self._pending.rows)
            self._n_parts += 1
            self._pending = EventLog()
        self._flushed_s = self._clock()

    def close(self, state: State = State.DONE) -> None:
        """Write the rest and say how the run ended."""
        self.flush()
        self._join()
        before_s = 0.0 if np.isnan(self.info.wall_s) else self.info.wall_s
        self.info = replace(self.info, wall_s=before_s + self._clock() - self._began_s)
        self._mark(state)

    def _join(self) -> None:
        """Put all parts into one file; until it is whole they stay, and what is left of them then is ignored."""
        parts, n_parts = _parts(self.folder)
        if len(parts) > 1:
            rows = np.concatenate([files.read_events(part) for part in parts])
            files.write_events(self.folder / f"events-00000-{n_parts - 1:05d}.parquet", rows)
            for part in parts:
                part.unlink()

    def _mark(self, state: State) -> None:
        self.info = replace(self.info, state=state)
        files.write_info(self.folder / "run.json", self.info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close(State.STOPPED if issubclass(kind, KeyboardInterrupt) else State.FAILED)


def load(path: Path | str, *, root: Path | str = "runs") -> RunRecord:
    """Read a run, finished or not: a folder, or an id under `root`.

    Raises
    ------
    InputError
        If there is no such run ("Did you mean ...?"), or a file of it is missing, cut short or not labkit's.
    """
    folder = _find(Path(path), Path(root))
    parts = [files.read_events(part) for part in _parts(folder)[0]]
    return RunRecord(
        info=files.read_info(folder / "run.json"),
        jobs=files.read_jobs(folder / "jobs.parquet"),
        cluster=files.read_cluster(folder / "cluster.json"),
        events=np.concatenate([events(), *parts]),
    )


def known_runs(root: Path | str = "runs") -> list[str]:
    """Return the ids of the runs under a folder, sorted."""
    return sorted(path.parent.name for path in Path(root).glob("*/run.json"))


def free_id(root: Path | str, stem: str) -> str:
    """Return `stem`, or `stem-2`, `stem-3`, ...: the first that names no run under `root`."""
    taken = {path.name for path in Path(root).glob(f"{stem}*")}
    numbered: Iterable[str] = (f"{stem}-{n}" for n in range(2, len(taken) + 3))
    return next(name for name in (stem, *numbered) if name not in taken)


def _find(path: Path, root: Path) -> Path:
    for folder in (path, root / path):
        if (folder / "run.json").is_file():
            return folder
    parent = path.parent if path.parent.name else root
    known = known_runs(parent)
    if not known:
        how = "'labkit compare' (simulated) or 'labkit run' (on machines)"
        raise InputError(f"no run '{path}': there are no runs in {parent}; begin one with {how}.")
    raise unknown("run", path.name, known)


def _parts(folder: Path) -> tuple[list[Path], int]:
    """Return the event parts in order, and the number that the next one gets.

    What is under any other name was never finished; what a joined file holds too, is left over.
    """
    spans = []
    for path in folder.iterdir():
        if match := PART.fullmatch(path.name):
            spans.append((int(match[1]), -int(match[2] or match[1]), path))
    chosen, following = [], 0
    for first, minus_last, path in sorted(spans):
        if first > following:
            raise InputError(
                f"{folder / f'events-{following:05d}.parquet'} is missing, though later parts are there; "
                "the run cannot be read without it."
            )
        if first == following:
            chosen.append(path)
            following = 1 - minus_last
    return chosen, following

"""Runs on disk: a folder each, written so that a crash loses at most the last second.

`runs/<id>/` holds `run.json` (what was asked), `jobs.parquet`, `cluster.json`, `reasons.json` (why decisions changed
jobs, where schedulers tell), and the events in numbered parts `events-00000.parquet`, ...; a joined file,
`events-00000-00041.parquet`, is in the place of 42 parts. While a run goes on, each 32 files of one size are joined, so
that a day of a part each second is about a hundred files; a run that has ended has one. Every file is written under
another name, synced and renamed: it is whole, or not there. `.writer` is locked by the process that writes.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from labkit.core.below import refuse_foreign
from labkit.core.cluster import Cluster
from labkit.core.consent import keep
from labkit.core.errors import EndedError, InputError, TakenOverError, unknown
from labkit.core.events import EventLog, Events, joined
from labkit.core.jobs import Jobs
from labkit.results import files
from labkit.results.files import RunLock, refuse_odd_rows, writer_of
from labkit.results.queue import QUEUE
from labkit.results.record import RUN_ID, TAKEN_BY, RunInfo, RunRecord, RunState

FLUSH_S = 1.0
REASONS = "reasons.json"
FAN_IN = 32
"""Event files of one size that are joined into a larger one."""
OFFERED = 5
"""The most runs that are listed where an id is unknown and is the beginning of others."""
READS = 20
"""Attempts to read a run whose writer joins its files meanwhile."""
PART = re.compile(r"events-(\d{5,})(?:-(\d{5,}))?\.parquet")


class RunWriter:
    """Writes a run while it goes on; use it in a `with`, and append what happens.

    Leaving the block marks the run as done, as stopped (keyboard interrupt, or ended on its hosts from elsewhere), or
    as failed (any other exception).

    Attributes
    ----------
    folder : Path
        `runs/<id>`.
    info : RunInfo
        As it stands in `run.json`.
    reasons : list of str
        Texts that events name by number: those so far. Give this very list to the session, which adds to it; a text is
        on disk before the events that name it.
    """

    def __init__(
        self, folder: Path, info: RunInfo, *, first_part: int, clock: Callable[[], float], lock: RunLock
    ) -> None:
        self.folder, self.info = folder, info
        self._clock, self._n_parts, self._pending, self._lock = clock, first_part, EventLog(), lock
        self._began_s = self._flushed_s = clock()
        self._is_first = False
        self.reasons = files.read_reasons(folder / REASONS)
        self._n_reasons = len(self.reasons)

    @classmethod
    def create(
        cls,
        root: Path | str,
        *,
        info: RunInfo,
        jobs: Jobs,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
        numbered: bool = False,
    ) -> Self:
        """Make the folder `root/<info.run>` and begin to write; where that fails, there is no folder.

        Parameters
        ----------
        numbered : bool
            Take the next free id (`r`, `r-2`, `r-3`, ...) where another run has it, also one that begins just now.

        Raises
        ------
        InputError
            If the id cannot be a file name, or the folder is already there.
        """
        _refuse_odd_id(info.run)
        is_first = not Path(root).exists()
        folder = _make_folder(Path(root), info.run, numbered=numbered)
        info = replace(info, run=folder.name)
        lock = None
        try:
            lock = RunLock(folder)
            files.write_frame(folder / "jobs.parquet", jobs.to_frame(), name=jobs.name)
            files.write_cluster(folder / "cluster.json", cluster)
            keep()  # what it names outside labkit was typed
            writer = cls(folder, info, first_part=0, clock=clock, lock=lock)
            writer._is_first = is_first
            writer._mark(RunState.RUNNING)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                lock.release()
            raise
        return writer

    @classmethod
    def attach(cls, folder: Path | str, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Resume a run that was stopped or whose writer died; its events so far: `load(folder)`.

        What `run.json` says stays as it is until `resume` or the end.

        Raises
        ------
        InputError
            If another process writes it: which one.
        """
        path = Path(folder)
        info = files.read_info(path / "run.json")  # before the lock: what is no run gets no file
        refuse_foreign(path)
        lock = RunLock(path)
        try:
            info = files.read_info(path / "run.json")
            return cls(path, info, first_part=_parts(path)[1], clock=clock, lock=lock)
        except BaseException:
            lock.release()
            raise

    def resume(self) -> None:
        """Mark the run as running."""
        self.tell(config={key: value for key, value in self.info.config.items() if key != TAKEN_BY})
        self._mark(RunState.RUNNING)

    def tell(self, **columns: Any) -> None:
        """Change what `run.json` says of the run once it ends."""
        self.info = replace(self.info, **columns)

    def discard(self) -> None:
        """Remove the run: it came to nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()
        if self._is_first:
            with suppress(OSError):  # others are in it by now
                self.folder.parent.rmdir()

    def let_go(self) -> None:
        """Write no more, and leave what is said of the run as it is."""
        self._lock.release()

    def append(self, batch: Events) -> None:
        """Take note of events; they reach the disk at most a second later, when more is appended."""
        self._pending.append(batch)
        if self._clock() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what was appended since the last time."""
        if len(self.reasons) > self._n_reasons:
            files.write_reasons(self.folder / REASONS, self.reasons)
            self._n_reasons = len(self.reasons)
        if len(self._pending):
            files.write_events(self.folder / f"events-{self._n_parts:05d}.parquet", self._pending.rows)
            self._n_parts += 1
            self._pending = EventLog()
            self._roll()
        self._flushed_s = self._clock()

    def close(self, state: RunState = RunState.DONE) -> None:
        """Write the rest and say how the run ended."""
        self.flush()
        self._join()
        before_s = 0.0 if np.isnan(self.info.wall_s) else self.info.wall_s
        self.info = replace(self.info, wall_s=before_s + self._clock() - self._began_s)
        self._mark(state)
        self._lock.release()

    def taken_over(self, by: str) -> None:
        """Write the rest, and that another process drives the run from now on."""
        self.tell(config={**self.info.config, TAKEN_BY: by})
        self.close(RunState.TAKEN_OVER)

    def _roll(self) -> None:
        """Join the last files where there are enough of one size: 32 of a part each, 32 of 32 parts each, ..."""
        size = FAN_IN
        while self._n_parts % size == 0:
            self._join(self._n_parts - size)
            size *= FAN_IN

    def _join(self, first: int = 0) -> None:
        """Put all parts from one on into one file; until it is whole they stay, and what is left then is ignored."""
        spans, n_parts = _spans(self.folder)
        parts = [path for start, _, path in spans if start >= first]
        if len(parts) > 1:
            rows = joined([files.read_events(part) for part in parts])
            files.write_events(self.folder / f"events-{first:05d}-{n_parts - 1:05d}.parquet", rows)
            for part in parts:
                part.unlink()

    def _mark(self, state: RunState) -> None:
        self.info = replace(self.info, state=state)
        files.write_info(self.folder / "run.json", self.info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif isinstance(error, TakenOverError):
            self.taken_over(error.by)
        else:
            self.close(RunState.STOPPED if issubclass(kind, KeyboardInterrupt | EndedError) else RunState.FAILED)


class RunTail:
    """What comes new in a run's folder, also while its writer joins files.

    `folder`: of the run; `jobs`, `cluster`: those that its events may name.
    """

    def __init__(self, folder: Path, *, jobs: Jobs, cluster: Cluster) -> None:
        self._folder, self._n_parts, self._jobs, self._cluster = folder, 0, jobs, cluster
        self._rows_before = {0: 0}
        """By number of a part at which a file began or ended: events before it."""

    def news(self) -> Events:
        """Return the events since the last call; at first, all.

        Raise InputError if a part is missing or damaged.
        """
        fresh: list[Events] = []
        for attempt in range(READS):
            try:
                fresh += self._read()
                break
            except files.MissingError:  # joined with others just now
                if attempt == READS - 1:
                    raise
        return joined(fresh)

    def _read(self) -> Iterator[Events]:
        for first, last, path in _spans(self._folder)[0]:
            if last < self._n_parts:
                continue
            rows = files.read_events(path)
            refuse_odd_rows(rows, jobs=self._jobs, cluster=self._cluster, source=str(path))
            known = self._rows_before[self._n_parts] - self._rows_before[first]
            self._rows_before[last + 1] = self._rows_before[first] + len(rows)
            self._n_parts = last + 1
            yield rows[known:]


def load(path: Path | str, *, runs: Path | str = "runs") -> RunRecord:
    """Read a run, finished or not: a folder, or an id under `runs`.

    Raises
    ------
    InputError
        If there is no such run ("Did you mean ...?"), or a file of it is missing, cut short or not labkit's.
    """
    folder = find(path, runs=runs)
    info, jobs = files.read_info(folder / "run.json"), files.read_jobs(folder / "jobs.parquet")
    cluster = files.read_cluster(folder / "cluster.json")
    events = RunTail(folder, jobs=jobs, cluster=cluster).news()
    reasons = files.read_reasons(folder / REASONS)  # after the events: theirs are written before them
    return RunRecord(info=info, jobs=jobs, cluster=cluster, events=events, reasons=reasons)


def run_ids(runs: Path | str = "runs") -> list[str]:
    """Return the ids of the runs under a folder, sorted."""
    return sorted(path.parent.name for path in Path(runs).glob("*/run.json"))


def free_id(root: Path | str, stem: str) -> str:
    """Return `stem`, or `stem-2`, `stem-3`, ...: the first that names no run under `root`."""
    taken = {path.name for path in Path(root).glob(f"{stem}*")}
    numbered: Iterable[str] = (f"{stem}-{n}" for n in range(2, len(taken) + 3))
    return next(name for name in (stem, *numbered) if name not in taken)


def find(path: Path | str, *, runs: Path | str = "runs") -> Path:
    """Return the folder of a run: that of this path, or of this id under `runs`.

    Raise InputError if there is no such run ("Did you mean ...?"), or it is a queue of runs.
    """
    path, runs = Path(path), Path(runs)
    for folder in (path, runs / path):
        if (folder / "run.json").is_file():
            return folder
        if (folder / QUEUE).is_file():
            raise InputError(
                f"'{path}' is a queue of runs: name one of them ({folder}/RUN; labkit watch {folder} lists them), "
                f"or resume all: labkit deploy --resume {folder.name}."
            )
    parent = path.parent if path.parent.name else runs
    known = run_ids(parent)
    if matches := [run for run in known if run.startswith(path.name)]:
        more = f" and {len(matches) - OFFERED} more" if len(matches) > OFFERED else ""
        raise InputError(f"unknown run '{path.name}'. Did you mean {', '.join(matches[:OFFERED])}{more}?")
    if not known:
        how = "'labkit compare' (simulated) or 'labkit deploy' (on machines)"
        raise InputError(f"no run '{path}': there are no runs in {parent}; begin one with {how}.")
    raise unknown("run", path.name, known)


def refuse_taken(run: str, *, root: Path | str) -> None:
    """Raise if a new run cannot have an id.

    Raise InputError if it cannot name a folder, or there is something of that name.
    """
    _refuse_odd_id(run)
    if (Path(root) / run).exists():
        raise _taken(run, Path(root))


def _refuse_odd_id(run: str) -> None:
    if not RUN_ID.fullmatch(run):
        raise InputError(f"run id '{run}' cannot name a folder; use letters, digits, '.', '_', '+' and '-'.")


def _taken(run: str, root: Path) -> InputError:
    return InputError(
        f"run '{run}' is already in {root}; take another name, or remove it (labkit runs remove {run} --runs {root}); "
        f"one on machines continues by: labkit attach {run} --runs {root}."
    )


def _make_folder(root: Path, run: str, *, numbered: bool) -> Path:
    """Make the folder of a run, or of `run-2`, `run-3`, ...: the process that makes a folder has that id."""
    while True:
        folder = root / (free_id(root, run) if numbered else run)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if numbered:
                continue  # another run took it just now
            raise _taken(run, root) from None
        return folder


def _parts(folder: Path) -> tuple[list[Path], int]:
    """Return the event files in order, and the number that the next part gets."""
    spans, following = _spans(folder)
    return [path for _, _, path in spans], following


def _spans(folder: Path) -> tuple[list[tuple[int, int, Path]], int]:
    """Return (first part, last part, file) of the event files in order, and the number that the next part gets.

    What is under any other name was never finished; what a joined file holds too, is left over.
    """
    found = []
    for path in folder.iterdir():
        if match := PART.fullmatch(path.name):
            found.append((int(match[1]), -int(match[2] or match[1]), path))
    chosen, following = [], 0
    for first, minus_last, path in sorted(found):
        if first > following:
            raise InputError(
                f"{folder / f'events-{following:05d}.parquet'} is missing, though later parts are there; "
                "the run cannot be read without it."
            )
        if first == following:
            chosen.append((first, -minus_last, path))
            following = 1 - minus_last
    return chosen, following


FILTERS: Final = ("scheduler", "trace", "cluster", "state", "backend")


@dataclass(frozen=True)
class CatalogEntry:
    """A run in a folder."""

    run: str
    """Its id."""
    info: RunInfo | None
    """Its row; None where `run.json` cannot be read: `why` tells."""
    why: str = ""


def catalog(root: Path | str) -> list[CatalogEntry]:
    """Return the runs under a folder, the newest first; what cannot be read is among them."""
    found = []
    for run in run_ids(root):
        try:
            found.append(CatalogEntry(run, files.read_info(Path(root) / run / "run.json")))
        except InputError as error:
            found.append(CatalogEntry(run, None, str(error)))
    return sorted(found, key=lambda each: "" if each.info is None else each.info.started, reverse=True)


def chosen(runs: Iterable[CatalogEntry], *, names: Sequence[str] = (), **wanted: str | None) -> list[CatalogEntry]:
    """Return the runs of some ids, or all, that have in each column what is wanted, or a part of it.

    Raise InputError if there is no run of an id ("Did you mean ...?").
    """
    there = {each.run: each for each in runs}
    for name in names:
        if name not in there:
            raise unknown("run", name, list(there))
    picked = [there[name] for name in dict.fromkeys(names)] if names else list(there.values())
    for column, part in wanted.items():
        if part is not None:
            picked = [each for each in picked if each.info and part in str(getattr(each.info, column))]
    return picked


def mean_jct(each: CatalogEntry, *, root: Path | str) -> tuple[int, int, float]:
    """Return how many jobs of a run are done, of how many, and their mean JCT in seconds (NaN: none is)."""
    if each.info is None:
        return 0, 0, np.nan
    try:
        record = load(Path(root) / each.run)
    except InputError:
        return 0, 0, np.nan
    return record.n_done, len(record.jobs), float(record.summary["mean_jct_s"])


def size_of(run: str, *, root: Path | str) -> int:
    """Return the bytes that a run takes."""
    return sum(path.lstat().st_size for path in (Path(root) / run).rglob("*") if not path.is_symlink())


def refuse_unremovable(runs: Iterable[str], *, root: Path | str) -> None:
    """Raise if one of some runs and queues is not a folder of its own in `root`, or is being written.

    Raise InputError: which, and why.
    """
    for run in runs:
        folder = Path(root) / run
        if not RUN_ID.fullmatch(run) or folder.resolve().parent != Path(root).resolve() or folder.is_symlink():
            raise InputError(f"'{run}' is no folder of its own in {root}; only runs and queues there are removed.")
        queued = (folder / QUEUE).is_file()
        if not queued and not (folder / "run.json").is_file():
            raise InputError(f"{folder} holds no run.json and no {QUEUE}; only runs and queues are removed.")
        if (by := writer_of(folder)) is not None:
            doing = f"queue '{run}' is being worked" if queued else f"run '{run}' is being written"
            raise InputError(f"{doing} by process {by.get('pid', '?')}; stop that first.")
        for within in run_ids(folder) if queued else ():
            if (by := writer_of(folder / within)) is not None:
                pid = by.get("pid", "?")
                raise InputError(f"run '{within}' of queue '{run}' is being written by process {pid}; stop that first.")


def remove(runs: Sequence[str], *, root: Path | str) -> None:
    """Remove runs, and queues with all their runs; all are looked at before the first one goes.

    Raise InputError as `refuse_unremovable`.
    """
    refuse_unremovable(runs, root=root)
    for run in runs:
        shutil.rmtree(Path(root) / run)

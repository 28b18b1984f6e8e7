"""The runs and queues in a folder: listed, filtered, and removed; nothing outside the folder is ever touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.results import files
from labkit.results.lock import writer_of
from labkit.results.queue import QUEUE
from labkit.results.record import RUN_ID, RunInfo
from labkit.results.store import known_runs, load

FILTERS: Final = ("scheduler", "trace", "cluster", "state", "backend")


@dataclass(frozen=True)
class Shelved:
    """A run in a folder.

    Attributes
    ----------
    info : RunInfo
        Its row; None where `run.json` cannot be read: `why` tells.
    run, why : str
        Its id, and why it cannot be read.
    """

    run: str
    info: RunInfo | None
    why: str = ""


def shelved(root: Path | str) -> list[Shelved]:
    """Return the runs under a folder, the newest first; what cannot be read is among them."""
    found = []
    for run in known_runs(root):
        try:
            found.append(Shelved(run, files.read_info(Path(root) / run / "run.json")))
        except InputError as error:
            found.append(Shelved(run, None, str(error)))
    return sorted(found, key=lambda each: "" if each.info is None else each.info.started, reverse=True)


def chosen(runs: Iterable[Shelved], *, names: Sequence[str] = (), **wanted: str | None) -> list[Shelved]:
    """Return the runs of some ids, or all, that have in each column what is wanted, or a part of it.

    Raises
    ------
    InputError
        If there is no run of an id ("Did you mean ...?").
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


def mean_jct(each: Shelved, *, root: Path | str) -> tuple[int, int, float]:
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

    Raises
    ------
    InputError
        Which, and why.
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
        for within in known_runs(folder) if queued else ():
            if (by := writer_of(folder / within)) is not None:
                pid = by.get("pid", "?")
                raise InputError(f"run '{within}' of queue '{run}' is being written by process {pid}; stop that first.")


def remove(runs: Sequence[str], *, root: Path | str) -> None:
    """Remove runs, and queues with all their runs; all are looked at before the first one goes.

    Raises
    ------
    InputError
        As `refuse_unremovable`.
    """
    refuse_unremovable(runs, root=root)
    for run in runs:
        shutil.rmtree(Path(root) / run)

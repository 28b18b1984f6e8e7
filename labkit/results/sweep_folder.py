"""A sweep on disk: the grid that was asked for, and a line for each cell as soon as it is done.

`sweeps/<name>/` holds `sweep.json` (axes, what their labels stand for, a digest, versions), `cells.jsonl` (a line per
cell that ran, synced; a line that a crash cut short is ignored), and `runs/` with the whole runs, if they are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from labkit.core.below import read_plain, refuse_foreign
from labkit.core.errors import InputError, LabkitError
from labkit.core.files import make_writable, write_text
from labkit.results import files
from labkit.results.comparison import BOUND
from labkit.results.queue import OVER, QueueState, RunQueue
from labkit.results.record import RunRecord
from labkit.results.store import RunWriter, load
from labkit.results.sweeps import cell_table

if TYPE_CHECKING:
    import pandas as pd


GRID, CELLS, RUNS = "sweep.json", "cells.jsonl", "runs"
MAX_SHOWN: Final = 4
Row = dict[str, Any]


class SweepFolder:
    """Takes the cells of one sweep; only one process at a time has it.

    Attributes
    ----------
    path : Path
        The folder.
    rows : dict
        Id of a cell -> its newest row.
    plan : mapping
        The plan that stands in the folder: of the first call, with the versions that it had.
    """

    def __init__(self, path: Path, descriptor: int, *, rows: dict[str, Row], plan: Mapping[str, Any]) -> None:
        self.path, self.rows, self.plan, self._descriptor = path, rows, plan, descriptor

    @classmethod
    def open(cls, path: str | Path, *, plan: Mapping[str, Any]) -> Self:
        """Begin a sweep in a folder, or go on with the one that is there.

        Raise InputError if another process has the folder, or it holds a sweep whose cells are not all in this one, or
        files that are no sweep's.

        `plan`: `axes` (name -> values), `meanings` (label -> what it stands for), and anything else worth keeping.
        """
        folder = Path(path)
        _refuse_others(folder)
        if os.path.lexists(folder):
            refuse_foreign(folder)
        make_writable(folder)
        descriptor = os.open(
            folder / CELLS, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
        )
        try:
            _lock(descriptor, folder)
            stored = _settle(folder, plan)
            rows = read_rows(folder)
            _drop_torn_line(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(folder, descriptor, rows=rows, plan=stored)

    def add(self, row: Row) -> None:
        """Write the row of a cell; it is on the disk when this returns."""
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        size, cell = os.fstat(self._descriptor).st_size, str(row["cell"])
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(28, "no space left for a whole line", str(self.path / CELLS))
            self.rows[cell] = row  # before the wait for the disk: Ctrl-C meanwhile finds the cell done
            os.fsync(self._descriptor)
        except OSError:
            self.rows.pop(cell, None)
            os.ftruncate(self._descriptor, size)
            raise

    def keep(self, record: RunRecord, *, run: str) -> str:
        """Write a whole run, and return where it is within the folder; one of an earlier try gives way."""
        target = self.path / RUNS / run
        scratch = self.path / RUNS / f".{run}.new"
        _remove(scratch)
        info = replace(record.info, run=run)
        with RunWriter.create(scratch, info=info, jobs=record.jobs, cluster=record.cluster) as writer:
            writer.reasons += record.reasons
            writer.append(record.events)
        files.write_info(scratch / run / "run.json", info)  # with the time that it really took
        _remove(target)
        (scratch / run).replace(target)
        _remove(scratch)
        return f"{RUNS}/{run}"

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_sweep(path: str | Path) -> pd.DataFrame:
    """Return the table of a sweep, finished or not, as `labkit.sweep` returned it: a row per cell that ran.

    Raises
    ------
    InputError
        If the folder holds no sweep, or a line of it cannot be read.
    """
    folder = Path(path)
    plan = _read_plan(folder)
    if plan is None:
        raise InputError(f"{folder} holds no sweep; begin one with 'labkit sweep --folder {folder}'.")
    return cell_table(read_rows(folder).values(), axes=plan["axes"], folder=folder)


def read_rows(folder: Path) -> dict[str, Row]:
    """Return the newest row of each cell."""
    rows: dict[str, Row] = {}
    path = folder / CELLS
    raw = read_plain(path) if os.path.lexists(path) else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows[str(row["cell"])] = row
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number} is not the row of a run ({error}); delete the line, and the run is repeated."
            ) from error
    return rows


def digest_of(plan: Mapping[str, Any]) -> str:
    """Return a digest of what a sweep's cells are."""
    text = json.dumps({"axes": plan["axes"], "meanings": plan["meanings"]}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return differences that keep one grid from being a part of another; none where the new one only adds cells."""
    changes = [f"{name} is no axis any more" for name in old["axes"] if name not in new["axes"]]
    changes += [f"{name} is a new axis" for name in new["axes"] if name not in old["axes"]]
    for name, values in old["axes"].items():
        lost = [value for value in values if json.dumps(value) not in map(json.dumps, new["axes"].get(name, values))]
        if lost:
            changes.append(f"{name} lacks {_listed(lost)}")
    for label, meaning in old["meanings"].items():
        if new["meanings"].get(label, meaning) != meaning:
            changes.append(f"{label} was something else then ({_short(meaning)}, now {_short(new['meanings'][label])})")
    return changes


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:MAX_SHOWN])
    return shown + (f" and {len(values) - MAX_SHOWN} more" if len(values) > MAX_SHOWN else "")


def _short(meaning: str) -> str:
    return meaning if len(meaning) != 64 else f"contents {meaning[:8]}"


def _settle(folder: Path, plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write the grid, unless the folder has one that it does not hold; return what the folder was begun with."""
    digest = digest_of(plan)
    old = _read_plan(folder)
    if old is not None and old.get("digest") == digest:
        return old
    changes = differences(old, plan) if old is not None else []
    if changes:
        raise InputError(
            f"{folder} holds another sweep: {'; '.join(changes)}. Use another folder, or ask for all of its runs and "
            "more."
        )
    kept = {name: old[name] for name in old if name not in ("axes", "meanings", "digest")} if old else {}
    whole = {"digest": digest, **plan, **kept}
    write_text(folder / GRID, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return whole


def _read_plan(folder: Path) -> dict[str, Any] | None:
    path = folder / GRID
    try:
        plan = json.loads(read_plain(path))
        if isinstance(plan["axes"], dict) and isinstance(plan["meanings"], dict):
            return dict(plan)
        raise TypeError("axes and meanings are no objects")
    except FileNotFoundError:
        return None
    except InputError:  # it is no plain file
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} does not describe a sweep ({error!r}); take another folder.") from error


def _refuse_others(folder: Path) -> None:
    """Raise if a folder holds files and none of a sweep: they would be mixed."""
    if not folder.is_dir() or (folder / GRID).exists() or (folder / CELLS).exists():
        return
    if found := sorted(path.name for path in folder.iterdir()):
        raise InputError(f"{folder} holds other files ({_listed(found)}); name an empty folder, or a new one.")


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{folder} belongs to a sweep that is running; wait for it, stop it, or take another folder."
        ) from None


def _drop_torn_line(descriptor: int) -> None:
    """Forget what a crash left behind the last whole line."""
    size = os.fstat(descriptor).st_size
    raw = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, raw.rfind(b"\n") + 1)


def _remove(folder: Path) -> None:
    import shutil

    if folder.exists():
        shutil.rmtree(folder)


def queue_records(queue: RunQueue, folder: Path) -> dict[str, RunRecord]:
    """Return the records of the runs whose jobs are all done, by run; one that cannot be read is left out."""
    found = {}
    for each in queue.runs:
        if each.state == QueueState.DONE and not (folder / each.run).is_symlink():
            try:
                found[each.run] = load(folder / each.run)
            except LabkitError:
                continue
    return found


def queue_table(queue: RunQueue, records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return one row per run that is over: trace, cluster, scheduler, seed (the repeat), and what a sweep's table has.

    A run that failed, was cut at its time limit or cannot be read has the reason as its error, and no metrics.
    """
    runs = [each for each in queue.runs if each.state in OVER]
    cluster = next((record.info.cluster for record in records.values()), "")
    rows: list[dict[str, Any]] = []
    for each in runs:
        record = records.get(each.run)
        error = each.why or each.state if each.state != QueueState.DONE else "" if record else "cannot be read"
        rows.append({
            "keys": {"trace": queue.trace, "cluster": cluster, "scheduler": each.scheduler, "seed": each.repeat},
            "error": str(error), "run": each.run if record else "", "metrics": record.summary if record else {},
            BOUND: record.info.config.get(BOUND) if record else None,
            "wall_s": record.info.wall_s if record else None,
        })  # fmt: skip
    axes: dict[str, Sequence[Any]] = {
        "trace": [queue.trace], "cluster": [cluster], "scheduler": queue.schedulers,
        "seed": sorted({each.repeat for each in runs}),
    }  # fmt: skip
    table = cell_table(rows, axes=axes)
    table.attrs["pairs"] = "repeat"
    return table

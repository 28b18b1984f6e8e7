"""Remove the folders of runs that are over: only folders with labkit's label, and never through a link."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from labkit.testbed.agent.folder_layout import LABEL, AgentRunRecord
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.messages import FolderRow, wall_s
from labkit.testbed.agent.runs import AgentRuns

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def run_in_subprocess(loop: Loop, work: Callable[[], Any], *, done: Callable[[Any], None]) -> None:
    """Run some work in a child process; `done` is called with its result, or with None if it failed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    output = bytearray()

    def read(_: int) -> None:
        data = os.read(reading, 1 << 16)
        output.extend(data)
        if not data:
            loop.off(reading)
            os.close(reading)
            os.waitpid(pid, 0)
            done(json.loads(output) if output else None)

    loop.on(reading, read)


def _work(work: Callable[[], Any], writing: int) -> NoReturn:
    """Run in the forked child: close every inherited descriptor except the result pipe."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(work()).encode())
        status = 0
    finally:
        os._exit(status)


def plan(runs: AgentRuns, *, older_s: float) -> list[FolderRow]:
    """Return a row for each entry in the folder of runs: whether it is to be removed, and why."""
    living = {key.run for key in runs.processes.find({})}
    names = sorted(entry.name for entry in os.scandir(runs.folder))
    return [_judge(runs, name, living=living, older_s=older_s) for name in names]


def _judge(runs: AgentRuns, name: str, *, living: Iterable[str], older_s: float) -> FolderRow:
    why = _reason_to_keep(runs, name, living)
    if why:
        return FolderRow(run=name, remove=False, why=why)
    age_s = round(wall_s() - (runs.all[name].record.over_s or wall_s()), 1)
    old = age_s >= older_s
    return FolderRow(run=name, remove=old, why="over" if old else f"over for {age_s:g} s only", age_s=age_s)


def _reason_to_keep(runs: AgentRuns, name: str, living: Iterable[str]) -> str:
    folder = runs.folder / name
    if folder.is_symlink() or not folder.is_dir() or AgentRunRecord.read(folder) is None or name not in runs.all:
        return "bears no label of labkit"
    here = runs.all[name]
    if not here.record.over:
        return "continues"
    if here.record.running or name in living:
        return "has processes"
    return ""


def carry_out(folder: Path, rows: Iterable[FolderRow], *, dry_run: bool) -> list[FolderRow]:
    """Remove the folders of a plan, which may take long; return its rows with the files and bytes that were found."""
    return [_carry_out(folder, row, dry_run=dry_run) for row in rows]


def _carry_out(folder: Path, row: FolderRow, *, dry_run: bool) -> FolderRow:
    counted = {"n_files": 0, "n_bytes": 0}
    why, removed = row.why, False
    if row.remove:
        try:
            _remove_run(folder, row.run, counted, dry_run=dry_run)
            removed = not dry_run
        except (OSError, RecursionError) as error:
            why = f"could not be removed: {error}"
    return replace(row, why=why, removed=removed, n_files=counted["n_files"], n_bytes=counted["n_bytes"])


def _remove_run(folder: Path, name: str, counted: dict[str, int], *, dry_run: bool) -> None:
    """Remove the folder of a run, its label last: a folder that is removed in part still has it."""
    runs = os.open(folder, DIRECTORY)
    try:
        run = os.open(name, DIRECTORY, dir_fd=runs)
        try:
            device = os.fstat(run).st_dev
            entries = [entry for entry in os.scandir(run) if entry.name != LABEL]
            for entry in entries:
                _remove(run, entry, counted, device=device, dry_run=dry_run)
            counted["n_files"] += 1
            if not dry_run:
                os.unlink(LABEL, dir_fd=run)
                os.rmdir(name, dir_fd=runs)
        finally:
            os.close(run)
    finally:
        os.close(runs)


def _remove(above: int, entry: os.DirEntry[str], counted: dict[str, int], *, device: int, dry_run: bool) -> None:
    if entry.is_dir(follow_symlinks=False):
        below = os.open(entry.name, DIRECTORY, dir_fd=above)
        try:
            if os.fstat(below).st_dev != device:
                raise OSError(f"{entry.name!r} is another file system, mounted there")
            for each in list(os.scandir(below)):
                _remove(below, each, counted, device=device, dry_run=dry_run)
        finally:
            os.close(below)
        if not dry_run:
            os.rmdir(entry.name, dir_fd=above)
        return
    found = entry.stat(follow_symlinks=False)
    counted["n_files"] += 1
    counted["n_bytes"] += found.st_blocks * 512 if found.st_nlink == 1 else 0
    if not dry_run:
        os.unlink(entry.name, dir_fd=above)

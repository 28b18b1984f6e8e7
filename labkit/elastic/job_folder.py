"""The folder of a job: made, claimed by one job at a time, and filled with what its processes read."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.resume import check_resume
from labkit.elastic.controller.job_files import EVENTS, LEASES, LOCK, STATE, JobConfig
from labkit.elastic.protocol.blocks import Vector, pack
from labkit.elastic.protocol.program import Program
from labkit.elastic.protocol.spec import Spec
from labkit.elastic.server.block import Block
from labkit.elastic.server.update_rule import UpdateRule
from labkit.elastic.transport import TransportError, private_folder


class RunningError(InputError):
    """A job still runs in the folder that was given to another job."""


@contextlib.contextmanager
def job_folder(folder: Path | None) -> Iterator[Path]:
    """Make the folder of a job; if the block fails, a folder that was made here is removed.

    Parameters
    ----------
    folder : Path or None
        The folder; None: a new one in the system's folder of temporary files.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    made = folder is None or not folder.exists()
    try:
        home = private_folder(Path(tempfile.mkdtemp(prefix="labkit-job-")) if folder is None else folder)
    except TransportError:
        raise
    except OSError as error:
        raise InputError(f"folder {folder or tempfile.gettempdir()} cannot be made: {error.strerror}.") from None
    try:
        yield home
    except BaseException:
        if made:
            shutil.rmtree(home, ignore_errors=True)
        raise


def fill(home: Path, program: Program, rule: UpdateRule, spec: Spec, config: JobConfig, *, anyway: bool) -> None:
    """Write program, rule of updates, spec, configuration and first checkpoint into the folder of a job.

    A job that is refused leaves the folder as it was.

    Raises
    ------
    RunningError
        If a job runs in the folder.
    InputError
        If a checkpoint in the folder is of another training, unless `anyway`.
    """
    with (home / LOCK).open("a") as lock:
        _claim(lock, home)
        differs = check_resume(home, spec, anyway=anyway)
        program.save(home)
        if rule:
            rule.save(home)
        _set_aside(home)
    spec.save(home)
    _save_first(spec, home, pack(program.model))
    replace(config, differs=differs).save(home)


def _claim(lock: TextIO, folder: Path) -> None:
    """Raise RunningError if a job still runs in a folder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = f"a job is running in {folder}; wait until it is over, or give another folder."
        raise RunningError(told) from None


def _set_aside(folder: Path) -> None:
    """Remove the state of an earlier job in this folder, and rename its events; its checkpoints stay."""
    (folder / STATE).unlink(missing_ok=True)
    (folder / LEASES).unlink(missing_ok=True)
    if (folder / EVENTS).exists():
        n = sum(1 for _ in folder.glob(f"*-{EVENTS}"))
        (folder / EVENTS).rename(folder / f"{n}-{EVENTS}")


def _save_first(spec: Spec, folder: Path, vector: Vector) -> None:
    """Write the checkpoint of step 0, unless the folder has a checkpoint of a later step."""
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps() == [0]:  # of a job that has not trained: the new model replaces it
        checkpoints.set_aside(0)
    if checkpoints.steps():
        return
    blocks = [
        Block(number=number, params=part, state=checkpoints.optimizer.init(len(part)))
        for number, part in enumerate(spec.layout.blocks(vector))
    ]
    checkpoints.save(0, {"launcher": blocks})

"""The folder of a job: made, claimed by one job at a time, and filled with what its processes read."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.resume import check_resume
from labkit.elastic.controller.job_files import EVENTS, LEASES, LOCK, STATE, JobConfig
from labkit.elastic.proof import proved
from labkit.elastic.protocol.blocks import Vector, pack
from labkit.elastic.protocol.program import Program
from labkit.elastic.protocol.spec import Spec
from labkit.elastic.server.block import Block
from labkit.elastic.server.update_rule import UpdateRule
from labkit.elastic.transport import TransportError, private_folder

LARGE_BYTES: Final = 300 << 20
"""Size of a pickled program from which on it is reported."""


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


@contextlib.contextmanager
def claimed(home: Path) -> Iterator[TextIO]:
    """Claim the folder of a job; yield the lock, which its controller is to inherit: there is no moment without one.

    Raises
    ------
    RunningError
        If a job runs in the folder, or is about to.
    """
    with (home / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"a job is running in {home}; wait until it is over, or give another folder."
            raise RunningError(told) from None
        yield lock


def fill(home: Path, program: Program, rule: UpdateRule, spec: Spec, config: JobConfig, *, anyway: bool) -> None:
    """Write program, rule of updates, spec, configuration and first checkpoint into the folder of a job, claimed here.

    A job that is refused leaves the folder as it was.

    Raises
    ------
    InputError
        If a checkpoint in the folder is of another training, unless `anyway`; or the program would train another model
        in its processes.
    """
    differs = check_resume(home, spec, anyway=anyway)
    told: list[str] = []

    def check(pickled: Path) -> None:
        told.extend(_about_size(pickled.stat().st_size))
        told.append(proved(program, pickled, spec, how=config.proof))

    program.save(home, before=check)
    if rule:
        rule.save(home)
    _set_aside(home)
    spec.save(home)
    _save_first(spec, home, pack(program.model))
    replace(config, differs=differs, told=told).save(home)


def _about_size(n_bytes: int) -> list[str]:
    """Return a line about a large program, and print it: each worker loads all of it."""
    if n_bytes < LARGE_BYTES:
        return []
    told = (
        f"model, data and loss take {n_bytes / 1e9:.1f} GB: the job's folder and each worker have a copy. An array "
        "mapped from a file (np.memmap, np.load(mmap_mode='r')) is sent as its path"
    )
    print(f"labkit: {told}.", file=sys.stderr, flush=True)
    return [told]


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

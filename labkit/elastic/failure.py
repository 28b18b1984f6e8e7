"""The message of a job that failed: the reason, its newest good checkpoint, and the folder of its logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints

TAIL_BYTES: Final = 4096
LINE: Final = 500
"""Longest quoted line of a log, in characters."""


def failed(folder: Path, why: str, *, checkpoints: Checkpoints) -> str:
    """Return why a job failed, in one line, with the newest good checkpoint and the folder of its logs.

    Parameters
    ----------
    folder : Path
        Folder of the job.
    why : str
        Reason in the controller's last event; "" if the controller died.
    checkpoints : Checkpoints
        Checkpoints of the job.
    """
    told = why or f"the controller died: {last_line(folder / 'controller.log') or 'it left no message'}"
    good = next((step for step in reversed(checkpoints.steps()) if checkpoints.is_good(step)), None)
    left = "no checkpoint is good" if good is None else f"the newest good checkpoint is {checkpoints.path(good)}"
    return f"{told.rstrip().removesuffix('.')} ({left}; logs: {folder})."


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank: of a traceback, the error; "" if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:LINE] for line in reversed(lines) if line.strip()), "")

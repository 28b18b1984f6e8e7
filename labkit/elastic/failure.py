"""The message of a job that failed: the reason, its newest good checkpoint, and the log of the member that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints

TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 12
MEMBER: Final = re.compile(r"(ps|worker)-\d+")
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


def log_of(folder: Path, why: str, events: Iterable[Mapping[str, Any]]) -> tuple[Path, str] | None:
    """Return the log of the member that a job failed by, and its last lines; None if there is none or it is empty.

    This is the member that the reason begins with, or that last reported an error of its own or ended with one, else
    the controller. A member on another host has its log there.
    """
    name = "controller"
    for event in events:
        if event["event"] in ("failed", "raised") or (event["event"] == "left" and not event["expected"]):
            name = str(event["name"])
    named = why.partition(":")[0]
    name = named if MEMBER.fullmatch(named) else name
    log = folder / f"{Path(name).name}.log"
    lines = last_lines(log)
    return (log, "\n".join(line[:LINE] for line in lines[-TAIL_LINES:])) if lines else None


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log that are not blank, of `TAIL_BYTES`; [] if there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip()]


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank: of a traceback, the error; "" if there is none."""
    lines = last_lines(log)
    return lines[-1].strip()[:LINE] if lines else ""

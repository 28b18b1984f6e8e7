"""How a run is doing, in a word and a sentence: also one that was stopped, interrupted, or whose process was killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from labkit.results.record import TAKEN_BY, RunInfo, RunState

KILLED: Final = "killed"
SILENT_S: Final = 10.0
"""Seconds without an event after which a run on machines, which tells something each second, is said to be silent."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run is doing.

    Attributes
    ----------
    state : str
        ready, running, paused, stopping, done, stopped, failed; killed: its process ended without saying how.
    text : str
        What there is to say beside; empty: nothing.
    """

    state: str
    text: str = ""

    @property
    def over(self) -> bool:
        """True when nothing more will happen by itself."""
        return self.state in (*OVER, KILLED)


OVER: Final = tuple(str(state) for state in (RunState.DONE, RunState.STOPPED, RunState.FAILED, RunState.TAKEN_OVER))


def status_of(
    info: RunInfo, *, writer: Mapping[str, Any] | None, folder: Path, silent_s: float = 0.0, heard: bool = True
) -> RunStatus:
    """Return how a run is doing that has a folder.

    Parameters
    ----------
    info : RunInfo
        As it stands in the folder.
    writer : mapping or None
        The process that writes it, as `labkit.results.lock.writer_of` returns it.
    folder : Path
        To name in commands.
    silent_s : float
        Seconds since its last event.
    heard : bool
        Whether there was one yet.

    Examples
    --------
    >>> info = RunInfo(run="r", scheduler="las", backend="testbed", state=RunState.RUNNING)
    >>> status_of(info, writer=None, folder=Path("runs/r"))
    RunStatus(state='killed', text='its process is gone; go on with: labkit attach runs/r')
    """
    on_machines = info.backend != "simulator"
    if writer is not None:
        silent = f", no news for {silent_s:.0f} s" if silent_s >= SILENT_S and on_machines else ""
        connecting = "" if heard or not on_machines else "connecting to its hosts, "
        by = f"written by process {writer.get('pid', '?')} on {writer.get('host', '?')}"
        return RunStatus("running", f"{connecting}{by}{silent}")
    if info.state == RunState.DONE:
        return RunStatus("done")
    if info.state == RunState.TAKEN_OVER:
        return RunStatus(str(info.state), f"taken over by {info.config.get(TAKEN_BY, 'another process')}")
    killed = info.state == RunState.RUNNING
    how = "its process is gone" if killed else str(info.state)
    onward = f"; go on with: labkit attach {folder}" if on_machines else ""
    return RunStatus(KILLED if killed else str(info.state), f"{how}{onward}")

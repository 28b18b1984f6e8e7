"""All that is shown of a run, folded from its events, and how it is doing: one model for all views."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from labkit.core.cluster import Cluster
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.core.text import amount, human_s
from labkit.live.board import Board
from labkit.live.decisions import DecisionLog
from labkit.live.signals import Signals
from labkit.results.record import TAKEN_BY, RunInfo, RunState


class LiveModel:
    """What is shown of a run as far as its events go.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Of the run.
    reasons : sequence of str
        Texts that events name by number; may grow.
    sizes : array, optional
        (N,) bytes of each job's parameters; by default those of the catalogue.
    """

    def __init__(
        self, jobs: Jobs, cluster: Cluster, *, reasons: Sequence[str] = (), sizes: Floats | None = None
    ) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.board = Board(jobs, cluster)
        """What each job does since when, and how full each machine is."""
        self.signals = Signals(jobs, cluster, sizes=sizes)
        """How the run does over time."""
        self.decisions = DecisionLog(jobs, cluster, reasons=reasons)
        """What was decided lately, and why."""
        self.lock = threading.RLock()
        """For a thread that folds and threads that read."""

    def fold(self, rows: Events) -> None:
        """Take note of a batch of events."""
        if not len(rows):
            return
        with self.lock:
            self.board.fold(rows)
            self.signals.fold(rows)
            self.decisions.fold(rows)


class WatchedSource(Protocol):
    """A run that views can show: `FollowedRun`, and the notebook's `LiveRun`.

    Attributes
    ----------
    name : str
        What to call it, and by which it gets its colour: its scheduler.
    model : LiveModel
        What is shown.
    status : RunStatus
        How it is doing.
    now_s : float
        Its clock.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> LiveModel: ...  # noqa: D102
    @property
    def status(self) -> RunStatus: ...  # noqa: D102
    @property
    def now_s(self) -> float: ...  # noqa: D102

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a view after every change."""

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Leave a view alone from now on."""


def cards_of(model: LiveModel | None, now_s: float = 0.0) -> list[list[str]]:
    """Return [name, value] of each card.

    >>> cards_of(None)[0]
    ['clock', '–']
    """
    names = ["clock", "mean JCT so far", "running", "waiting", "completed", "GPUs held", "decisions"]
    if model is None:
        return [[name, "–"] for name in names]
    board = model.board
    names[5] = f"{board.unit} held"
    built = float(model.cluster.capacity[:, board.resource].sum())
    values = (
        human_s(now_s), human_s(board.mean_jct_s), f"{board.n_running:,}", f"{board.n_waiting:,}",
        f"{board.n_done:,} / {len(board.jobs):,}", f"{amount(board.gpus_in_use)} / {amount(built)}",
        f"{board.n_decisions:,}",
    )  # fmt: skip
    cards = [[name, value] for name, value in zip(names, values, strict=True)]
    if board.n_dropped:
        cards.append(["given up", f"{board.n_dropped:,}"])
    return cards


KILLED: Final = "killed"
SILENT_S: Final = 10.0
"""Seconds without an event after which a run on machines, which tells something each second, is said to be silent."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run is doing."""

    state: str
    """ready, running, paused, stopping, done, stopped, failed; killed: its process ended without saying how."""
    text: str = ""
    """What there is to say beside; empty: nothing."""

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
        The process that writes it, as `labkit.results.files.writer_of` returns it.
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
    RunStatus(state='killed', text='its process is gone; continue with: labkit attach runs/r')
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
    onward = f"; continue with: labkit attach {folder}" if on_machines else ""
    return RunStatus(KILLED if killed else str(info.state), f"{how}{onward}")

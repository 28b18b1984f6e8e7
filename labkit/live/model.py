"""All that is shown of a run, folded from its events: one model for terminals, browsers and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from labkit.core.cluster import Cluster
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.core.text import amount, human_s
from labkit.live.board import Board
from labkit.live.decisions import DecisionLog
from labkit.live.signals import Signals
from labkit.live.status import RunStatus


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

    Attributes
    ----------
    board : Board
        What each job does since when, and how full each machine is.
    signals : Signals
        How the run does over time.
    decisions : DecisionLog
        What was decided lately, and why.
    lock : RLock
        For a thread that folds and threads that read.
    """

    def __init__(
        self, jobs: Jobs, cluster: Cluster, *, reasons: Sequence[str] = (), sizes: Floats | None = None
    ) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.board = Board(jobs, cluster)
        self.signals = Signals(jobs, cluster, sizes=sizes)
        self.decisions = DecisionLog(jobs, cluster, reasons=reasons)
        self.lock = threading.RLock()

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
        f"{board.n_done:,} / {len(board.jobs):,}", f"{amount(board.gpus_held)} / {amount(built)}",
        f"{board.n_decisions:,}",
    )  # fmt: skip
    cards = [[name, value] for name, value in zip(names, values, strict=True)]
    if board.n_dropped:
        cards.append(["given up", f"{board.n_dropped:,}"])
    return cards

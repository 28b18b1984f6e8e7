"""An elastic job to watch: its loss is drawn while it trains, and servers and workers come and go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from labkit.elastic.controller.job_files import now
from labkit.elastic.job import Job
from labkit.elastic.requests import ScaleRequest, follow
from labkit.elastic.result import Result

REDRAW_S: Final = 0.5
"""Drawing costs the kernel some hundredths of a second."""
BEHIND_S: Final = 0.3
RARELY: Final = 4
"""When events are read so long after they happened, the picture is drawn so many times as rarely: requests go first."""


def watch(
    job: Job,
    at: Iterable[str] = (),
    *,
    strategy: str = "handover",
    n_steps: int | None = None,
    redraw_s: float = REDRAW_S,
) -> Result:
    """Draw the loss of a job while it trains, and make requests when they are due; return its result at the end.

    Parameters
    ----------
    job : Job
        That has just been started.
    at : iterable of str
        Requests as `labkit train --at` takes them: "200:+1ps", "5s:-1worker".
    strategy : str
        Of the requests: handover, suspend, checkpoint.
    n_steps : int, optional
        As wide is the axis from the beginning.
    redraw_s : float
        Seconds between two pictures.

    Examples
    --------
    >>> from labkit.elastic import models, start
    >>> from labkit.elastic.data import dataset
    >>> job = start(models.build("digits"), dataset("digits"), models.loss("digits"), steps=900)  # doctest: +SKIP
    >>> watch(job, ["200:+1ps", "500:-1worker"])  # doctest: +SKIP
    """
    picture = _Picture(n_steps, redraw_s=redraw_s)
    result = follow(job, [ScaleRequest.parse(line) for line in at], strategy=strategy, told=picture.told)
    picture.draw()
    return result


class _Picture:
    """The figure in a cell's output, drawn anew now and then."""

    def __init__(self, n_steps: int | None, *, redraw_s: float) -> None:
        self._n_steps, self._redraw_s = n_steps, redraw_s
        self._events: list[Mapping[str, Any]] = []
        self._shown: Any = None
        self._drawn_s = time.monotonic()

    def told(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        if event["event"] not in ("stepped", "handed_over", "moved", "owns"):
            self._events.append(event)
        if event["event"] != "loss":
            return
        behind = now() - event["time"] > BEHIND_S
        if self._shown is None or time.monotonic() - self._drawn_s >= self._redraw_s * (RARELY if behind else 1):
            self.draw()

    def draw(self) -> None:
        """Draw what is known so far, in place of the last picture."""
        from IPython.display import display

        from labkit.plots.training import plot_training

        chart, show = plot_training(self._events, n_steps=self._n_steps), cast(Any, display)
        if self._shown is None:
            self._shown = show(chart, display_id=True)
        else:
            self._shown.update(chart)
        self._drawn_s = time.monotonic()

"""An elastic job to watch: its loss is drawn while it trains, and servers and workers come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any, Final, cast

from labkit.elastic.job import Job, ScaleRequest, follow
from labkit.elastic.result import Result

REDRAW_S: Final = 0.5
"""Drawing costs the kernel some hundredths of a second, and more where the machine is busy."""


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
    requests = [ScaleRequest.parse(line) for line in at]
    picture, over, followed = _Picture(n_steps), Event(), Future[Result]()

    def on_event(event: Mapping[str, Any]) -> None:
        if over.is_set():
            raise RuntimeError("the cell was interrupted")
        picture.add(event)

    def run() -> None:
        try:
            followed.set_result(follow(job, requests, strategy=strategy, on_event=on_event))
        except BaseException as error:
            followed.set_exception(error)
        over.set()

    Thread(target=run, name="labkit-follow", daemon=True).start()  # requests are not to wait for a picture
    try:
        while not over.wait(redraw_s):
            picture.draw_new()
    finally:
        over.set()
    result = followed.result()
    picture.draw()
    return result


class _Picture:
    def __init__(self, n_steps: int | None) -> None:
        self._n_steps = n_steps
        self._events: list[Mapping[str, Any]] = []
        self._shown: Any = None
        self._n_losses = self._n_drawn = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event; from any thread."""
        if event["event"] not in ("stepped", "handed_over", "moved", "owns"):
            self._events.append(event)
        self._n_losses += event["event"] == "loss"

    def draw_new(self) -> None:
        """Draw, if there are losses that the last picture does not have."""
        if self._n_losses > self._n_drawn:
            self.draw()

    def draw(self) -> None:
        """Draw what is known so far, in place of the last picture."""
        from IPython.display import display

        from labkit.plots.training import plot_training

        self._n_drawn = self._n_losses
        chart, show = plot_training(list(self._events), n_steps=self._n_steps), cast(Any, display)
        if self._shown is None:
            self._shown = show(chart, display_id=True)
        else:
            self._shown.update(chart)

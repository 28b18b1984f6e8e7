"""Widgets that show a run: the Gantt, the heat-map, the signals, the decisions, the cards and the state.

Each paints what a feed of `labkit.live` tells, nothing else; the page of `labkit watch --browser` has the same scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import anywidget
import traitlets

from labkit.live.feeds import Feed, GanttFeed, Ghost, HeatMapFeed, SignalsFeed, Told, decisions_of, source
from labkit.live.model import WatchedSource, cards_of

HERE: Final = Path(__file__).parent
STYLE: Final = source("live.css") + source("lab.css", folder=HERE)


class LiveView(anywidget.AnyWidget):
    """A view of a run; give it another one with `watch`.

    The browser asks for everything once, when it shows the view, and gets only what is new from then on.
    """

    _css = STYLE
    kind: ClassVar[type[Feed]]
    feed: Feed | None = None

    def __init__(self, run: WatchedSource | None = None, *, ghosts: Sequence[Ghost] = ()) -> None:
        super().__init__()
        self.on_msg(self._hear)
        if run is not None:
            self.watch(run, ghosts=ghosts)

    @property
    def run(self) -> WatchedSource | None:
        """The run that is shown."""
        return None if self.feed is None else self.feed.run

    @property
    def ghosts(self) -> tuple[Ghost, ...]:
        """Earlier runs of which it shows traces."""
        return () if self.feed is None else self.feed.ghosts

    def watch(self, run: WatchedSource, *, ghosts: Sequence[Ghost] = ()) -> None:
        """Show this run from now on, with traces of earlier ones."""
        if self.run is not None:
            self.run.unlisten(self._tell)
        self.feed = self.kind(run, ghosts=ghosts)
        run.listen(self._tell)
        self.tell_all()

    def tell_all(self) -> None:
        """Send everything there is."""
        if self.feed is not None:
            self._pass_on(self.feed.everything())

    def _tell(self) -> None:
        """Send what is new."""
        if self.feed is not None:
            self._pass_on(self.feed.news())

    def _pass_on(self, told: Told) -> None:
        content, rows = told
        self.send(content, [rows])

    def _hear(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("kind") == "hello":
            self.tell_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.run.name if self.run else 'nothing'}>"


class LiveGantt(LiveView):
    """When each job runs: a row per job in order of arrival, a bar while it holds tasks, darker with more GPUs."""

    kind = GanttFeed
    _esm = source(*GanttFeed.scripts)


class LiveHeatMap(LiveView):
    """How full each machine is: over time, and its GPUs now; device groups stand apart."""

    kind = HeatMapFeed
    _esm = source(*HeatMapFeed.scripts)


class LiveSignals(LiveView):
    """Throughput, queue, cores, GPUs, load of links and losses over time."""

    kind = SignalsFeed
    _esm = source(*SignalsFeed.scripts)


class LiveText(anywidget.AnyWidget):
    """A view of a few words or numbers, which are told anew when they change; give it another run with `watch`."""

    _css = STYLE

    def __init__(self, run: WatchedSource | None = None) -> None:
        super().__init__()
        self.run: WatchedSource | None = None
        if run is not None:
            self.watch(run)

    def watch(self, run: WatchedSource) -> None:
        """Show this run from now on."""
        if self.run is not None:
            self.run.unlisten(self._tell)
        self.run = run
        run.listen(self._tell)
        self._tell()

    def _tell(self) -> None:
        """Show what is so now."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class LiveCards(LiveText):
    """A run in a few numbers, now."""

    _esm = source("cards.js")
    cards: Any = traitlets.List(cards_of(None)).tag(sync=True)

    def _tell(self) -> None:
        if self.run is not None:
            self.cards = cards_of(self.run.model, self.run.now_s)


class LiveDecisions(LiveText):
    """What was decided lately, and why."""

    _esm = source("decisions.js")
    decisions: Any = traitlets.List([]).tag(sync=True)

    def _tell(self) -> None:
        if self.run is not None:
            self.decisions = decisions_of(self.run.model)


class LiveStatus(LiveText):
    """How a run is doing: a word and a sentence."""

    _esm = source("status.js")
    status: Any = traitlets.List(["ready", ""]).tag(sync=True)

    def _tell(self) -> None:
        if self.run is not None:
            status = self.run.status
            self.status = [status.state, status.text]

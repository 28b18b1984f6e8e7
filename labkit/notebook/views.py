"""Widgets that show a run: the Gantt, heat-map, signals, decisions, cards and state, each alone or all in one.

Each paints what a feed of `labkit.live` tells, nothing else; the page of `labkit watch --browser` has the same scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import anywidget
import ipywidgets as ipw
import traitlets

from labkit.core.errors import LabkitError
from labkit.live.feeds import Feed, FeedMessage, GanttFeed, Ghost, HeatMapFeed, SignalsFeed, decisions_of, source
from labkit.live.follow import EVERY_S, FollowedRun
from labkit.live.model import WatchedSource, cards_of
from labkit.notebook.run import one_line, running_loop
from labkit.results.store import find

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
        if self.feed is not None:
            self._pass_on(self.feed.news())

    def _pass_on(self, message: FeedMessage) -> None:
        content, rows = message
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
    """Throughput, queue, cores, GPUs, link utilisation and losses over time."""

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


TABS: Final = ("Gantt", "Signals", "Heat-map", "Decisions")


class RunPanels(ipw.VBox):  # type: ignore[misc]
    """The views of a run, one below the other; the lab's widget and `RunBoard` have them."""

    def __init__(self) -> None:
        self.cards, self.gantt, self.signals = LiveCards(), LiveGantt(), LiveSignals()
        self.heat_map, self.decisions = LiveHeatMap(), LiveDecisions()
        shown = [self.gantt, self.signals, self.heat_map, self.decisions]
        tabs = ipw.Tab(shown, titles=TABS, layout=ipw.Layout(margin="0"))
        super().__init__([self.cards, tabs], layout=ipw.Layout(flex="1 1 0", min_width="0", grid_gap="10px"))

    def watch(self, run: WatchedSource, *, ghosts: Sequence[Ghost] = ()) -> None:
        """Show this run from now on, with traces of earlier ones on the Gantt."""
        self.cards.watch(run)
        self.gantt.watch(run, ghosts=ghosts)
        for view in (self.signals, self.heat_map):
            view.watch(run)
        self.decisions.watch(run)


class RunBoard(ipw.VBox):  # type: ignore[misc]
    """Look on at a run from a notebook: one of this kernel, or one that any process writes, or wrote, to a folder.

    >>> RunBoard("runs/optimus-testbed-0")                                                   # doctest: +SKIP

    Parameters
    ----------
    run : WatchedSource, path or str
        A `LiveRun`, the folder of a run, or its id under `runs`. Nothing is written, and a run is not steered.
    runs : path
        Where runs are kept.

    Raises
    ------
    InputError
        If there is no such run ("Did you mean ...?"), or a file of it is missing or damaged.
    """

    def __init__(self, run: WatchedSource | Path | str, *, runs: Path | str = "runs") -> None:
        self.run: WatchedSource = FollowedRun(find(run, runs=runs)) if isinstance(run, str | Path) else run
        self.status, self.panels = LiveStatus(self.run), RunPanels()
        self.panels.watch(self.run)
        super().__init__([self.status, self.panels], layout=ipw.Layout(grid_gap="10px", max_width="1240px"))
        self.add_class("labkit-app")
        self._loop = running_loop()
        if isinstance(self.run, FollowedRun) and self._loop is not None:
            self._task = self._loop.create_task(self._follow(self.run))

    async def _follow(self, run: FollowedRun) -> None:
        """Look at the folder as often as it is written, until the run is over."""
        while run.going:
            await asyncio.sleep(EVERY_S)
            try:
                run.update()
            except (LabkitError, OSError) as error:  # the folder was removed, say
                self.status.status = ["unreachable", one_line(error)]
                return

    def __repr__(self) -> str:
        return f"<RunBoard of {self.run.name}>"

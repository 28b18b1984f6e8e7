"""A run as one widget: cards, and tabs with the Gantt, the signals, the machines and the decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ipywidgets as ipw

from labkit.core.errors import LabkitError
from labkit.live.feeds import Ghost
from labkit.live.follow import EVERY_S, FollowedRun
from labkit.live.model import WatchedSource
from labkit.notebook.loop import one_line, running_loop
from labkit.notebook.views import LiveCards, LiveDecisions, LiveGantt, LiveHeatMap, LiveSignals, LiveStatus
from labkit.results.store import find

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

"""The lab as one widget: choose, run, watch, compare, and take away as code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import ipywidgets as ipw

from labkit.core.errors import LabkitError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.live.feeds import Ghost
from labkit.notebook.code import Choice
from labkit.notebook.controls import CodePanel, Controls, RunForm
from labkit.notebook.html import runs_html
from labkit.notebook.loop import one_line, running_loop
from labkit.notebook.panels import RunPanels
from labkit.notebook.run import READY, LiveRun
from labkit.notebook.where import place
from labkit.results import RunRecord
from labkit.schedulers import available

MOST_GHOSTS: Final = 2
"""Earlier runs that leave traces on the Gantt."""


class LabApp(ipw.VBox):  # type: ignore[misc]
    """A trace, a cluster and a scheduler, as a run that can be watched and steered.

    Every button is a method too: `start`, `pause`, `step`, `stop`.

    >>> app = LabApp("traces/demo.csv", cluster="demo")                                      # doctest: +SKIP
    >>> app                                                                                  # doctest: +SKIP

    Parameters
    ----------
    trace : path or Jobs
        What to run; a path can be changed in the form.
    cluster, scheduler : str
        What the form shows first.
    where : str
        "simulation"; or "testbed": jobs really train, on the hosts of an inventory that the form names instead of a
        cluster. Where there is none, a laptop testbed comes up, and ends with the notebook's kernel.
    schedulers : mapping, optional
        Schedulers of your own, by the name of the variable that holds them.
    seed : int
        Of the simulator.
    speedup : float
        Seconds of the run per second of waiting; inf: as fast as possible.

    Attributes
    ----------
    run : LiveRun or None
        The run that is shown; None where the form asks for something that cannot be run.
    records : list of RunRecord
        The runs that are over, for tables and figures of your own.
    """

    def __init__(
        self,
        trace: Jobs | str | Path,
        *,
        cluster: str = "demo",
        scheduler: str = "srtf",
        where: str = "simulation",
        schedulers: Mapping[str, Scheduler] | None = None,
        seed: int = 0,
        speedup: float = 3600.0,
    ) -> None:
        self.run: LiveRun | None = None
        self.records: list[RunRecord] = []
        self._jobs = trace if isinstance(trace, Jobs) else None
        self._own = dict(schedulers or {})
        self._loop: asyncio.AbstractEventLoop | None = running_loop()
        self._where = place(where)
        self._form = RunForm(
            trace=trace.name if isinstance(trace, Jobs) else str(trace),
            fixed=self._jobs is not None, where=self._where,
            cluster=self._where.suggestions()[0] if self._where.machines else cluster, scheduler=scheduler,
            schedulers=[*self._own, *available()], seed=seed, speedup=speedup,
        )  # fmt: skip
        self._controls = Controls(run=self.start, pause=self.pause, step=self.step, stop=self.stop, where=self._where)
        self._panels = RunPanels()
        self._code = CodePanel()
        self._table = ipw.HTML(layout=ipw.Layout(display="none", margin="0", overflow="auto"))
        super().__init__(self._parts())
        self.add_class("labkit-app")
        self._table.add_class("labkit-runs")
        self._form.on_change(lambda: self._later(self._prepare))
        self._form.speedup.observe(lambda change: self._later(self._set_pace, change["new"]), "value")
        self._prepare()

    def _parts(self) -> list[Any]:
        code = ipw.Accordion([self._code], titles=("Copy as code",), layout=ipw.Layout(margin="0"))
        body = ipw.HBox([self._form.box, self._panels], layout=ipw.Layout(grid_gap="16px", align_items="flex-start"))
        self.layout = ipw.Layout(grid_gap="12px", margin="4px 0", max_width="1240px")
        return [self._controls.box, body, self._table, code]

    # --- steering

    def start(self) -> None:
        """Begin a run, or go on with a paused one."""
        self._later(self._start)

    def pause(self) -> None:
        """Hold the run."""
        if self.run is not None:
            self.run.pause()

    def step(self) -> None:
        """Make one decision, and pause."""
        self._later(self._step)

    def stop(self) -> None:
        """End the run; it stays in the comparison."""
        if self.run is not None:
            self.run.stop()

    def _start(self) -> None:
        if self._renewed():
            self._running().start()

    def _step(self) -> None:
        if self._renewed():
            self._running().step()

    def _running(self) -> LiveRun:
        assert self.run is not None
        return self.run

    def _renewed(self) -> bool:
        """Make a new run where the last one is over; tell whether there is one."""
        if self.run is None or self.run.over:
            self._prepare()
        return self.run is not None

    def _set_pace(self, speedup: float) -> None:
        if self.run is not None:
            self.run.speedup = speedup

    def _later(self, act: Callable[..., None], *given: Any) -> None:
        """Act on the kernel's loop; the browser's messages may come in on another thread."""
        if self._loop is None or running_loop() is self._loop:
            act(*given)
        else:
            self._loop.call_soon_threadsafe(act, *given)

    # --- what the form asks for

    @property
    def choice(self) -> Choice:
        """What the form shows."""
        form = self._form
        return Choice(
            trace="" if self._jobs is not None else form.trace.value.strip(),
            cluster=form.cluster.value.strip(),
            scheduler=form.scheduler.value,
            own=form.scheduler.value in self._own,
            seed=form.seed.value,
            machines=self._where.machines,
        )

    def _prepare(self) -> None:
        """Make the run that the form asks for, ready to start."""
        if self.run is not None and self.run.state != READY and not self.run.over:
            return
        choice = self.choice
        self._code.show(choice)
        try:
            trace = self._jobs if self._jobs is not None else choice.trace
            experiment = self._where.experiment(trace, choice.cluster, seed=choice.seed)
            scheduler = self._own.get(choice.scheduler, choice.scheduler)
            pace = self._form.speedup.value
            run = self._where.run(experiment, scheduler=scheduler, name=choice.scheduler, speedup=pace)
        except (LabkitError, OSError) as error:
            self.run = None
            self._controls.show("failed", one_line(error))
            return
        self._watch(run)

    def _watch(self, run: LiveRun) -> None:
        self.run = run
        ghosts = [Ghost.of(record) for record in self._earlier(run)]
        self._panels.watch(run, ghosts=ghosts)
        run.observe(lambda _: self._show(run), ["state", "aside"])
        self._show(run)

    def _earlier(self, run: LiveRun) -> list[RunRecord]:
        """Return the last runs of other schedulers on the same trace, the latest of each."""
        latest = {record.info.scheduler: record for record in self.records if self._alike(record, run)}
        latest.pop(run.name, None)
        return list(latest.values())[-MOST_GHOSTS:]

    def _alike(self, record: RunRecord, run: LiveRun) -> bool:
        return record.info.trace == run.experiment.jobs.name and len(record.jobs) == len(run.experiment.jobs)

    def _show(self, run: LiveRun) -> None:
        """Follow the run's state."""
        if run is not self.run:
            return
        self._controls.show(run.state, run.status.text)
        self._form.enable(run.state == READY or run.over)
        if run.over and run.board.n_arrived:
            self.records.append(run.record)
            self._table.value = runs_html(self.records)
            self._table.layout.display = "block"

    def __repr__(self) -> str:
        choice = self.choice
        return f"<LabApp: {Path(choice.trace).name or 'jobs'} on {escape(choice.cluster)}; run this cell to use it>"

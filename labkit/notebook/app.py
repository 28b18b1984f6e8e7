"""The lab as one widget: choose, run, watch, compare, and take away as code."""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import anywidget
import ipywidgets as ipw
import traitlets

from labkit.core.errors import LabkitError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.live.feeds import Ghost, source
from labkit.notebook.html import runs_html
from labkit.notebook.run import PAUSED, READY, RUNNING, STOPPING, LiveRun, one_line, running_loop
from labkit.notebook.views import HERE, STYLE, RunPanels
from labkit.notebook.where import Where, place
from labkit.results import RunRecord
from labkit.schedulers import available, open_options
from labkit.workloads.named_traces import shipped

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
        """Make a new run where the last one is over; return whether there is one."""
        if self.run is None or self.run.over:
            self._prepare()
        return self.run is not None

    def _set_pace(self, speedup: float) -> None:
        if self.run is not None:
            self.run.speedup = speedup

    def _later(self, act: Callable[..., None], *arguments: Any) -> None:
        """Act on the kernel's loop; the browser's messages may come in on another thread."""
        if self._loop is None or running_loop() is self._loop:
            act(*arguments)
        else:
            self._loop.call_soon_threadsafe(act, *arguments)

    # --- what the form asks for

    @property
    def choice(self) -> Choice:
        """What the form shows."""
        form = self._form
        return Choice(
            trace="" if self._jobs is not None else form.trace.value.strip(), cluster=form.cluster.value.strip(),
            scheduler=form.options.name, own=form.scheduler.value in self._own, seed=form.seed.value,
            arrival_rate=form.arrival_rate.value, slot_s=form.slot_s.value or None, machines=self._where.machines,
        )  # fmt: skip

    def _prepare(self) -> None:
        if self.run is not None and self.run.state != READY and not self.run.over:
            return
        choice = self.choice
        self._code.show(choice)
        try:
            trace = self._jobs if self._jobs is not None else choice.trace
            experiment = self._where.experiment(
                trace, choice.cluster, seed=choice.seed, arrival_rate=choice.arrival_rate, slot_s=choice.slot_s
            )
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


PACES: Final = {
    "10 min per second": 600.0,
    "1 h per second": 3600.0,
    "6 h per second": 21_600.0,
    "1 day per second": 86_400.0,
    "as fast as possible": math.inf,
}

DOTS: Final = {RUNNING: "#2b9f5c", PAUSED: "#e59a2b", STOPPING: "#e59a2b", "failed": "#b3261e"}
"""Colour of the dot that stands for a state; grey for the others."""


GAP_PX: Final = 8
"""ipywidgets leaves this between a field's own label and the field."""


class RunForm:
    """What is to be run: trace, cluster, scheduler, seed, pace."""

    def __init__(
        self, *, trace: str, fixed: bool, where: Where, cluster: str, scheduler: str, schedulers: Sequence[str],
        seed: int, speedup: float,
    ) -> None:  # fmt: skip
        self.trace = ipw.Combobox(
            value=trace, options=list(shipped()), ensure_option=False, disabled=fixed, continuous_update=False
        )
        self.cluster = ipw.Combobox(
            value=cluster, options=list(where.suggestions()), ensure_option=False, continuous_update=False
        )
        names = [*schedulers, *([scheduler] if scheduler not in schedulers else [])]
        self.scheduler = ipw.Dropdown(options=names, value=scheduler)
        self.options = SchedulerOptions(self.scheduler)
        self.arrival_rate = ipw.BoundedFloatText(1.0, min=0.01, max=1000.0, step=0.1)
        self.slot_s = ipw.BoundedFloatText(0.0, min=0.0, max=1e9, step=60.0)
        self.seed = ipw.BoundedIntText(seed, min=0, max=2**31 - 1)
        paces = PACES if speedup in PACES.values() else {f"{speedup:g} s per second": speedup} | PACES
        self.speedup = ipw.Dropdown(options=paces, value=speedup)
        self._fixed = fixed
        self._fields = {
            "Trace": self.trace, where.field: self.cluster, "Scheduler": self.scheduler, "": self.options.box,
            "Arrival rate (1: the trace's)": self.arrival_rate, "Slot (s; 0: decide at events)": self.slot_s,
        }  # fmt: skip
        if not where.machines:  # there, time passes as it does, and nothing is drawn by lot
            self._fields |= {"Seed": self.seed, "Pace": self.speedup}
        parts = [part for name, of in self._fields.items() for part in (_labelled(name, of) if name else [of])]
        self.box = ipw.VBox(parts, layout=ipw.Layout(width="190px", flex="0 0 190px"))
        self.box.add_class("labkit-form")

    def on_change(self, act: Callable[[], None]) -> None:
        """Call when something else is to be run; another pace is not."""
        for field in (self.trace, self.cluster, self.arrival_rate, self.slot_s, self.seed):
            field.observe(lambda _: act(), "value")
        self.options.on_change(act)

    def enable(self, yes: bool) -> None:
        """Let people change what is to be run, or not; the pace may always be changed."""
        for field in (self.cluster, self.scheduler, self.arrival_rate, self.slot_s, self.seed, *self.options.fields):
            field.disabled = not yes
        self.trace.disabled = self._fixed or not yes


class SchedulerOptions:
    """The options of the chosen scheduler as fields, folded up: those that are numbers, words, or yes or no."""

    KINDS: Final[dict[type, Callable[..., Any]]] = {
        bool: ipw.Checkbox, int: ipw.IntText, float: ipw.FloatText, str: ipw.Text,
    }  # fmt: skip

    def __init__(self, scheduler: ipw.Dropdown) -> None:
        self._scheduler, self._act = scheduler, [_nothing]
        self._fields: dict[str, tuple[Any, Any]] = {}
        self.box = ipw.Accordion(layout=ipw.Layout(margin="0 0 6px 0"))
        scheduler.observe(lambda _: self._renew(), "value")
        self._renew()

    @property
    def fields(self) -> list[Any]:
        """The fields."""
        return [field for field, _ in self._fields.values()]

    @property
    def name(self) -> str:
        """The scheduler's name, with the options that differ from their defaults in brackets."""
        changed = [f"{name}={field.value!r}" for name, (field, usual) in self._fields.items() if field.value != usual]
        return f"{self._scheduler.value}({', '.join(changed)})" if changed else str(self._scheduler.value)

    def on_change(self, act: Callable[[], None]) -> None:
        """Call when another scheduler is chosen, or one of its options changes."""
        self._act[0] = act

    def _renew(self) -> None:
        """Show the options of the chosen scheduler; of one that labkit does not know by name, none."""
        name = str(self._scheduler.value)
        known = open_options(name) if name in available() else {}
        usual = {option: value for option, value in known.items() if type(value) in self.KINDS}
        self._fields = {option: (self._field(value), value) for option, value in usual.items()}
        parts = [part for option in usual for part in _labelled(option, self._fields[option][0])]
        self.box.children, self.box.titles = [ipw.VBox(parts)], ["Options"]
        self.box.layout.display = "block" if usual else "none"
        self._act[0]()

    def _field(self, value: Any) -> Any:
        changes = {"indent": False} if isinstance(value, bool) else {"continuous_update": False}
        field = self.KINDS[type(value)](value=value, **changes)
        field.observe(lambda _: self._act[0](), "value")
        return field


def _nothing() -> None:
    """Do nothing: before a form is watched."""


def _labelled(text: str, field: Any) -> list[Any]:
    """Return a visible label and its field, which has a label of no width for screen readers."""
    field.description, field.style.description_width = text, "0px"
    field.layout.width, field.layout.margin = f"calc(100% + {GAP_PX}px)", f"0 0 6px -{GAP_PX}px"
    return [ipw.Label(text, layout=ipw.Layout(margin="0", height="24px")), field]


class Controls:
    """Run, Pause, Step and Stop, and how the run is doing."""

    def __init__(
        self, *, run: Callable[[], None], pause: Callable[[], None], step: Callable[[], None], stop: Callable[[], None],
        where: Where,
    ) -> None:  # fmt: skip
        self.run = _button("Run", "play", "Begin, or continue", run, style="primary")
        self.pause = _button("Pause", "pause", where.pause, pause)
        self.step = _button("Step", "step-forward", "One decision", step)
        self.stop = _button("Stop", "stop", "End this run; it stays in the comparison", stop)
        self.status = ipw.HTML(layout=ipw.Layout(margin="0 0 0 10px"))
        self.error = ipw.HTML(layout=ipw.Layout(margin="4px 0 0 0", display="none"))
        buttons = [self.run, self.pause, self.step, self.stop, self.status]
        row = ipw.HBox(buttons, layout=ipw.Layout(align_items="center", grid_gap="4px"))
        self.box = ipw.VBox([row, self.error])

    def show(self, state: str, error: str = "") -> None:
        """Show a state, and offer only what can be done in it."""
        going = state in (RUNNING, PAUSED)
        self.run.disabled = state in (RUNNING, STOPPING)
        self.pause.disabled = state != RUNNING
        self.step.disabled = state == STOPPING
        self.stop.disabled = not going
        self.error.value = f'<div class="labkit-error">{escape(error)}</div>'
        self.error.layout.display = "block" if error else "none"
        dot = f'<span style="color:{DOTS.get(state, "#7b8798")}">●</span>'  # set last: the error is shown by then
        self.status.value = f'<span class="labkit-status">{dot} {escape(state)}</span>'


def _button(text: str, icon: str, tip: str, act: Callable[[], None], *, style: str = "") -> ipw.Button:
    button = ipw.Button(
        description=text, icon=icon, tooltip=tip, button_style=style, layout=ipw.Layout(width="92px", margin="0")
    )
    button.on_click(lambda _: act())
    return button


class CodePanel(anywidget.AnyWidget):
    """The Python and the command line of a run, each with a button that copies it."""

    _esm = source("code.js", folder=HERE)
    _css = STYLE
    python = traitlets.Unicode("").tag(sync=True)
    shell = traitlets.Unicode("").tag(sync=True)

    def show(self, choice: Choice) -> None:
        """Show this run."""
        self.python, self.shell = choice.python(), choice.shell()

    def __repr__(self) -> str:
        return "<CodePanel>"


JOBS_NAME = "jobs"
"""What a trace is called that was given as jobs, not as a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a run is made of, by name."""

    trace: str
    """Path of a file; empty: jobs that only the notebook has."""
    cluster: str
    scheduler: str
    """`cluster` and `scheduler`: as `labkit.topology` and `labkit.schedulers` take them."""
    own: bool = False
    """The scheduler is an object of the notebook, named `scheduler` there."""
    seed: int = 0
    """Of the simulator."""
    arrival_rate: float = 1.0
    slot_s: float | None = None
    """`arrival_rate` and `slot_s`: as `Scenario` has them."""
    machines: bool = False
    """Jobs really train, on the hosts of the inventory that `cluster` names."""

    @property
    def changed(self) -> dict[str, float]:
        """Options of the scenario that differ from their defaults."""
        rate = {} if self.arrival_rate == 1 else {"arrival_rate": self.arrival_rate}
        return rate | ({} if self.slot_s is None else {"slot_s": self.slot_s})

    def python(self) -> str:
        """Return the run as Python.

        >>> print(Choice(trace="a.csv", cluster="demo", scheduler="srtf").python())
        import labkit
        <BLANKLINE>
        record = labkit.simulate("a.csv", cluster="demo", scheduler="srtf", seed=0)
        record.summary
        """
        trace = _quoted(self.trace) if self.trace else JOBS_NAME
        scheduler = self.scheduler if self.own else _quoted(self.scheduler)
        verb, on = ("deploy", "inventory") if self.machines else ("simulate", "cluster")
        seed = "" if self.machines else f", seed={self.seed}"
        seed += "".join(f", {name}={value:g}" for name, value in self.changed.items())
        call = f"labkit.{verb}({trace}, {on}={_quoted(self.cluster)}, scheduler={scheduler}{seed})"
        return f"import labkit\n\nrecord = {call}\nrecord.summary"

    def shell(self) -> str:
        """Return the run as a command, or why there is none.

        >>> Choice(trace="a b.csv", cluster="demo", scheduler="srtf", seed=1).shell()
        "labkit compare 'a b.csv' --schedulers srtf --cluster demo --seed 1"
        >>> Choice(trace="a.csv", cluster="hosts.toml", scheduler="srtf", machines=True).shell()
        'labkit deploy a.csv --scheduler srtf --inventory hosts.toml'
        """
        if not self.trace:
            return "# the command line needs the trace as a file"
        if self.own:
            return "# the command line needs the scheduler as a file in labkit/schedulers"
        flags = {"arrival_rate": "--arrival-rate", "slot_s": "--slot"}
        more = [word for name, value in self.changed.items() for word in (flags[name], f"{value:g}")]
        if self.machines:
            words = ["labkit", "deploy", self.trace, "--scheduler", self.scheduler, "--inventory", self.cluster]
            return shlex.join([*words, *more])
        words = ["labkit", "compare", self.trace, "--schedulers", self.scheduler, "--cluster", self.cluster]
        return shlex.join([*words, "--seed", str(self.seed), *more])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

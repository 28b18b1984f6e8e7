"""The parts of the lab's widget that people touch: the form, the buttons, the code to take away."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

import anywidget
import ipywidgets as ipw
import traitlets

from labkit.live.feeds import source
from labkit.notebook.code import Choice
from labkit.notebook.run import PAUSED, RUNNING, STOPPING
from labkit.notebook.views import HERE, STYLE
from labkit.notebook.where import Where

PACES: Final = {
    "10 min per second": 600.0,
    "1 h per second": 3600.0,
    "6 h per second": 21_600.0,
    "1 day per second": 86_400.0,
    "as fast as possible": math.inf,
}

DOTS: Final = {RUNNING: "#2b9f5c", PAUSED: "#e59a2b", STOPPING: "#e59a2b", "failed": "#b3261e"}
"""Colour of the dot that stands for a state; grey for the others."""


class RunForm:
    """What is to be run: trace, cluster, scheduler, seed, pace."""

    def __init__(
        self, *, trace: str, fixed: bool, where: Where, cluster: str, scheduler: str, schedulers: Sequence[str],
        seed: int, speedup: float,
    ) -> None:  # fmt: skip
        wide = ipw.Layout(width="100%", margin="0 0 6px 0")
        self.trace = ipw.Text(trace, disabled=fixed, continuous_update=False, layout=wide)
        self.cluster = ipw.Combobox(
            value=cluster, options=list(where.suggestions()), ensure_option=False, continuous_update=False, layout=wide
        )
        names = [*schedulers, *([scheduler] if scheduler not in schedulers else [])]
        self.scheduler = ipw.Dropdown(options=names, value=scheduler, layout=wide)
        self.seed = ipw.BoundedIntText(seed, min=0, max=2**31 - 1, layout=wide)
        paces = PACES if speedup in PACES.values() else {f"{speedup:g} s per second": speedup} | PACES
        self.speedup = ipw.Dropdown(options=paces, value=speedup, layout=wide)
        self._fixed = fixed
        self._fields = {
            "Trace": self.trace, where.field: self.cluster, "Scheduler": self.scheduler,
        }  # fmt: skip
        if not where.machines:  # there, time passes as it does, and nothing is drawn by lot
            self._fields |= {"Seed": self.seed, "Pace": self.speedup}
        parts = [part for name, field in self._fields.items() for part in (_label(name), field)]
        self.box = ipw.VBox(parts, layout=ipw.Layout(width="190px", flex="0 0 190px"))
        self.box.add_class("labkit-form")

    def on_change(self, act: Callable[[], None]) -> None:
        """Call when something else is to be run; another pace is not."""
        for field in (self.trace, self.cluster, self.scheduler, self.seed):
            field.observe(lambda _: act(), "value")

    def enable(self, yes: bool) -> None:
        """Let people change what is to be run, or not; the pace may always be changed."""
        for field in (self.cluster, self.scheduler, self.seed):
            field.disabled = not yes
        self.trace.disabled = self._fixed or not yes


def _label(text: str) -> ipw.Label:
    return ipw.Label(text, layout=ipw.Layout(margin="0", height="24px"))


class Controls:
    """Run, Pause, Step and Stop, and how the run is doing."""

    def __init__(
        self, *, run: Callable[[], None], pause: Callable[[], None], step: Callable[[], None], stop: Callable[[], None],
        where: Where,
    ) -> None:  # fmt: skip
        self.run = _button("Run", "play", "Begin, or go on", run, style="primary")
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
        dot = f'<span style="color:{DOTS.get(state, "#7b8798")}">●</span>'
        self.status.value = f'<span class="labkit-status">{dot} {escape(state)}</span>'
        self.error.value = f'<div class="labkit-error">{escape(error)}</div>'
        self.error.layout.display = "block" if error else "none"


def _button(text: str, icon: str, tip: str, act: Callable[[], None], *, style: str = "") -> ipw.Button:
    made = ipw.Button(
        description=text, icon=icon, tooltip=tip, button_style=style, layout=ipw.Layout(width="92px", margin="0")
    )
    made.on_click(lambda _: act())
    return made


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

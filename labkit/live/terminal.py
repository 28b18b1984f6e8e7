"""A run in a terminal: how it is doing, its signals, its jobs, the last decisions with their reasons, and notes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.ledger import DONE, HOLDING, WAITING
from labkit.live.follow import EVERY_S, FollowedRun
from labkit.live.model import LiveModel
from labkit.system.printing import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 32
"""Columns of the picture of a signal over the whole run."""
SHOWN_DECISIONS: Final = 5
DECIDED: Final = "decisions that changed a job or a host, the newest last"
LEAST_JOBS: Final = 5
"""Rows of jobs that are shown in a terminal of any height."""


def spark(times: list[float], values: list[float], *, until_s: float, width: int = WIDTH) -> str:
    """Return a signal as a row of bars, from 0 to its most: the value at the middle of each stretch of time.

    >>> spark([0.0, 5.0], [1.0, 8.0], until_s=10.0, width=4)
    '▁▁██'
    """
    most = max(values, default=0.0)
    if not values or most <= 0 or until_s <= 0:
        return BARS[0] * width if values else ""
    bars, at, value = "", 0, 0.0
    for column in range(width):
        middle_s = (column + 0.5) * until_s / width
        while at < len(times) and times[at] <= middle_s:
            value, at = values[at], at + 1
        bars += BARS[max(math.ceil(value / most * len(BARS)) - 1, 0)]
    return bars


def signal_lines(model: LiveModel) -> list[tuple[str, str, str]]:
    """Return (name, value now, picture over the run so far) of each signal that the run has."""
    signals = model.signals
    history: dict[int, tuple[list[float], list[float]]] = {}
    for number, time_s, value in signals.history:
        times, values = history.setdefault(number, ([], []))
        times.append(time_s)
        values.append(value)
    for signal, value in signals.latest.items():
        times, values = history.setdefault(signal, ([], []))
        times.append(signals.now_s)
        values.append(value)
    return [
        (name, signals.text_of(signal), spark(*history[signal], until_s=signals.now_s))
        for signal, name in signals.names().items()
        if signal in history
    ]


def shown(run: FollowedRun, *, height: int | None = None) -> RenderableType:
    """Return a run for a terminal of so many lines; None: all jobs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    signal_rows = signal_lines(run.model)
    below = {
        DECIDED: [entry.line() for entry in list(run.model.decisions.entries)[-SHOWN_DECISIONS:]],
        "notes": run.notes(),
    }
    n_below = sum(len(lines) + 2 for lines in below.values() if lines)
    most = None if height is None else max(LEAST_JOBS, height - len(signal_rows) - n_below - 6)
    signals = Table.grid(padding=(0, 2))
    for line in signal_rows:
        signals.add_row(*line)
    table = Table(box=None, header_style="bold")
    for name in HEADINGS:
        right = name in NUMBERS
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    rows = job_rows(run.model, most=most)
    for row in rows:
        table.add_row(*row)
    left_out = run.model.board.n_arrived - len(rows)
    more = [Text(f" and {left_out:,} more jobs", style="dim")] if left_out > 0 else []
    return Group(Text(printable(run.header()), style="bold"), signals, "", table, *more, *_listed(below))


def _listed(below: dict[str, list[str]]) -> list[RenderableType]:
    """Return lists of lines, each under its heading."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for heading, lines in below.items():
        if lines:
            parts += [
                "",
                Text(heading, style="bold"),
                *(Text(" " + printable(line), overflow="fold") for line in lines),
            ]
    return parts


def follow(run: FollowedRun, console: Console) -> None:
    """Show a run until it is over."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        while True:
            live.update(shown(run, height=console.size.height), refresh=True)
            if not run.going:
                return
            time.sleep(EVERY_S)  # as often as a writer writes: flock and file systems over a network tell no news
            run.update()


HEADINGS = ("job", "model", "does", "steps", "steps/s", "loss", "tasks on")
NUMBERS = ("steps", "steps/s", "loss")


def job_rows(model: LiveModel, *, most: int | None = None) -> list[tuple[str, ...]]:
    """Return id, model, what it does, steps, steps/s, loss and places of each job that has arrived.

    `model`: of the run; `most`: only so many: those that hold tasks first, then those that wait, then those that are
    over, the newest first.
    """
    belief = model.signals.ledger.belief
    arrived = np.flatnonzero(belief["phase"] > 0)
    if most is not None and len(arrived) > most:
        rank = {HOLDING: 0, WAITING: 1, DONE: 2}
        order = sorted(arrived.tolist(), key=lambda job: (rank[int(belief["phase"][job])], -job))
        arrived = np.sort(order[:most])
    names = model.jobs.model_names()
    return [_row(model, job, str(names[job])) for job in arrived.tolist()]


def _row(model: LiveModel, job: int, name: str) -> tuple[str, ...]:
    at = model.signals.ledger.belief[job]
    return (
        str(model.jobs.id[job]), name, _phase(model, job), f"{at['steps']:.0f} of {model.jobs.total_steps[job]:.0f}",
        _number(at["speed"] if at["phase"] == HOLDING else math.nan, ".1f"),
        _number(model.signals.loss_of.get(job, math.nan), ".4g"), _where(model, job),
    )  # fmt: skip


def _phase(model: LiveModel, job: int) -> str:
    at = model.signals.ledger.belief[job]
    if at["phase"] == DONE:
        return "given up" if job in model.board.dropped else "done"
    if at["phase"] == WAITING:
        return "waits"
    return "starts" if at["speed"] == 0 else "trains"


def _where(model: LiveModel, job: int) -> str:
    _, _, group, count = model.signals.ledger.book.of(np.array([job], np.int32))
    found: dict[str, int] = {}
    for each, n in zip(group.tolist(), count.tolist(), strict=True):
        name = model.cluster.machines[model.cluster.group_machine[each]]
        found[name] = found.get(name, 0) + int(n)
    return ", ".join(f"{name} ({n})" for name, n in found.items())


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""

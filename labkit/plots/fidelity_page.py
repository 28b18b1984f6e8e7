"""Fidelity for readers: text, HTML tables, and the cards and sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.fidelity import plot_explained, plot_fidelity, plot_gantts
from labkit.plots.page import Card, Section
from labkit.plots.theme import FONT, INK, LINE, MUTED, human_s
from labkit.results import RunRecord, explained, fidelity_summary, gap_parts, job_fidelity, lanes
from labkit.results.drift import without_drift

GOAL_PERCENT: Final = 8.0
"""Gavel's simulator was within this of its cluster."""

_NOTE: Final = (
    "Parts add up to the gap. They are bookkeeping: a job may wait longer because another one trained longer. "
    "Speed: the same steps with the same gangs took another time."
)


def pairs(records: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Return each run on a testbed with its simulation, where there is one: the same jobs and scheduler."""
    found = []
    for real in records:
        if real.info.backend != "testbed":
            continue
        predicted = next((other for other in records if _predicts(other, real)), None)
        if predicted is not None:
            found.append((real, predicted))
    return found


def _predicts(other: RunRecord, real: RunRecord) -> bool:
    mine, theirs = other.jobs, real.jobs
    same = len(mine) == len(theirs) and all(
        bool((getattr(mine, name) == getattr(theirs, name)).all()) for name in ("id", "true_steps", "arrival_s")
    )
    return same and other.info.backend == "simulator" and other.info.scheduler == real.info.scheduler


def cards(real: RunRecord, predicted: RunRecord) -> list[Card]:
    """Return the numbers to see first."""
    said = fidelity_summary(real, predicted)
    jct = f"{human_s(said['real_mean_jct_s'])} real, {human_s(said['simulated_mean_jct_s'])} simulated"
    span = f"{human_s(said['real_makespan_s'])} real, {human_s(said['simulated_makespan_s'])} simulated"
    return [
        Card("Gap of mean JCT", _percent(said["gap_percent"]), f"{jct}; {without_drift(said)}"),
        Card("Gap of makespan", _percent(said["makespan_gap_percent"]), span),
        Card("Mean error per job", f"{said['mean_abs_error_percent']:.1f} %", _order(said["order"])),
    ]


def section(real: RunRecord, predicted: RunRecord, *, heading: str = "Fidelity") -> Section:
    """Return the figures of a real run beside its simulation."""
    table, parts = job_fidelity(real, predicted), gap_parts(real, predicted)
    if not len(table):
        return Section(heading, [], "No job completed in both runs.")
    lives = gantts(real, predicted)
    return Section(heading, [plot_explained(explained(table, parts)), plot_fidelity(table), lives], _NOTE)


def gantts(real: RunRecord, predicted: RunRecord) -> alt.VConcatChart:
    """Draw the Gantt charts of two runs over each other."""
    runs = {"Real": real, "Simulated": predicted}
    named = {f"{part}: {run.info.scheduler} ({run.info.backend})": run for part, run in runs.items()}
    return plot_gantts(
        {name: lanes(run) for name, run in named.items()}, {name: run.table for name, run in named.items()}
    )


def as_text(summary: Mapping[str, float], jobs: pd.DataFrame, parts: pd.DataFrame) -> str:
    """Return the comparison as text for a terminal."""
    return "\n\n".join([_lead(summary), _columns(*_parts_table(parts)), _columns(*_jobs_table(jobs))])


def as_html(summary: Mapping[str, float], jobs: pd.DataFrame, parts: pd.DataFrame) -> str:
    """Return the comparison as HTML; everything is escaped."""
    lead = f'<div style="font-weight:600;margin-bottom:6px">{escape(_lead(summary))}</div>'
    tables = "".join(_html_table(*made) for made in (_parts_table(parts), _jobs_table(jobs)))
    return f'<div style="font-family:{escape(FONT)};color:{INK};font-size:13px;margin:2px 0">{lead}{tables}</div>'


def _lead(said: Mapping[str, float]) -> str:
    left_out = f" ({said['n_left_out']:.0f} left out)" if said["n_left_out"] else ""
    within = "within" if abs(said["gap_percent"]) <= GOAL_PERCENT else "not within"
    return (
        f"{said['n_jobs']:.0f} jobs{left_out}: mean JCT {said['real_mean_jct_s']:,.1f} s real, "
        f"{said['simulated_mean_jct_s']:,.1f} s simulated, gap {_percent(said['gap_percent'])} ({within} "
        f"{GOAL_PERCENT:g} %); {without_drift(said)}; "
        f"makespan {said['real_makespan_s']:,.1f} s and {said['simulated_makespan_s']:,.1f} s, "
        f"gap {_percent(said['makespan_gap_percent'])}; mean error per job {said['mean_abs_error_percent']:.1f} %; "
        f"{_order(said['order'])}"
    )


def _percent(value: float) -> str:
    return f"{value:+.1f} %" if np.isfinite(value) else "–"


def _order(value: float) -> str:
    return f"order of JCTs {value:.2f}" if np.isfinite(value) else "order of JCTs –"


def _parts_table(parts: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            str(part),
            _seconds(row["real_s"]),
            _seconds(row["simulated_s"]),
            _gap(row["gap_s"]),
            _gap(row["percent"], 1),
            str(row["what"]),
        ]
        for part, row in parts.iterrows()
    ]
    return ["part", "real (s)", "simulated (s)", "gap (s)", "gap (% of JCT)", ""], rows


def _jobs_table(jobs: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    pairs_of = [("JCT", "jct"), ("waiting", "waiting"), ("starting", "starting"), ("training", "training")]
    rows = []
    for _, row in jobs.iterrows():
        both = [f"{row[f'real_{key}_s']:,.1f} / {row[f'simulated_{key}_s']:,.1f}" for _, key in pairs_of]
        rows.append([str(row["id"]), str(row["model"]), *both, f"{100 * row['error']:+.1f}"])
    return ["job", "model", *(f"{name} (s)" for name, _ in pairs_of), "error (%)"], rows


def _seconds(value: float) -> str:
    return f"{value:,.2f}" if np.isfinite(value) else ""


def _gap(value: float, digits: int = 2) -> str:
    return f"{value:+,.{digits}f}" if np.isfinite(value) else ""


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: numbers to the right, words to the left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    sides = [_is_text([row[i] for row in rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(w) if text else cell.rjust(w) for cell, w, text in zip(row, widths, sides, strict=True))
        for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = ["left" if _is_text([row[i] for row in rows]) else "right" for i in range(len(head))]
    style = "padding:3px 14px 3px 0;white-space:nowrap;text-align:"
    heads = "".join(
        f'<th style="color:{MUTED};font-weight:500;border-bottom:1px solid {LINE};{style}{side}">{escape(cell)}</th>'
        for cell, side in zip(head, sides, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(f'<td style="{style}{side}">{escape(cell)}</td>' for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse;font-size:12px;margin:0 0 10px"><tr>{heads}</tr>{lines}</table>'


def _is_text(cells: Sequence[str]) -> bool:
    return any(cell[:1].isalpha() for cell in cells)

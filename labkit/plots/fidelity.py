"""How true a simulation was: JCT against JCT, Gantt over Gantt, what the gap is made of; as figures, text and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.page import Card, Section
from labkit.plots.theme import FONT, INK, LINE, MAX_ROWS, MUTED, cycled, human_s, layered, thin, time_unit, title
from labkit.results import RunRecord, explained, fidelity_summary, gap_parts, job_fidelity, lanes
from labkit.results.fidelity import PARTS, without_drift

PALETTE: Final = (
    "#7fb7a8", "#e88a7d", "#7aa6cf", "#e3bd62", "#a99bd1", "#a9c46c", "#d99fc0", "#b08a78", "#9aa7b5", "#5f7f86",
)  # fmt: skip
"""Of jobs: softer than those of schedulers, so that a job is not taken for one."""
SLOWER: Final = "#e5484d"
FASTER: Final = "#2b9f5c"
MOST_JOBS: Final = 40
ROW: Final = 18
"""Height of a job in a Gantt chart."""
LOG_FROM: Final = 20.0
"""Longest over shortest JCT from which on both axes are logarithmic."""


def job_colours(ids: Sequence[str]) -> alt.Scale:
    """Return the colour of each job, the same in every figure of a comparison; after ten they begin anew."""
    return cycled(ids, PALETTE)


def plot_fidelity(
    table: pd.DataFrame, *, heading: str = "Predicted and real JCT", limit: int = MAX_ROWS
) -> alt.LayerChart:
    """Draw the real JCT of each job against the predicted one; a right prediction is a point on the line y = x.

    Parameters
    ----------
    table : DataFrame
        From `labkit.results.job_fidelity`.
    heading : str
        Title of the figure.
    limit : int
        The most jobs to draw.
    """
    columns = ["simulated_jct_s", "real_jct_s"]
    both = table[columns].to_numpy(np.float64)
    longest, shortest = (float(both.max()), float(both.min())) if len(both) else (1.0, 1.0)
    log = shortest > 0 and longest > LOG_FROM * shortest
    scale_s, unit = time_unit(longest)
    shown, note = thin(table, limit=limit)
    shown = shown.assign(
        x=shown["simulated_jct_s"] / scale_s, y=shown["real_jct_s"] / scale_s, error=100 * shown["error"]
    )[["id", "model", "x", "y", "error"]].round(4)
    low = shortest / scale_s / 1.3 if log else 0.0
    span = [low, 1.08 * longest / scale_s * (1.2 if log else 1.0)]
    scale = alt.Scale(type="log" if log else "linear", domain=span, nice=False)
    x = alt.X("x:Q", title=f"Simulated JCT ({unit})", scale=scale)
    y = alt.Y("y:Q", title=f"Real JCT ({unit})", scale=scale)
    ends = pd.DataFrame({"x": span, "y": span})
    right = alt.Chart(ends).mark_line(color=MUTED, strokeDash=[4, 4], strokeWidth=1.2).encode(x=x, y=y)
    few = len(shown) <= len(PALETTE)
    ids = shown["id"].tolist()
    points = (
        alt.Chart(shown)
        .mark_point(filled=True, size=80 if few else 30, opacity=0.9 if few else 0.5)
        .encode(
            x=x, y=y,
            color=alt.Color("id:N", scale=job_colours(ids), legend=None) if few else alt.value(PALETTE[0]),
            tooltip=[
                alt.Tooltip("id:N", title="job"), alt.Tooltip("model:N"),
                alt.Tooltip("x:Q", title=f"simulated ({unit})", format=",.2f"),
                alt.Tooltip("y:Q", title=f"real ({unit})", format=",.2f"),
                alt.Tooltip("error:Q", title="error (%)", format="+.1f"),
            ],
        )
    )  # fmt: skip
    charts = [right, points]
    if few:
        charts.append(_names(shown, x, y))
    reading = "dashed: as predicted; above it, reality took longer"
    return layered(*charts, height=400, title=title(heading, reading, note)).properties(width=400)


def _names(shown: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """Return the names of some points, above those in the upper half and below the others' line."""
    right = shown.assign(left=shown["x"] > 0.7 * shown["x"].max())
    text = alt.Chart(right).encode(x=x, y=y, text="id:N")
    far = text.mark_text(align="right", dx=-9, fontSize=11, color=MUTED).transform_filter("datum.left")
    near = text.mark_text(align="left", dx=9, fontSize=11, color=MUTED).transform_filter("!datum.left")
    return alt.layer(far, near)  # type: ignore[return-value]


def plot_gantts(
    lanes: dict[str, pd.DataFrame], tables: dict[str, pd.DataFrame], *, limit: int = MAX_ROWS
) -> alt.VConcatChart:
    """Draw a Gantt chart over another one, with one axis of time and the same colour for a job in both.

    A thin line goes from a job's arrival to its completion; a bar is as high as it has workers, against the most it
    has in either run. It is pale while it holds them and makes no step.

    Parameters
    ----------
    held, tables : dict
        Name of the run -> from `labkit.results.lanes`, and from `labkit.results.job_table`.
    limit : int
        The most bars to draw per run; the longest are kept.
    """
    ids = list(dict.fromkeys(name for table in tables.values() for name in table["id"]))[:MOST_JOBS]
    shown = {name: each[each["id"].isin(ids)] for name, each in lanes.items()}
    ends = [float(each["end_s"].max()) for each in shown.values() if len(each)]
    until_s = max([1e-9, *ends])
    most = pd.concat(shown.values()).groupby("id")["workers"].max() if shown else pd.Series(dtype=float)
    charts = []
    for name, table in tables.items():
        bars = shown[name].assign(share=shown[name]["workers"] / shown[name]["id"].map(most).astype(float))
        longest = (bars["end_s"] - bars["start_s"]).nlargest(limit).index.sort_values()
        jobs = table[table["id"].isin(ids)]
        charts.append(_gantt(name, bars.loc[longest], jobs, ids=ids, until_s=until_s))
    return cast(alt.VConcatChart, alt.vconcat(*charts, spacing=14).resolve_scale(color="shared"))


def _gantt(name: str, lanes: pd.DataFrame, jobs: pd.DataFrame, *, ids: list[str], until_s: float) -> alt.LayerChart:
    scale_s, unit = time_unit(until_s)
    lives = jobs.assign(start=jobs["arrival_s"] / scale_s, end=jobs["completion_s"].fillna(until_s) / scale_s)
    lives = lives[["id", "start", "end"]].round(4)
    shown = lanes.assign(
        start=lanes["start_s"] / scale_s, end=lanes["end_s"] / scale_s, height=0.9 * lanes["share"] * ROW
    )
    shown = shown[["id", "start", "end", "workers", "works", "height"]].round(4)
    y = alt.Y("id:N", sort=ids, title=None, axis=alt.Axis(grid=False, domain=False, ticks=False, labelLimit=130))
    x = alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False))
    waits = alt.Chart(lives).mark_rule(color=LINE, strokeWidth=1.4).encode(x=x, x2="end:Q", y=y)
    bars = alt.Chart(shown).encode(
        x=x, x2="end:Q", y=y,
        size=alt.Size("height:Q", legend=None, scale=alt.Scale(domain=[0, ROW], range=[0, ROW])),
        color=alt.Color("id:N", scale=job_colours(ids), legend=None),
        tooltip=[
            alt.Tooltip("id:N", title="job"),
            alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
            alt.Tooltip("end:Q", title=f"to ({unit})", format=",.2f"),
            alt.Tooltip("workers:Q"),
        ],
    )  # fmt: skip
    pale = bars.mark_bar(cornerRadiusEnd=0, opacity=0.35).transform_filter("!datum.works")
    full = bars.mark_bar(cornerRadiusEnd=0).transform_filter("datum.works")
    return layered(
        waits, pale, full, height=alt.Step(ROW), title=title(name, "pale: it holds workers and makes no step")
    )


def plot_explained(table: pd.DataFrame, *, heading: str = "What explains the gap") -> alt.LayerChart:
    """Draw the parts of the gap between the mean JCTs: to the right what reality took longer for, to the left less.

    Parameters
    ----------
    table : DataFrame
        From `labkit.results.explained`.
    """
    longest = float(table["real_s"].max()) if len(table) else 1.0
    scale_s, unit = time_unit(longest)
    rows = table.drop(index="all")
    shown = pd.DataFrame(
        {"part": rows.index, "what": rows["what"].to_numpy(), "gap": (rows["gap_s"] / scale_s).round(4).to_numpy()}
    )
    shown["percent"] = rows["percent"].round(3).to_numpy()
    shown["sign"] = np.where(shown["gap"] < 0, "faster", "slower")
    shown["says"] = [_says(gap, percent, unit) for gap, percent in zip(shown["gap"], shown["percent"], strict=True)]
    least, most = min(float(shown["gap"].min()), 0.0), max(float(shown["gap"].max()), 0.0)
    room = 0.4 * max(most - least, 1e-9)  # for words beside the bars
    span = [least - (room if least < 0 else 0.1 * room), most + room]
    y = alt.Y("part:N", sort=list(PARTS), title=None, axis=alt.Axis(labelFontSize=12, labelColor=INK, grid=False))
    x = alt.X("gap:Q", title=f"Real minus simulated, mean per job ({unit})", scale=alt.Scale(domain=span, nice=False))
    tooltip = ["part:N", "what:N", alt.Tooltip("gap:Q", title=unit, format="+,.3f"), "percent:Q"]
    bars = (
        alt.Chart(shown)
        .mark_bar(height=18)
        .encode(
            x=x, y=y, tooltip=tooltip,
            color=alt.Color(
                "sign:N", legend=None, scale=alt.Scale(domain=["slower", "faster"], range=[SLOWER, FASTER])
            ),
        )
    )  # fmt: skip
    text = alt.Chart(shown).encode(x=x, y=y, text="says:N")
    above = text.mark_text(align="left", dx=6, fontSize=11, color=MUTED).transform_filter("datum.gap >= 0")
    below = text.mark_text(align="right", dx=-6, fontSize=11, color=MUTED).transform_filter("datum.gap < 0")
    zero = alt.Chart(pd.DataFrame({"gap": [0.0]})).mark_rule(color=INK, strokeWidth=1).encode(x=x)
    whole = table[["gap_s", "percent"]].loc["all"].to_numpy(np.float64)
    gap = _says(float(whole[0]) / scale_s, float(whole[1]), unit)
    note = f"In total {gap} of the measured mean JCT. Red: the real run took longer."
    return layered(bars, zero, above, below, height=alt.Step(30), title=title(heading, note))


def _says(gap: float, percent: float, unit: str) -> str:
    """Return a gap in words.

    >>> _says(1.234, 5.04, "s"), _says(0.0, 0.0, "s")
    ('+1.23 s, +5.0%', '0')
    """
    return f"{gap:+,.2f} {unit}, {percent:+.1f}%" if gap else "0"


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
    summary = fidelity_summary(real, predicted)
    jct = f"{human_s(summary['real_mean_jct_s'])} real, {human_s(summary['simulated_mean_jct_s'])} simulated"
    span = f"{human_s(summary['real_makespan_s'])} real, {human_s(summary['simulated_makespan_s'])} simulated"
    return [
        Card("Gap of mean JCT", _percent(summary["gap_percent"]), f"{jct}; {without_drift(summary)}"),
        Card("Gap of makespan", _percent(summary["makespan_gap_percent"]), span),
        Card("Mean error per job", f"{summary['mean_abs_error_percent']:.1f}%", _order(summary["order"])),
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
    tables = "".join(_html_table(*table) for table in (_parts_table(parts), _jobs_table(jobs)))
    return f'<div style="font-family:{escape(FONT)};color:{INK};font-size:13px;margin:2px 0">{lead}{tables}</div>'


def _lead(summary: Mapping[str, float]) -> str:
    left_out = f" ({summary['n_left_out']:.0f} left out)" if summary["n_left_out"] else ""
    within = "within" if abs(summary["gap_percent"]) <= GOAL_PERCENT else "not within"
    return (
        f"{summary['n_jobs']:.0f} jobs{left_out}: mean JCT {summary['real_mean_jct_s']:,.1f} s real, "
        f"{summary['simulated_mean_jct_s']:,.1f} s simulated, gap {_percent(summary['gap_percent'])} ({within} "
        f"{GOAL_PERCENT:g}%); {without_drift(summary)}; "
        f"makespan {summary['real_makespan_s']:,.1f} s and {summary['simulated_makespan_s']:,.1f} s, "
        f"gap {_percent(summary['makespan_gap_percent'])}; "
        f"mean error per job {summary['mean_abs_error_percent']:.1f}%; {_order(summary['order'])}"
    )


def _percent(value: float) -> str:
    return f"{value:+.1f}%" if np.isfinite(value) else "–"


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

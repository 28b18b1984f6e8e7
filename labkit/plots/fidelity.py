"""How true a simulation was: JCT against JCT, Gantt over Gantt, and what the gap is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, LINE, MAX_ROWS, MUTED, layered, thin, time_unit, title
from labkit.results.fidelity import PARTS

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
    return alt.Scale(domain=list(ids), range=[PALETTE[i % len(PALETTE)] for i in range(len(ids))])


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
    said = "dashed: as predicted; above it, reality took longer"
    return layered(*charts, height=400, title=title(heading, said, note)).properties(width=400)


def _names(shown: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """Return the names of some points, above those in the upper half and below the others' line."""
    right = shown.assign(left=shown["x"] > 0.7 * shown["x"].max())
    text = alt.Chart(right).encode(x=x, y=y, text="id:N")
    far = text.mark_text(align="right", dx=-9, fontSize=11, color=MUTED).transform_filter("datum.left")
    near = text.mark_text(align="left", dx=9, fontSize=11, color=MUTED).transform_filter("!datum.left")
    return alt.layer(far, near)  # type: ignore[return-value]


def plot_gantts(
    held: dict[str, pd.DataFrame], tables: dict[str, pd.DataFrame], *, limit: int = MAX_ROWS
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
    shown = {name: each[each["id"].isin(ids)] for name, each in held.items()}
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


def _gantt(name: str, held: pd.DataFrame, jobs: pd.DataFrame, *, ids: list[str], until_s: float) -> alt.LayerChart:
    scale_s, unit = time_unit(until_s)
    lives = jobs.assign(start=jobs["arrival_s"] / scale_s, end=jobs["completion_s"].fillna(until_s) / scale_s)
    lives = lives[["id", "start", "end"]].round(4)
    shown = held.assign(start=held["start_s"] / scale_s, end=held["end_s"] / scale_s, height=0.9 * held["share"] * ROW)
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
    note = f"all together {gap} of the real mean JCT; red: reality took longer"
    return layered(bars, zero, above, below, height=alt.Step(30), title=title(heading, note))


def _says(gap: float, percent: float, unit: str) -> str:
    """Say a gap.

    >>> _says(1.234, 5.04, "s"), _says(0.0, 0.0, "s")
    ('+1.23 s, +5.0 %', '0')
    """
    return f"{gap:+,.2f} {unit}, {percent:+.1f} %" if gap else "0"

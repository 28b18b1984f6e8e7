"""How true a simulation was: JCT against JCT, Gantt over Gantt, and what the gap is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, LINE, MAX_ROWS, MUTED, layered, thin, time_unit, title
from labkit.results.fidelity import PARTS

PALETTE: Final = (
    "#2563d8", "#e59a2b", "#0f9d9a", "#d4345f", "#9254d6", "#2b9f5c", "#4fb3d9", "#c4571b", "#7b8798", "#8a6d1d",
)  # fmt: skip
SLOWER, FASTER: Final = "#e5484d", "#2b9f5c"
MOST_JOBS: Final = 40
LOG_FROM: Final = 20.0
"""Longest over shortest JCT from which on both axes are logarithmic."""


def job_colours(ids: Sequence[str]) -> alt.Scale:
    """Return the colour of each job, the same in every figure of a comparison; after ten they begin anew."""
    return alt.Scale(domain=list(ids), range=[PALETTE[i % len(PALETTE)] for i in range(len(ids))])


def plot_fidelity(
    table: pd.DataFrame, *, heading: str = "Foretold and real JCT", limit: int = MAX_ROWS
) -> alt.LayerChart:
    """Draw the real JCT of each job against the foretold one; a right prediction is a point on the line y = x.

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
    drawn = layered(*charts, height=400, title=title(heading, "dashed: as foretold; above it, reality took longer", note))
    return drawn.properties(width=400)


def _names(shown: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """Return the names of some points, above those in the upper half and below the others' line."""
    right = shown.assign(left=shown["x"] > 0.7 * shown["x"].max())
    text = alt.Chart(right).encode(x=x, y=y, text="id:N")
    far = text.mark_text(align="right", dx=-9, fontSize=11, color=MUTED).transform_filter("datum.left")
    near = text.mark_text(align="left", dx=9, fontSize=11, color=MUTED).transform_filter("!datum.left")
    return alt.layer(far, near)  # type: ignore[return-value]


def plot_gantts(
    bars: dict[str, pd.DataFrame], tables: dict[str, pd.DataFrame], *, limit: int = MAX_ROWS
) -> alt.VConcatChart:
    """Draw a Gantt chart over another one, with one axis of time and the same colour for a job in both.

    A thin line goes from a job's arrival to its completion; a bar says that it holds tasks, and its height how many
    workers: all that the job ever had in either run is the full height.

    Parameters
    ----------
    bars, tables : dict
        Name of the run -> from `labkit.results.gantt`, and from `labkit.results.job_table`.
    limit : int
        The most stretches to draw per run; the longest are kept.
    """
    ids = list(dict.fromkeys(name for table in tables.values() for name in table["id"]))[:MOST_JOBS]
    until_s = max((float(table["completion_s"].max()) for table in tables.values() if len(table)), default=0.0)
    until_s = max([until_s, 1e-9, *(float(each["end_s"].max()) for each in bars.values() if len(each))])
    workers = {name: _workers(each[each["id"].isin(ids)], limit=limit) for name, each in bars.items()}
    most = pd.concat(workers.values()).groupby("id")["workers"].max() if workers else pd.Series(dtype=float)
    scale_s, unit = time_unit(until_s)
    charts = [
        _gantt(name, workers[name].assign(share=lambda f: f["workers"] / f["id"].map(most)), table, ids, until_s, scale_s, unit)
        for name, table in tables.items()
    ]
    return alt.vconcat(*charts, spacing=14).resolve_scale(color="shared")


def _workers(bars: pd.DataFrame, *, limit: int) -> pd.DataFrame:
    """Return the workers of each job from when to when: id, start_s, end_s, workers."""
    held = bars[(bars["role"] == "worker") & (bars["end_s"] > bars["start_s"])]
    held = held.groupby(["id", "start_s", "end_s"], as_index=False, sort=False)["count"].sum()
    held["seconds"] = held["end_s"] - held["start_s"]
    return held.nlargest(limit, "seconds").sort_index().rename(columns={"count": "workers"})


def _gantt(
    name: str,
    held: pd.DataFrame,
    table: pd.DataFrame,
    ids: list[str],
    until_s: float,
    scale_s: float,
    unit: str,
) -> alt.LayerChart:
    jobs = table[table["id"].isin(ids)]
    lives = jobs.assign(start=jobs["arrival_s"] / scale_s, end=jobs["completion_s"].fillna(until_s) / scale_s)
    row = 18
    half = 0.45 * held["share"] * row
    shown = held.assign(start=held["start_s"] / scale_s, end=held["end_s"] / scale_s, half=half)
    y = alt.Y("id:N", sort=ids, title=None, axis=alt.Axis(grid=False, domain=False, ticks=False, labelLimit=130))
    x = alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False))
    waits = (
        alt.Chart(lives[["id", "start", "end"]].round(4)).mark_rule(color=LINE, strokeWidth=1.4).encode(x=x, x2="end:Q", y=y)
    )
    works = (
        alt.Chart(shown[["id", "start", "end", "workers", "half"]].round(4))
        .mark_bar(cornerRadiusEnd=0)
        .encode(
            x=x, x2="end:Q", y=y,
            size=alt.Size("half:Q", legend=None, scale=alt.Scale(domain=[0, row], range=[0, 2 * row])),
            color=alt.Color("id:N", scale=job_colours(ids), legend=None),
            tooltip=[
                alt.Tooltip("id:N", title="job"),
                alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
                alt.Tooltip("end:Q", title=f"to ({unit})", format=",.2f"),
                alt.Tooltip("workers:Q"),
            ],
        )
    )  # fmt: skip
    return layered(waits, works, height=alt.Step(row), title=title(name))


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
    reach = max(float(shown["gap"].abs().max()), 1e-9)
    span = [min(1.6 * float(shown["gap"].min()), -0.35 * reach), max(1.6 * float(shown["gap"].max()), 0.35 * reach)]
    y = alt.Y("part:N", sort=list(PARTS), title=None, axis=alt.Axis(labelFontSize=12, labelColor=INK, grid=False))
    x = alt.X("gap:Q", title=f"Real - simulated, mean per job ({unit})", scale=alt.Scale(domain=span, nice=False))
    tooltip = ["part:N", "what:N", alt.Tooltip("gap:Q", title=unit, format="+,.3f"), alt.Tooltip("percent:Q", format="+.2f")]
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
    gap = _says(float(table.loc["all", "gap_s"]) / scale_s, float(table.loc["all", "percent"]), unit)
    note = f"all together {gap} of the real mean JCT; red: reality took longer"
    return layered(bars, zero, above, below, height=alt.Step(30), title=title(heading, note))


def _says(gap: float, percent: float, unit: str) -> str:
    """Say a gap.

    >>> _says(1.234, 5.04, "s"), _says(0.0, 0.0, "s")
    ('+1.23 s, +5.0 %', '0')
    """
    return f"{gap:+,.2f} {unit}, {percent:+.1f} %" if gap else "0"



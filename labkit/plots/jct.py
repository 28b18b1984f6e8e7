"""Job completion times: distribution and means, over the arrival rate, against an equal share, deadlines and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.resources import Floats
from labkit.plots.bars_and_lines import line_ends, names_at
from labkit.plots.theme import (
    INK,
    MAX_ROWS,
    MUTED,
    SHADES,
    layered,
    line_legend,
    line_looks,
    name_axis,
    scheduler_colours,
    thin_lines,
    time_unit,
    title,
)  # fmt: skip
from labkit.results.comparison import dollars, late_by_s
from labkit.results.record import RunRecord


def plot_jct_cdf(curve: pd.DataFrame, *, log: bool | None = None, limit: int = MAX_ROWS) -> alt.LayerChart:
    """Draw the distribution of JCTs, a line per scheduler.

    Parameters
    ----------
    curve : DataFrame
        From `labkit.results.jct_cdf`: scheduler, jct_s, fraction.
    log : bool, optional
        Logarithmic time; by default where the largest JCT is more than 100 times the median.
    limit : int
        The most points to draw.
    """
    longest_s = float(curve["jct_s"].max()) if len(curve) else 1.0
    if log is None:
        log = bool(len(curve) and longest_s > 100 * curve["jct_s"].median())
    usual_s = float(curve.groupby("scheduler")["jct_s"].max().median()) if len(curve) else 1.0
    scale_s, unit = time_unit(usual_s)
    names = list(dict.fromkeys(curve["scheduler"]))
    shown, note = thin_lines(curve, limit=limit)
    jct = [_significant(jct_s / scale_s) for jct_s in shown["jct_s"]]
    shown = shown.assign(jct=jct)[["scheduler", "jct", "fraction"]].round({"fraction": 5})
    colours = scheduler_colours(names)
    chosen = alt.selection_point(fields=["scheduler"], bind="legend")
    lines = (
        alt.Chart(shown)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("jct:Q", title=f"JCT ({unit})", scale=alt.Scale(type="log" if log else "linear", nice=True)),
            y=alt.Y("fraction:Q", title="Fraction of jobs", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            **line_looks("scheduler", colours, legend=line_legend(names)),
            opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.2)),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("jct:Q", title=f"JCT ({unit})", format=",.4~g"),
                alt.Tooltip("fraction:Q", title="jobs done by then", format=".1%"),
            ],
        )
        .add_params(chosen)
    )
    half = alt.Chart(pd.DataFrame({"y": [0.5]})).mark_rule(strokeDash=[3, 4], color=INK, opacity=0.3).encode(y="y:Q")
    return layered(
        half,
        lines,
        height=300,
        title=title(
            "How long jobs take", "the dashed line marks half of the jobs; click a name to single it out", note
        ),
    )


def _significant(value: float, *, digits: int = 6) -> float:
    """Return a number with so many significant digits: what is short in a long unit must not become 0.

    >>> _significant(0.4 / 86400), _significant(1234.56789)
    (4.62963e-06, 1234.57)
    """
    return float(f"{value:.{digits}g}")


def plot_jct_bars(comparison: pd.DataFrame) -> alt.LayerChart:
    """Draw the mean JCT of each run as a bar, its median and its 95th percentile as marks.

    A run that did not complete all its jobs has no bar: its means are over the jobs that were quick enough.

    Parameters
    ----------
    comparison : DataFrame
        From `labkit.results.run_table`: label, mean_jct_s, median_jct_s, p95_jct_s, n_done, n_trace.
    """
    shown, unit = _bars(comparison)
    order = shown.sort_values(["cut", "mean"], kind="stable")["label"].tolist()
    y = alt.Y("label:N", title=None, sort=order, axis=name_axis(order))
    base = alt.Chart(shown).encode(y=y)
    colours = alt.Color("label:N", scale=scheduler_colours(shown["label"]), legend=None)
    axis = f"JCT ({unit}): bar = mean, tick = median, dot = 95th percentile"
    tooltip = [alt.Tooltip(f"{name}:Q", title=f"{name} ({unit})", format=",.2f") for name in COLUMNS]
    whisker = base.mark_rule(strokeWidth=1.6).encode(x="mean:Q", x2="p95:Q", color=colours)
    end = base.mark_point(filled=True, size=46, opacity=1).encode(x="p95:Q", color=colours, tooltip=tooltip)
    ends = [0.0, 1.1 * max(float(shown[["mean", "median", "p95"]].to_numpy().max()), 1e-9)]
    x = alt.X("mean:Q", title=axis, scale=alt.Scale(domain=ends, nice=False))
    bars = base.mark_bar(height=16).encode(x=x, color=colours, tooltip=tooltip)
    median = base.mark_tick(color="white", thickness=2, size=16, opacity=0.9).encode(x="median:Q")
    of_mean = base.mark_text(align="left", dx=3, dy=-15, fontSize=11.5, color=INK).encode(x="mean:Q", text="says:N")
    of_p95 = base.mark_text(align="left", dx=8, fontSize=11, color=MUTED).encode(x="p95:Q", text="says_p95:N")
    note = "Shorter is better. Label: mean JCT and its ratio to the best scheduler. Dot: 95th percentile."
    cut = f"{int(shown['cut'].sum())} without a bar: not all jobs were done" if shown["cut"].any() else ""
    return layered(
        bars, median, whisker, end, of_mean, of_p95,
        height=alt.Step(46), title=title("Mean job completion time", note, cut),
    )  # fmt: skip


COLUMNS = ("mean", "median", "p95")


def _three(value: float) -> str:
    """Return three digits, and never fewer than all before the point: 42.5, 276, 1,703."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bars(comparison: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the bars of each run in one unit of time; NaN where a run has no number."""
    n_done, n_trace = comparison["n_done"], comparison["n_trace"]
    whole = comparison.where(n_done == n_trace)
    usual_s = float(whole["mean_jct_s"].median())  # one slow scheduler does not choose the unit of all
    scale_s, unit = time_unit(usual_s if np.isfinite(usual_s) else 1.0)
    shown = comparison[["label"]].assign(**{name: whole[f"{name}_jct_s"] / scale_s for name in COLUMNS})
    shown["cut"] = n_done != n_trace
    best = shown["mean"].min()
    shown["says"] = [
        f"{_three(mean)} {unit}, {mean / best:.2f}x" if not cut else f"no bar: {done:,.0f} of {of:,.0f} jobs done"
        for mean, cut, done, of in zip(shown["mean"], shown["cut"], n_done, n_trace, strict=True)
    ]
    shown["says_p95"] = ["" if np.isnan(p95) else _three(p95) for p95 in shown["p95"]]
    return shown.fillna(dict.fromkeys(COLUMNS, 0.0)), unit


LABEL = 280
"""Pixels for a name in the legend: schedulers with options have long ones."""


def plot_jct_by_load(table: pd.DataFrame, *, load: str = "Jobs that arrive per hour") -> alt.LayerChart:
    """Draw the mean JCT of each scheduler as a line over the arrival rate; names stand at line ends that are apart.

    Parameters
    ----------
    table : DataFrame
        One row per run: scheduler, arrival_rate (or load), mean_jct_s. Seeds with the same rate are averaged.
    load : str
        Title of the axis.
    """
    names = list(dict.fromkeys(table["scheduler"]))
    scale_s, unit = time_unit(float(table["mean_jct_s"].max()))
    rate = "arrival_rate" if "arrival_rate" in table else "load"
    table = table.rename(columns={rate: "load"})
    shown = table.groupby(["scheduler", "load"], sort=False)["mean_jct_s"].agg(["mean", "size"]).reset_index()
    shown = shown.assign(jct=(shown["mean"] / scale_s).round(4))[["scheduler", "load", "jct", "size"]]
    most = int(shown["size"].max())
    note = f"mean of up to {most} runs at each rate" if most > 1 else ""
    legend = line_legend()
    legend.labelLimit = LABEL
    ends = line_ends(shown, "load", "jct", "scheduler", zero=True)
    looks = line_looks("scheduler", scheduler_colours(names), legend=legend if ends is None else None)
    x = alt.X(
        "load:Q", title=load, scale=alt.Scale(zero=False, nice=False, padding=16),
        axis=alt.Axis(values=sorted(set(shown["load"])), format=",~r"),
    )  # fmt: skip
    y = alt.Y("jct:Q", title=f"Mean JCT ({unit})", scale=alt.Scale(zero=True))
    lines = (
        alt.Chart(shown)
        .mark_line(point=alt.OverlayMarkDef(size=50, opacity=1))
        .encode(
            x=x,
            y=y,
            **looks,
            tooltip=["scheduler", alt.Tooltip("load:Q", format=",~r"), alt.Tooltip("jct:Q", format=",.2f")],
        )
    )
    named = [] if ends is None else [names_at(ends, x, y, "scheduler", colour=looks["color"])]
    return layered(lines, *named, height=340, title=title("The same jobs, faster and faster", note))


HEIGHT = 260
TICKS = [ratio * 10**power for power in range(-3, 5) for ratio in (1, 2, 5)]


def plot_fairness(rho: pd.DataFrame, *, limit: int = MAX_ROWS) -> alt.LayerChart:
    """Draw the distribution of rho, a line per scheduler; left of 1 a job gained from sharing, right of it it lost.

    Parameters
    ----------
    rho : DataFrame
        Columns scheduler, rho (`labkit.results.finish_time_fairness`, or JCT / `fair_share_s`).
    limit : int
        The most points to draw.
    """
    known = rho.dropna(subset="rho").sort_values(["scheduler", "rho"], kind="stable")
    names = [name for name in dict.fromkeys(rho["scheduler"]) if (known["scheduler"] == name).any()]
    rank = known.groupby("scheduler").cumcount() + 1
    known = known.assign(fraction=rank / known.groupby("scheduler")["rho"].transform("size"))
    shown, note = thin_lines(known[["scheduler", "rho", "fraction"]], limit=limit)
    shown = shown.round(5)
    x = alt.X(
        "rho:Q",
        title="ρ = JCT / JCT with an equal share (no unit)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=TICKS),
    )
    lines = (
        alt.Chart(shown)
        .mark_line(interpolate="step-after")
        .encode(
            x=x,
            y=alt.Y("fraction:Q", title="Fraction of jobs", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            **line_looks("scheduler", scheduler_colours(names), legend=line_legend(names)),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("rho:Q", title="ρ", format=".2f"),
                alt.Tooltip("fraction:Q", title="jobs at most there", format=".1%"),
            ],
        )
    )
    one = pd.DataFrame({"rho": [1.0], "says": ["fair"]})
    rule = alt.Chart(one).mark_rule(strokeDash=[4, 3], color=INK, opacity=0.6).encode(x="rho:Q")
    word = alt.Chart(one).mark_text(align="left", dx=5, dy=-6, color=MUTED, baseline="bottom", fontSize=11)
    label = word.encode(x="rho:Q", y=cast(alt.Y, alt.value("height")), text="says:N")
    return layered(
        rule,
        label,
        lines,
        height=HEIGHT,
        title=title("Finish-time fairness", "right of 1: later than with an equal share", note),
    )


COLOUR = SHADES[0]
"""Of all points: their names stand beside them."""


def cost_table(
    records: Mapping[str, RunRecord], *, prices: Mapping[str, float], slo_s: Floats | None = None, grace_s: float = 0.0
) -> pd.DataFrame:
    """Return one row per run: label, dollars, violations (fraction of jobs with an SLO), worst_s, mean_jct_s.

    Parameters
    ----------
    records : mapping
        Label -> run.
    prices : mapping
        Dollars per GPU and hour by device type.
    slo_s : array, optional
        As for `late_by_s`.
    grace_s : float
        A job that is late by no more than this is in time.
    """
    rows = []
    for label, record in records.items():
        late_s = late_by_s(record, slo_s=slo_s)
        late_s = late_s[~np.isnan(late_s)]
        rows.append(
            {
                "label": label,
                "dollars": dollars(record, prices=prices),
                "violations": float((late_s > grace_s).mean()) if len(late_s) else np.nan,
                "worst_s": float(late_s.max(initial=-np.inf)),
                "mean_jct_s": record.summary["mean_jct_s"],
            }
        )
    return pd.DataFrame(rows)


def plot_cost(table: pd.DataFrame) -> alt.LayerChart:
    """Draw a table from `cost_table`: a point per run, dollars across, SLO violations up. Best is bottom left."""
    shown = table[["label", "dollars", "violations"]].round({"dollars": 1, "violations": 4})
    least, most = float(shown["dollars"].min()), float(shown["dollars"].max())
    room = max(most - least, 0.05 * most, 1e-9)  # for the names, on the right
    base = alt.Chart(shown).encode(
        x=alt.X(
            "dollars:Q", title="Cost of the GPUs held ($)", axis=alt.Axis(format="$,.0f"),
            scale=alt.Scale(domain=[least - 0.1 * room, most + 0.4 * room], nice=False),
        ),
        y=alt.Y(
            "violations:Q", title="Fraction of jobs that miss their SLO", axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, max(1.15 * float(shown["violations"].max()), 0.05)], nice=False),
        ),
    )  # fmt: skip
    points = base.mark_point(filled=True, size=130, opacity=1, color=COLOUR).encode(
        tooltip=[
            alt.Tooltip("label:N", title="run"),
            alt.Tooltip("dollars:Q", format="$,.0f"),
            alt.Tooltip("violations:Q", format=".1%"),
        ]
    )
    named = base.mark_text(align="left", dx=10, dy=-10, fontSize=12, color=INK).encode(text="label:N")
    return layered(
        points, named, height=300,
        title=title("Cost against missed SLOs", "best is bottom left; the axis of dollars does not begin at 0"),
    )  # fmt: skip

"""Job completion times: the distribution, and the mean, median and 95th percentile side by side."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, MAX_ROWS, layered, line_legend, scheduler_colours, thin_lines, time_unit, title


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
    scale_s, unit = time_unit(longest_s)
    names = list(dict.fromkeys(curve["scheduler"]))
    shown, note = thin_lines(curve, limit=limit)
    shown = shown.assign(jct=shown["jct_s"] / scale_s)[["scheduler", "jct", "fraction"]].round(5)
    colours = scheduler_colours(names)
    chosen = alt.selection_point(fields=["scheduler"], bind="legend")
    lines = (
        alt.Chart(shown)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("jct:Q", title=f"JCT ({unit})", scale=alt.Scale(type="log" if log else "linear", nice=True)),
            y=alt.Y("fraction:Q", title="Fraction of jobs", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            color=alt.Color("scheduler:N", legend=line_legend(), scale=colours),
            opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.2)),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("jct:Q", title=f"JCT ({unit})", format=",.2f"),
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
            "How long jobs take", "distribution of job completion times (JCT); click a name to single it out", note
        ),
    )


def plot_jct_bars(comparison: pd.DataFrame) -> alt.LayerChart:
    """Draw the mean JCT of each run as a bar, its median and its 95th percentile as marks.

    Parameters
    ----------
    comparison : DataFrame
        From `labkit.results.compare`: label, mean_jct_s, median_jct_s, p95_jct_s.
    """
    scale_s, unit = time_unit(float(comparison["p95_jct_s"].max()))
    columns = ("mean", "median", "p95")
    shown = comparison[["label"]].assign(**{name: comparison[f"{name}_jct_s"] / scale_s for name in columns})
    order = shown.sort_values("mean", kind="stable")["label"].tolist()
    best = shown["mean"].min()
    shown["says"] = [
        "no job completed" if np.isnan(mean) else f"{mean:,.3g} {unit}, {mean / best:.2f}x" for mean in shown["mean"]
    ]
    shown = shown.fillna(0.0)
    y = alt.Y("label:N", title=None, sort=order, axis=alt.Axis(labelFontSize=12, labelColor=INK))
    base = alt.Chart(shown).encode(y=y)
    colours = alt.Color("label:N", scale=scheduler_colours(shown["label"]), legend=None)
    axis = f"JCT ({unit}): bar = mean, line to the dot = 95th percentile, tick = median"
    tooltip = [alt.Tooltip(f"{name}:Q", title=f"{name} ({unit})", format=",.2f") for name in columns]
    whisker = base.mark_rule(strokeWidth=1.6).encode(x="mean:Q", x2="p95:Q", color=colours)
    end = base.mark_point(filled=True, size=46, opacity=1).encode(x="p95:Q", color=colours, tooltip=tooltip)
    bars = base.mark_bar(height=22).encode(x=alt.X("mean:Q", title=axis), color=colours, tooltip=tooltip)
    median = base.mark_tick(color="white", thickness=2, size=22, opacity=0.9).encode(x="median:Q")
    said = base.mark_text(align="left", dx=9, fontSize=12, color=INK).encode(x="p95:Q", text="says:N")
    return layered(
        bars,
        median,
        whisker,
        end,
        said,
        height=alt.Step(40),
        title=title("Mean job completion time", "shorter is better; x: times the best"),
    )

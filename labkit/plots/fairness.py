"""Finish-time fairness: how many jobs finish later than an equal share of the cluster would have let them."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import INK, MAX_ROWS, MUTED, layered, line_legend, scheduler_colours, thin_lines, title

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
            color=alt.Color("scheduler:N", legend=line_legend(names), scale=scheduler_colours(names)),
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
    said = word.encode(x="rho:Q", y=alt.value(HEIGHT), text="says:N")
    return layered(
        rule,
        said,
        lines,
        height=HEIGHT,
        title=title("Finish-time fairness", "right of 1: later than with an equal share", note),
    )

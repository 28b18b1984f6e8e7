"""How jobs spend their time: waiting, scaling overhead, training."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, layered, name_axis, time_unit, title

PARTS = {"training_s": "training", "overhead_s": "overhead", "waiting_s": "waiting"}
STATE_SHADES = {"training": "#2563d8", "overhead": "#e5484d", "waiting": "#d5dbe4"}


def _bars(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return the parts of the bars, what is written beside each, and the unit of time.

    Parts: scheduler, part, order, time; beside: scheduler, total, says.
    """
    means = {name: table[list(PARTS)].mean() for name, table in tables.items()}
    scale_s, unit = time_unit(float(np.median([mean.sum() for mean in means.values()])) if means else 1.0)
    rows = [
        {"scheduler": name, "part": part, "order": order, "time": float(mean[column]) / scale_s}
        for name, mean in means.items()
        for order, (column, part) in enumerate(PARTS.items())
    ]
    shown = pd.DataFrame(rows, columns=["scheduler", "part", "order", "time"])
    total = shown.groupby("scheduler", sort=False)["time"].sum()
    overhead = shown[shown["part"] == "overhead"].set_index("scheduler")["time"]
    holding = total - shown[shown["part"] == "waiting"].set_index("scheduler")["time"]
    said = pd.DataFrame({"scheduler": total.index, "total": total.to_numpy()})
    said["says"] = [f"{overhead[name] / max(holding[name], 1e-12):.1%} overhead" for name in total.index]
    return shown, said, unit


def plot_overheads(tables: Mapping[str, pd.DataFrame]) -> alt.LayerChart:
    """Draw the mean time per job in each state, a bar per scheduler.

    Overhead: a job holds tasks and makes no progress: start, checkpoint, move, restart.

    Parameters
    ----------
    tables : mapping
        Scheduler -> table from `labkit.results.job_table`.
    """
    shown, said, unit = _bars(tables)
    y = alt.Y("scheduler:N", sort=list(tables), title=None, axis=name_axis(tables))
    bars = (
        alt.Chart(shown)
        .mark_bar(height=22, cornerRadiusEnd=0)
        .encode(
            y=y,
            x=alt.X(
                "sum(time):Q",
                title=f"Mean time per job ({unit})",
                stack="zero",
                scale=alt.Scale(domainMax=1.2 * float(said["total"].max())),
            ),
            color=alt.Color(
                "part:N",
                title=None,
                legend=alt.Legend(orient="bottom"),
                scale=alt.Scale(domain=list(STATE_SHADES), range=list(STATE_SHADES.values())),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                "scheduler:N",
                alt.Tooltip("part:N", title="is"),
                alt.Tooltip("time:Q", title=unit, format=",.3f"),
            ],
        )
    )
    words = (
        alt.Chart(said).mark_text(align="left", dx=6, color=INK, fontSize=12).encode(y=y, x="total:Q", text="says:N")
    )
    return layered(
        bars,
        words,
        height=alt.Step(44),
        title=title("How jobs spend their time", "overhead: of the time in which a job holds tasks"),
    )

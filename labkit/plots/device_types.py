"""GPU-hours that jobs held of each device type: the question of clusters with several types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import INK, layered, name_axis, title
from labkit.results.intervals import holdings
from labkit.results.record import RunRecord

TYPE_SHADES: Final = ("#2f6fce", "#c8791a", "#7a8798", "#2b9f86", "#b8548f", "#8a6d1d", "#6fb1e8", "#c4571b")
"""Of device types, in the order of the cluster; further ones begin again."""


def gpu_hours(records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return what jobs held of each device type, a row per run and type.

    Columns: scheduler, device_type, order (of the type in the cluster), gpu_h (GPU-hours), share (of all GPU-hours of
    the run), held (of what GPUs of this type were there for from the first arrival to the last completion).
    """
    rows = []
    for name, record in records.items():
        held = holdings(record.events, record.jobs)
        kinds = record.cluster.device_types
        gpu_h = np.bincount(record.cluster.group_type[held.group], held.gpu_s, len(kinds)) / 3600
        there_h = record.cluster.gpus_of_type() * record.summary["makespan_s"] / 3600
        rows += [
            {
                "scheduler": name,
                "device_type": kind,
                "order": order,
                "gpu_h": float(gpu_h[order]),
                "share": float(gpu_h[order] / max(gpu_h.sum(), 1e-12)),
                "held": float(gpu_h[order] / there_h[order]) if there_h[order] > 0 else np.nan,
            }
            for order, kind in enumerate(kinds)
        ]
    return pd.DataFrame(rows)


def plot_gpu_hours(table: pd.DataFrame) -> alt.LayerChart:
    """Draw a table from `gpu_hours`: a bar per run, a part per device type, with its part of the run's GPU-hours."""
    names = list(dict.fromkeys(table["scheduler"]))
    kinds = list(dict.fromkeys(table["device_type"]))
    scale = alt.Scale(domain=kinds, range=[TYPE_SHADES[i % len(TYPE_SHADES)] for i in range(len(kinds))])
    shown = table.assign(until=table.groupby("scheduler", sort=False)["gpu_h"].cumsum())
    shown["since"] = shown["until"] - shown["gpu_h"]
    most = float(shown["until"].max()) or 1.0
    shown["middle"] = (shown["since"] + shown["until"]) / 2
    shown["says"] = [
        f"{share:.0%}" if gpu_h > 0.04 * most else ""
        for share, gpu_h in zip(shown["share"], shown["gpu_h"], strict=True)
    ]
    total = shown.groupby("scheduler", sort=False, as_index=False)["until"].max()
    total["all"] = [f"{hours:,.4g} GPU-hours" for hours in total["until"]]
    y = alt.Y("scheduler:N", sort=names, title=None, axis=name_axis(names))
    x = alt.X("since:Q", title="GPU-hours held", scale=alt.Scale(domain=[0, 1.25 * most], nice=False))
    base = alt.Chart(shown).encode(y=y)
    bars = base.mark_bar(height=22, cornerRadiusEnd=0).encode(
        x=x, x2="until:Q",
        color=alt.Color("device_type:N", title="Device type", scale=scale, legend=alt.Legend(orient="bottom")),
        tooltip=[
            alt.Tooltip("scheduler:N", title="run"),
            alt.Tooltip("device_type:N", title="device type"),
            alt.Tooltip("gpu_h:Q", title="GPU-hours", format=",.1f"),
            alt.Tooltip("share:Q", title="of this run's GPU-hours", format=".1%"),
            alt.Tooltip("held:Q", title="of the time of these GPUs", format=".1%"),
        ],
    )  # fmt: skip
    inside = base.mark_text(fontSize=11, color="white").encode(x="middle:Q", text="says:N")
    beside = (
        alt.Chart(total).mark_text(align="left", dx=6, color=INK, fontSize=12).encode(y=y, x="until:Q", text="all:N")
    )
    note = "GPU-hours that jobs held; in a part: its share of the run's GPU-hours"
    return layered(bars, inside, beside, height=alt.Step(44), title=title("Which types of GPU jobs get", note))

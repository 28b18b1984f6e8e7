"""Cluster heat-map: how full each machine is over time."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import HEAT, MAX_ROWS, MUTED, WIDTH, time_unit, title


def plot_heat_map(cells: pd.DataFrame, *, heading: str = "Where the work is", limit: int = MAX_ROWS) -> alt.Chart:
    """Draw machines as rows, time as columns, the fraction of GPUs held as colour.

    Parameters
    ----------
    cells : DataFrame
        From `labkit.results.heat_map`.
    heading : str
        Title of the figure, e.g. the scheduler's name.
    limit : int
        The most cells to draw; with more, neighbouring machines share a row.
    """
    shown, note = _banded(cells, limit=limit)
    until_s = float(cells["end_s"].max()) if len(cells) else 1.0
    scale_s, unit = time_unit(until_s)
    shown = shown.assign(start=shown["start_s"] / scale_s, end=shown["end_s"] / scale_s)
    order = list(dict.fromkeys(shown["machine"]))
    every = -(-len(order) // 24)
    labels = alt.Axis(values=order[::every], labelFontSize=9, labelColor=MUTED, grid=False)
    chart: alt.Chart = (
        alt.Chart(shown[["machine", "start", "end", "fraction", "gpus"]].round(4))
        .mark_rect(aria=False)
        .encode(
            x=alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            x2="end:Q",
            y=alt.Y("machine:N", sort=order, title="Machine", axis=labels),
            color=alt.Color(
                "fraction:Q",
                title="GPUs held",
                scale=alt.Scale(domain=[0, 1], range=list(HEAT)),
                legend=alt.Legend(format="%"),
            ),
            tooltip=[
                alt.Tooltip("machine:N", title="machine"),
                alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
                alt.Tooltip("gpus:Q", title="GPUs held", format=",.2f"),
                alt.Tooltip("fraction:Q", title="of its GPUs", format=".0%"),
            ],
        )
        .properties(
            width=WIDTH, height=alt.Step(max(5, min(18, 420 // max(len(order), 1)))), title=title(heading, note)
        )
    )
    return chart


def _banded(cells: pd.DataFrame, *, limit: int) -> tuple[pd.DataFrame, str]:
    """Put neighbouring machines into one row where there would be too many cells."""
    n_bins = max(cells["bin"].nunique(), 1)
    machines = list(dict.fromkeys(cells["machine"]))
    per_band = -(-len(machines) * n_bins // limit)
    if per_band <= 1:
        return cells, ""
    band_of = {name: i // per_band for i, name in enumerate(machines)}
    last = {band: name for name, band in band_of.items()}
    first = {band: name for name, band in reversed(band_of.items())}
    bands = cells.assign(band=cells["machine"].map(band_of))
    summed = bands.groupby(["band", "bin", "start_s", "end_s"], as_index=False).agg(
        gpus=("gpus", "sum"), fraction=("fraction", "mean")
    )
    names = {band: first[band] if first[band] == last[band] else f"{first[band]} … {last[band]}" for band in first}
    return summed.assign(machine=summed["band"].map(names)), f"each row is {per_band} of {len(machines):,} machines"

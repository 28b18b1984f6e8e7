"""GPUs held over time, a band per scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.plots.theme import MAX_ROWS, WIDTH, human_s, scheduler_colours, time_unit, title

N_BINS = 240


def binned(steps: pd.DataFrame, *, edges: np.ndarray) -> np.ndarray:
    """Return the mean of a step function (time_s, fraction) between edges, (len(edges) - 1,).

    >>> steps = pd.DataFrame({"time_s": [0.0, 10.0, 20.0], "fraction": [1.0, 0.0, 0.0]})
    >>> binned(steps, edges=np.array([0.0, 5.0, 15.0, 20.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    time_s, fraction = steps["time_s"].to_numpy(np.float64), steps["fraction"].to_numpy(np.float64)
    area = np.concatenate([[0.0], np.cumsum(fraction[:-1] * np.diff(time_s))])
    mean: np.ndarray = np.diff(np.interp(edges, time_s, area)) / np.diff(edges)
    return mean


def plot_utilisation(steps: Mapping[str, pd.DataFrame]) -> alt.FacetChart:
    """Draw the fraction of GPUs that jobs held over time.

    Parameters
    ----------
    steps : mapping
        Scheduler -> table from `labkit.results.utilisation`.

    Raises
    ------
    InputError
        If there is none.
    """
    if not steps:
        raise InputError("steps is empty; expected the GPUs held of at least one run: {name: utilisation(...)}.")
    until_s = max((float(table["time_s"].max()) for table in steps.values()), default=1.0) or 1.0
    n_bins = min(N_BINS, MAX_ROWS // max(len(steps), 1))
    edges = np.linspace(0.0, until_s, n_bins + 1)
    scale_s, unit = time_unit(until_s)
    names = list(steps)
    shown = pd.concat([_band(name, table, edges=edges, scale_s=scale_s) for name, table in steps.items()])
    bands = (
        alt.Chart(shown)
        .mark_area(interpolate="step-after", opacity=0.85, line=False)
        .encode(
            x=alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            y=alt.Y(
                "held:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", values=[0, 0.5, 1])
            ),
            color=alt.Color("scheduler:N", scale=scheduler_colours(names), legend=None),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("start:Q", title=f"time ({unit})", format=",.2f"),
                alt.Tooltip("held:Q", title="GPUs held", format=".1%"),
            ],
        )
        .properties(width=WIDTH, height=56)
    )
    header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelPadding=2, labelLimit=0)
    note = f"GPUs held of those built, mean of each {human_s(edges[1])}; they are a cost: more is not better"
    facets: alt.FacetChart = (
        bands.facet(row=alt.Row("scheduler:N", sort=names, header=header), spacing=10)
        .properties(title=title("GPUs held over time", note))
        .resolve_scale(x="shared")
    )
    return facets


def _band(name: str, table: pd.DataFrame, *, edges: np.ndarray, scale_s: float) -> pd.DataFrame:
    """Return the band of one scheduler: scheduler, start (in units of `scale_s`), held."""
    held = binned(table, edges=edges).round(4)
    return pd.DataFrame({"scheduler": name, "start": (edges[:-1] / scale_s).round(4), "held": held})

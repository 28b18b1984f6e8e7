"""How a policy learns: mean JCT over the updates of its training. Numbers first, then a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import altair as alt
import pandas as pd

from labkit.plots.theme import layered, title

UPDATES: Final = {"lesson": "#e5762b", "round": "#2563d8"}
SMOOTHED: Final = 20
"""Updates of the running mean."""


def learning_curve(rows: Iterable[Mapping[str, Any]], *, smoothed: int = SMOOTHED) -> pd.DataFrame:
    """Return a point per update: update, kind, mean_jct_slots, and mean, that of the last `smoothed` of its kind.

    Parameters
    ----------
    rows : iterable of mapping
        Of a training's log: update, kind, mean_jct_slots.
    """
    frame = pd.DataFrame(list(rows), columns=["update", "kind", "mean_jct_slots"])
    frame = frame.astype({"update": int, "mean_jct_slots": float})
    means = frame.groupby("kind", sort=False)["mean_jct_slots"].rolling(smoothed, min_periods=1).mean()
    return frame.assign(mean=means.reset_index(level=0, drop=True))


def plot_learning(
    rows: Iterable[Mapping[str, Any]], *, heading: str = "Learning curve", same_traces: bool = False
) -> alt.LayerChart:
    """Draw mean JCT by update as dots and a line, by kind of update.

    Parameters
    ----------
    rows : iterable of mapping
        As `learning_curve` takes them.
    heading : str
        Above the figure.
    same_traces : bool
        All updates were judged on the same traces, so the line goes from dot to dot; False: each has episodes of its
        own, and the line is a running mean.
    """
    curve = learning_curve(rows, smoothed=1 if same_traces else SMOOTHED)
    names = [kind for kind in UPDATES if (curve["kind"] == kind).any()]
    colour = alt.Color(
        "kind:N", title=None, scale=alt.Scale(domain=names, range=[UPDATES[name] for name in names]),
        legend=alt.Legend(orient="bottom", symbolType="stroke", symbolStrokeWidth=3.5, symbolOpacity=1),
    )  # fmt: skip
    base = alt.Chart(curve).encode(
        x=alt.X("update:Q", title="Update"), color=colour,
        tooltip=["update:Q", "kind:N", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("mean_jct_slots", "mean"))],
    )  # fmt: skip
    whose = "of the same traces" if same_traces else "of its episodes"
    y = alt.Y("mean_jct_slots:Q", title=f"Mean JCT {whose} (slots)", scale=alt.Scale(zero=False))
    dots = base.mark_circle(size=14, opacity=0.35).encode(y=y)
    lines = base.mark_line(strokeWidth=2.2).encode(y="mean:Q")
    note = f"the line is the mean of {SMOOTHED} updates; each has traces of its own, and draws its actions"
    if same_traces:
        note = "after each update, on traces that it does not learn from, by its most probable actions"
    return layered(dots, lines, height=280, title=title(heading, note))

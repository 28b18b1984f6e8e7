"""Time to decide against the number of jobs, on logarithmic axes."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import COLOURS, WIDTH, title

CURVES = tuple(COLOURS[name] for name in ("fifo", "drf", "srtf", "optimus", "dl2", "tetris", "las", "marl"))


def plot_scaling(
    table: pd.DataFrame, *, heading: str = "How long a decision takes", said: str = "both axes are logarithmic"
) -> alt.Chart:
    """Draw milliseconds over the number of jobs, a line per method: n_jobs, method, ms."""
    counts = sorted({int(n) for n in table["n_jobs"]})
    names = list(dict.fromkeys(table["method"]))
    chart: alt.Chart = (
        alt.Chart(table[["n_jobs", "method", "ms"]])
        .mark_line(point=alt.OverlayMarkDef(size=50, opacity=1))
        .encode(
            x=alt.X(
                "n_jobs:Q", title="Active jobs (number)",
                scale=alt.Scale(type="log", base=2, domain=[counts[0], counts[-1]], nice=False, padding=14),
                axis=alt.Axis(values=counts, format=",d"),
            ),
            y=alt.Y(
                "ms:Q", title="Time to decide (ms)", scale=alt.Scale(type="log", nice=False, padding=14),
                axis=alt.Axis(values=[10.0**power for power in range(-3, 7)], format=",~g"),
            ),
            color=alt.Color(
                "method:N", title="Method", scale=alt.Scale(domain=names, range=_colours(len(names))),
                legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=3.5, symbolSize=180),
            ),
            tooltip=[
                "method",
                alt.Tooltip("n_jobs:Q", title="jobs", format=",d"),
                alt.Tooltip("ms:Q", title="ms", format=",.3~g"),
            ],
        )
        .properties(width=WIDTH, height=300, title=title(heading, said))
    )  # fmt: skip
    return chart


def _colours(n: int) -> list[str]:
    """Return a colour for each of n methods, which are no schedulers; they begin anew after eight."""
    return [CURVES[i % len(CURVES)] for i in range(n)]

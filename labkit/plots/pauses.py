"""What scaling costs a job: pauses by strategy, and the time of each step (DL2, Fig. 11 and 12)."""

from __future__ import annotations

from typing import Final

import altair as alt
import pandas as pd

from labkit.plots.theme import INK, MUTED, layered, title

STRATEGIES: Final = {"handover": "hand-over", "suspend": "suspend", "checkpoint": "checkpoint, restart"}
BLUE, RED = "#2563d8", "#d4345f"
DELAYS: Final = {"worker stands still": RED, "step is late by": BLUE}
PARTS: Final = {
    "registration_s": "1 registration",
    "assignment_s": "2 assignment",
    "migration_s": "3 migration",
    "update_s": "4 worker update",
}
PART_SHADES: Final = ("#0f9d9a", "#e59a2b", "#2563d8", "#d4345f")
FLOOR_MS: Final = 0.1


def pauses(scalings: pd.DataFrame) -> pd.DataFrame:
    """Return how long each scaling kept workers from working: strategy, kind, ms.

    Parameters
    ----------
    scalings : DataFrame
        From `labkit.elastic.measure.scalings`, of as many jobs as one likes.

    Returns
    -------
    DataFrame
        kind "worker stands still": the published measure, the mean of all workers; "step is late by": that and the
        slowest worker's largest extra wait in a step of the migration (0 where it waited less than usual).
    """
    stood = scalings.assign(kind="worker stands still", ms=1e3 * scalings["suspended_s"])
    live = scalings[scalings["strategy"] != "checkpoint"]
    late = live.assign(kind="step is late by", ms=1e3 * (live["suspended_s"] + live["late_s"].clip(lower=0)))
    return pd.concat([stood, late], ignore_index=True)[["strategy", "kind", "ms"]]


def plot_pauses(
    scalings: pd.DataFrame, *, heading: str = "How long scaling keeps a worker from its work"
) -> alt.LayerChart:
    """Draw the pauses of each strategy on a logarithmic axis: a dot per scaling, the median in words (Fig. 11)."""
    table = pauses(scalings)
    table["row"] = [_row(name, kind) for name, kind in zip(table["strategy"], table["kind"], strict=True)]
    shown = table.assign(ms=table["ms"].clip(lower=FLOOR_MS).round(2))
    here = set(zip(table["strategy"], table["kind"], strict=True))
    order = [_row(name, kind) for name in STRATEGIES for kind in DELAYS if (name, kind) in here]
    y = alt.Y("row:N", sort=order, title=None, axis=alt.Axis(labelFontSize=12, labelColor=INK, labelLimit=240))
    most = 10 * max(float(shown["ms"].max()), 100.0)
    powers = [10.0**k for k in range(-1, 9) if 10.0**k <= most]
    x = alt.X(
        "ms:Q", title="Time (ms), logarithmic", scale=alt.Scale(type="log", domain=[FLOOR_MS / 1.5, most], nice=False),
        axis=alt.Axis(values=powers, format=",~g"),
    )  # fmt: skip
    dots = (
        alt.Chart(shown)
        .mark_circle(size=70, opacity=0.75)
        .encode(
            x=x, y=y,
            color=alt.Color(
                "kind:N", title=None, legend=alt.Legend(orient="bottom"),
                scale=alt.Scale(domain=list(DELAYS), range=list(DELAYS.values())),
            ),
            tooltip=["strategy:N", "kind:N", alt.Tooltip("ms:Q", format=",.1f")],
        )
    )  # fmt: skip
    medians = table.groupby("row", as_index=False)["ms"].median()
    most_each = shown.groupby("row", as_index=False).agg(at=("ms", "max"))
    words = medians.merge(most_each).assign(says=[_ms(ms) for ms in medians["ms"]])
    labels = (
        alt.Chart(words)
        .mark_text(align="left", dx=10, fontSize=12, color=INK)
        .encode(x=alt.X("at:Q", scale=x["scale"]), y=y, text="says:N")
    )
    note = f"a dot is a scaling; in words the median; what is below {FLOOR_MS:g} ms is drawn there"
    return layered(dots, labels, height=alt.Step(34), title=title(heading, note))


def _ms(ms: float) -> str:
    """Say some milliseconds.

    >>> _ms(0.0), _ms(4.27), _ms(3210.0)
    ('0', '4.3 ms', '3.2 s')
    """
    if ms == 0:
        return "0"
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _row(strategy: str, kind: str) -> str:
    """Say what a row of the figure is."""
    name = STRATEGIES.get(strategy, strategy)
    return name if kind == "worker stands still" else f"{name}: slowest step"


def step_times(scalings: pd.DataFrame) -> pd.DataFrame:
    """Return the median time of each of the four steps per model: mb, part, ms.

    Parameters
    ----------
    scalings : DataFrame
        From `labkit.elastic.measure.scalings`, with a column mb, the size of the model.
    """
    medians = scalings.groupby("mb", as_index=False)[list(PARTS)].median()
    long = medians.melt("mb", list(PARTS), var_name="part", value_name="seconds")
    return long.assign(part=long["part"].map(PARTS), ms=1e3 * long["seconds"])[["mb", "part", "ms"]]


def plot_step_times(
    scalings: pd.DataFrame, *, heading: str = "How long each step of adding a PS takes"
) -> alt.LayerChart:
    """Draw the time of each of the four steps, a group of bars per model, in order of size (Fig. 12)."""
    table = step_times(scalings)
    shown = table.assign(
        model=[f"{mb:g} MB" for mb in table["mb"]], ms=table["ms"].round(2), says=[_ms(ms) for ms in table["ms"]]
    )
    order = [f"{mb:g} MB" for mb in sorted(set(table["mb"]))]
    parts = list(PARTS.values())
    bars = (
        alt.Chart(shown)
        .mark_bar(height=11)
        .encode(
            x=alt.X("ms:Q", title="Time (ms)", scale=alt.Scale(domainMax=1.15 * float(table["ms"].max()))),
            y=alt.Y("model:N", sort=order, title="Size of the model", axis=alt.Axis(labelFontSize=12, labelColor=INK)),
            yOffset=alt.YOffset("part:N", sort=parts),
            color=alt.Color(
                "part:N", title="Step", sort=parts, scale=alt.Scale(domain=parts, range=list(PART_SHADES))
            ),
            tooltip=["model:N", "part:N", alt.Tooltip("ms:Q", format=",.2f")],
        )
    )  # fmt: skip
    words = bars.mark_text(align="left", dx=4, fontSize=10, color=MUTED).encode(text="says:N", color=alt.value(MUTED))
    return layered(
        bars, words, height=alt.Step(14),
        title=title(heading, "medians; the newcomer's start-up is not counted, as in the paper"),
    )  # fmt: skip

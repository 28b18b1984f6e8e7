"""Many runs at once: a point for each seed, and the mean with its confidence interval for each scheduler."""

from __future__ import annotations

from typing import cast

import altair as alt
import pandas as pd

from labkit.plots.theme import INK, MUTED, WIDTH, scheduler_colours, time_unit, title
from labkit.results.sweeps import keys_of, sweep_means

FIXED = ("seed", "scheduler")
MAX_LABEL = 60


def plot_sweep(table: pd.DataFrame, *, metric: str = "mean_jct_s", level: float = 0.95) -> alt.FacetChart:
    """Draw a metric of a sweep: a row per scheduler, a panel per combination of what else varies.

    Parameters
    ----------
    table : DataFrame
        From `labkit.sweep` or `labkit.results.read_sweep`.
    metric : str
        One of its columns.
    level : float
        Of the confidence interval over seeds.
    """
    means = sweep_means(table, metric=metric, level=level)
    scale, axis = _axis(metric, float(means["mean"].median()))
    varying = [key for key in keys_of(table) if key not in FIXED and len(set(table[key])) > 1]
    points = table.assign(panel=_panels(table, varying), value=table[metric] / scale, what="seed")
    lines = means.assign(
        panel=_panels(means, varying), **{name: means[name] / scale for name in ("mean", "low", "high")}
    )
    lines["says"] = [f"{mean:,.4g}" for mean in lines["mean"]]
    both = pd.concat(
        [points[["panel", "scheduler", "seed", "value"]], lines[["panel", "scheduler", "mean", "low", "high", "says"]]]
    )
    both = both[both["value"].notna() | both["mean"].notna()].round(5)
    names = list(dict.fromkeys(table["scheduler"]))
    n_failed = int(means["n_failed"].sum())
    drawn = _layers(both, names, axis=axis)
    note = f"a dot is a seed; the bar is the mean with its {level:.0%} confidence interval (Student's t)"
    chart: alt.FacetChart = drawn.facet(
        row=alt.Row("panel:N", title=None, sort=list(dict.fromkeys(points["panel"])), header=_header(bool(varying)))
    ).properties(title=title(_heading(metric), note, f"{n_failed} cells failed and are left out" if n_failed else ""))
    return chart


def _layers(both: pd.DataFrame, names: list[str], *, axis: str) -> alt.LayerChart:
    y = alt.Y("scheduler:N", sort=names, title=None, axis=alt.Axis(labelFontSize=12, labelColor=INK, labelLimit=260))
    colours = alt.Color("scheduler:N", scale=scheduler_colours(names), legend=None)

    def at(column: str) -> alt.X:
        return alt.X(f"{column}:Q", title=axis, scale=alt.Scale(zero=False, padding=24))

    base = alt.Chart(both).encode(y=y, color=colours)
    dots = base.mark_circle(size=52, opacity=0.45).encode(
        x=at("value"),
        tooltip=["scheduler:N", "seed:Q", alt.Tooltip("value:Q", title=axis, format=",.4~g")],
    )
    spans = base.mark_rule(strokeWidth=2.4).encode(x=at("low"), x2="high:Q")
    ends = [
        alt.Tooltip(f"{name}:Q", title=told, format=",.4~g")
        for name, told in (("mean", "mean"), ("low", "at least"), ("high", "at most"))
    ]
    means = base.mark_tick(thickness=3.2, size=20, opacity=1).encode(x=at("mean"), tooltip=["scheduler:N", *ends])
    words = base.mark_text(dy=-15, fontSize=11, color=MUTED).encode(x=at("mean"), text="says:N", color=alt.value(MUTED))
    return cast(alt.LayerChart, alt.layer(dots, spans, means, words).properties(width=WIDTH, height=alt.Step(44)))


def _header(shown: bool) -> alt.Header:
    """Return the heading of a panel, to its upper left; nothing where there is only one."""
    return alt.Header(labelOrient="top", labelAnchor="start", labels=shown, labelLimit=WIDTH)


def _panels(table: pd.DataFrame, varying: list[str]) -> list[str]:
    """Return what tells the panel of each row from others."""
    columns = [table[key] for key in varying]
    return [", ".join(f"{key} {_short(value)}" for key, value in zip(varying, row, strict=True))
            for row in zip(*columns, strict=True)] if varying else [""] * len(table)  # fmt: skip


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _axis(metric: str, typical: float) -> tuple[float, str]:
    """Return what to divide by, and the title of the axis."""
    scale, unit = time_unit(typical) if metric.endswith("_s") else (1.0, "")
    return scale, _heading(metric) + (f" ({unit})" if unit else "")


def _heading(metric: str) -> str:
    plain = metric.removesuffix("_s")
    plain = "number_of_" + plain.removeprefix("n_") if plain.startswith("n_") else plain
    words = plain.replace("_", " ").replace("jct", "JCT")
    return words[:1].upper() + words[1:]

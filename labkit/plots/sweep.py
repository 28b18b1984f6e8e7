"""Many runs at once: a point per seed, means and paired differences of schedulers with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.plots.theme import INK, MUTED, WIDTH, cycled, name_axis, scheduler_colours, time_unit, title
from labkit.results.sweeps import keys_of, pairs_called, sweep_differences, sweep_means

FIXED = ("seed", "scheduler")
MAX_LABEL = 60
UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
"""Seconds of the units of an axis of time."""


def plot_sweep(
    table: pd.DataFrame, *, metric: str = "mean_jct_s", base: str | None = None, level: float = 0.95
) -> alt.FacetChart | alt.VConcatChart:
    """Draw a metric of a sweep: what each scheduler comes to, and below how much it differs from one of them.

    Seeds have much in common: intervals of two means may overlap where one scheduler is better on every seed. Whether
    one is better is told by the differences alone.

    Parameters
    ----------
    table : DataFrame
        From `labkit.sweep` or `labkit.results.read_sweep`.
    metric : str
        One of its columns.
    base : str, optional
        The scheduler with which others are compared; the first one by default.
    level : float
        Of the confidence interval over seeds.
    """
    means = plot_sweep_means(table, metric=metric, level=level)
    if table["scheduler"].nunique() < 2:
        return means
    apart = plot_sweep_differences(table, metric=metric, base=base, level=level)
    return alt.vconcat(means, apart, spacing=34)


def plot_sweep_means(table: pd.DataFrame, *, metric: str = "mean_jct_s", level: float = 0.95) -> alt.FacetChart:
    """Draw a dot per seed and the mean of each scheduler, a panel per combination of what else varies."""
    means = sweep_means(table, metric=metric, level=level)
    scale, axis = _axis_of(means, metric=metric)
    varying = _varying(table)
    points = table.assign(panel=_panels(table, varying), value=table[metric] / scale)
    lines = _scaled(means, varying, scale=scale, says="{:,.4g}")
    both = pd.concat([points[["panel", "scheduler", "seed", "value"]], lines])
    both = both[both["value"].notna() | both["mean"].notna()].round(5)
    n_failed = int(means["n_failed"].sum())
    note = f"One dot per {pairs_called(table)}. Bar: mean with its {level:.0%} confidence interval (Student's t)."
    look = alt.Scale(zero=False, padding=24)
    drawn = _layers(both, list(dict.fromkeys(table["scheduler"])), axis=axis, scale=look)
    panels = list(dict.fromkeys(points["panel"]))
    failed = f"{n_failed} runs failed and are left out" if n_failed else ""
    return _facets(drawn, panels, heading=_heading(metric), notes=[note, failed])


def plot_sweep_differences(
    table: pd.DataFrame,
    *,
    metric: str = "mean_jct_s",
    base: str | None = None,
    level: float = 0.95,
    unit: str | None = None,
    shades: Sequence[str] | None = None,
    digits: int = 3,
) -> alt.FacetChart:
    """Draw how much each scheduler differs from one of them, seed by seed; 0 is no difference.

    An interval that leaves out 0 is a difference that these seeds show.

    Parameters
    ----------
    table, metric, base, level
        As those of `plot_sweep`.
    unit : str, optional
        Of a metric in seconds: s, min, h or days; by default the one in which it reads best.
    shades : sequence of str, optional
        Colours in the order in which schedulers appear, such as those of `plot_bars`; by default the schedulers' own.
    digits : int
        Digits of each difference that are written.

    Raises
    ------
    InputError
        If there is no other scheduler, or no such unit.
    """
    apart = sweep_differences(table, metric=metric, base=base, level=level)
    if not len(apart):
        raise InputError("the sweep has one scheduler; differences need two.")
    names, pair = list(dict.fromkeys(table["scheduler"])), pairs_called(table)
    base = names[0] if base is None else base
    scale, axis = _axis_of(sweep_means(table, metric=metric, level=level), metric=metric, unit=unit)
    varying = _varying(table)
    lines = _scaled(apart, varying, scale=scale, says=f"{{:+,.{digits}g}}")
    lines["says"] += [_signed(f" ({part:+.1%})") if part == part else "" for part in apart["relative"]]
    both = pd.concat([_seed_by_seed(table, varying, metric=metric, base=base, scale=scale), lines])
    both = both[both["value"].notna() | both["mean"].notna()].round(5)
    found = both[["value", "low", "high", "mean"]].to_numpy(np.float64)
    ends = [min(0.0, float(np.nanmin(found))), max(0.0, float(np.nanmax(found)))]
    room = 0.06 * max(ends[1] - ends[0], 1e-9)
    look = alt.Scale(domain=[round(ends[0] - room, 5), round(ends[1] + room, 5)], nice=False)
    others = [name for name in names if name != base]
    look_of = scheduler_colours(names)  # as in the figure of means
    if shades is not None:
        look_of = cycled(names, shades)
    drawn = _layers(both, others, axis=f"{axis}, minus that of {base}", scale=look, shades=look_of)
    zero = alt.Chart(both).mark_rule(strokeDash=[4, 3], color=INK, opacity=0.6).encode(x=alt.datum(0.0))
    note = (
        f"One dot per {pair}; left of 0 means lower than {base}. Bar: {level:.0%} confidence interval (Student's t); "
        "if it excludes 0, the difference is significant."
    )
    heading = f"Difference to {base} on the same {pair}s"
    drawn = cast(alt.LayerChart, alt.layer(zero, drawn).properties(width=WIDTH, height=alt.Step(44)))
    return _facets(drawn, list(dict.fromkeys(lines["panel"])), heading=heading, notes=[note])


def _seed_by_seed(table: pd.DataFrame, varying: list[str], *, metric: str, base: str, scale: float) -> pd.DataFrame:
    """Return the difference to a scheduler on each seed: panel, scheduler, seed, value."""
    keys = [key for key in keys_of(table) if key != "scheduler"]
    mine = table[[*keys, "scheduler", metric]]
    theirs = mine[mine["scheduler"] == base].rename(columns={metric: "base"}).drop(columns="scheduler")
    pairs = mine[mine["scheduler"] != base].merge(theirs, on=keys, how="inner")
    value = (pairs[metric] - pairs["base"]) / scale
    return pairs.assign(panel=_panels(pairs, varying), value=value)[["panel", "scheduler", "seed", "value"]]


def _varying(table: pd.DataFrame) -> list[str]:
    return [key for key in keys_of(table) if key not in FIXED and len(set(table[key])) > 1]


def _scaled(rows: pd.DataFrame, varying: list[str], *, scale: float, says: str) -> pd.DataFrame:
    """Return means with their intervals in the unit of the axis: panel, scheduler, mean, low, high, says."""
    lines = rows.assign(panel=_panels(rows, varying), **{name: rows[name] / scale for name in ("mean", "low", "high")})
    lines["says"] = [_signed(says.format(mean)) for mean in lines["mean"]]
    return lines[["panel", "scheduler", "mean", "low", "high", "says"]]


def _signed(number: str) -> str:
    """Return a number with the minus sign of the axes."""
    return number.replace("-", "\N{MINUS SIGN}")


def _facets(drawn: alt.LayerChart, panels: list[str], *, heading: str, notes: list[str]) -> alt.FacetChart:
    header = _header(len(panels) > 1)
    chart: alt.FacetChart = drawn.facet(
        row=alt.Row("panel:N", title=None, sort=panels, header=header)
    ).properties(title=title(heading, *notes))  # fmt: skip
    return chart


def _layers(
    both: pd.DataFrame, names: list[str], *, axis: str, scale: alt.Scale, shades: alt.Scale | None = None
) -> alt.LayerChart:
    y = alt.Y("scheduler:N", sort=names, title=None, axis=name_axis(names))
    colours = alt.Color("scheduler:N", scale=shades or scheduler_colours(names), legend=None)

    def at(column: str) -> alt.X:
        return alt.X(f"{column}:Q", title=axis, scale=scale)

    base = alt.Chart(both).encode(y=y, color=colours)
    dots = base.mark_circle(size=52, opacity=0.45).encode(
        x=at("value"), tooltip=["scheduler:N", "seed:Q", alt.Tooltip("value:Q", title=axis, format=",.4~g")]
    )
    spans = base.mark_rule(strokeWidth=2.4).encode(x=at("low"), x2="high:Q")
    ends = [
        alt.Tooltip(f"{name}:Q", title=label, format=",.4~g")
        for name, label in (("mean", "mean"), ("low", "at least"), ("high", "at most"))
    ]
    means = base.mark_tick(thickness=3.2, size=20, opacity=1).encode(x=at("mean"), tooltip=["scheduler:N", *ends])
    says = base.transform_filter("isValid(datum.says)").mark_text(align="left", dx=8, fontSize=11)
    words = says.encode(
        x=cast(alt.X, alt.value("width")), text="says:N", color=alt.value(MUTED)
    )  # in the margin: no line of the figure goes through it
    return cast(alt.LayerChart, alt.layer(dots, spans, means, words).properties(width=WIDTH, height=alt.Step(44)))


def _header(shown: bool) -> alt.Header:
    """Return the heading of a panel, to its upper left; nothing where there is only one."""
    return alt.Header(labelOrient="top", labelAnchor="start", labels=shown, labelLimit=WIDTH)


def _panels(table: pd.DataFrame, varying: list[str]) -> list[str]:
    columns = [table[key] for key in varying]
    return [", ".join(f"{key} {_short(value)}" for key, value in zip(varying, row, strict=True))
            for row in zip(*columns, strict=True)] if varying else [""] * len(table)  # fmt: skip


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _axis_of(means: pd.DataFrame, *, metric: str, unit: str | None = None) -> tuple[float, str]:
    """Return divisor and title of the axis: means and their differences have one unit."""
    if unit is not None and (unit not in UNITS or not metric.endswith("_s")):
        raise InputError(f"unit is '{unit}' and the metric {metric}; expected one of {', '.join(UNITS)}, for seconds.")
    scale, unit = (UNITS[unit], unit) if unit else _unit_of(means, metric)
    return scale, _heading(metric) + (f" ({unit})" if unit else "")


def _unit_of(means: pd.DataFrame, metric: str) -> tuple[float, str]:
    return time_unit(float(means["mean"].median())) if metric.endswith("_s") else (1.0, "")


def _heading(metric: str) -> str:
    plain = metric.removesuffix("_s")
    plain = "number_of_" + plain.removeprefix("n_") if plain.startswith("n_") else plain
    words = plain.replace("_", " ").replace("jct", "JCT")
    return words[:1].upper() + words[1:]

"""Bars and lines of any table: panels beside each other on one scale, with intervals where they are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.theme import (
    HEAT,
    INK,
    LINE,
    MUTED,
    PAPER,
    SHADES,
    WIDTH,
    colours,
    cycled,
    line_looks,
    name_axis,
    stroke_legend,
    title,
)  # fmt: skip

GAP: Final = 24
"""Pixels between panels."""
ROOM: Final = 1.18
"""The axis ends so much beyond the longest bar: its number stands there."""


def plot_bars(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    axis: str,
    panel: str | None = None,
    colour: str | None = None,
    shades: Sequence[str] = SHADES,
    heading: str,
    note: str = "",
    number: str = ",.3~g",
) -> alt.TopLevelMixin:
    """Draw a bar for each row of a table, its number beside it; all panels have the same scale, from 0.

    Parameters
    ----------
    table : DataFrame
        One row per bar, in the order in which they are drawn; with columns `low` and `high`, the ends of an interval.
    x, y : str
        Columns of the length of a bar and of its name.
    axis : str
        Title of the axis, with its unit.
    panel : str, optional
        Column that divides the bars among panels, side by side.
    colour : str, optional
        Column of the colour, if it is not that of the name; bars of one name then stand below each other.
    shades : sequence of str
        Colours, in the order in which values appear.
    heading, note : str
        Title, and a line below it.
    number : str
        Format of the numbers (d3), e.g. ".1%".
    """
    names = list(dict.fromkeys(table[y]))
    panels = list(dict.fromkeys(table[panel])) if panel else [""]
    by = colour or y
    kinds = list(dict.fromkeys(table[by]))
    between = {"low", "high"} <= set(table.columns)
    columns = [x, y, *{panel, colour} - {None}, *(["low", "high"] if between else [])]
    shown = table[columns].assign(end=table["high"].fillna(table[x]) if between else table[x]).round(6)
    scale = alt.Scale(domain=[0, ROOM * max(float(shown["end"].max()), 1e-12)], nice=False)
    base = alt.Chart(shown).encode(**_rows(y, names, colour, kinds))
    format_ = number if number.endswith("%") else ",~f"
    length = alt.X(f"{x}:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=4 if panel else 8, format=format_))
    fill = alt.Color(
        f"{by}:N", sort=kinds, title=None, legend=alt.Legend(orient="bottom") if colour else None,
        scale=cycled(kinds, shades),
    )  # fmt: skip
    tips = [*(alt.Tooltip(f"{name}:N") for name in (y, panel, colour) if name),
            alt.Tooltip(f"{x}:Q", title=axis, format=number)]  # fmt: skip
    layers: list[alt.Chart] = [base.mark_bar(opacity=0.85).encode(x=length, color=fill, tooltip=tips)]
    if between:
        layers.append(base.mark_rule(color=INK, strokeWidth=1.6).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"))
    numbers = base.mark_text(align="left", dx=6, fontSize=11, color=MUTED)
    layers.append(numbers.encode(x=alt.X("end:Q", scale=scale), text=alt.Text(f"{x}:Q", format=number)))
    width = (WIDTH - GAP * (len(panels) - 1)) // len(panels)
    drawn = alt.layer(*layers).properties(width=width, height=alt.Step(14 if colour else 26))
    if panel is None:
        return cast(alt.TopLevelMixin, drawn.properties(title=title(heading, note)))
    header = alt.Header(labelFontSize=12, labelLimit=width)
    faceted = drawn.facet(column=alt.Column(f"{panel}:N", sort=panels, title=None, header=header), spacing=GAP)
    return cast(alt.TopLevelMixin, faceted.properties(title=title(heading, note)).configure_view(stroke=LINE))


def _rows(y: str, names: list[str], colour: str | None, kinds: list[str]) -> dict[str, Any]:
    """Return the encoding of rows: one for each name; where colours differ, one below the other within it."""
    rows: dict[str, Any] = {"y": alt.Y(f"{y}:N", sort=names, title=None, axis=name_axis(names))}
    if colour:
        rows["yOffset"] = alt.YOffset(f"{colour}:N", sort=kinds)
    return rows


HEIGHT: Final = 280
ENDS_APART: Final = 0.08
"""Names stand at the ends of lines, in place of a legend, if these are so far apart: in heights of the panel."""


def plot_lines(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    line: str,
    axes: tuple[str, str],
    panel: str | None = None,
    dots: pd.DataFrame | None = None,
    points: bool = False,
    ticks: Sequence[float] = (),
    shades: Sequence[str] | None = None,
    heading: str,
    note: str = "",
    zero: bool = True,
) -> alt.TopLevelMixin:
    """Draw a line for each name; panels side by side have the same scales.

    In one panel the names stand at the ends of the lines where these are far enough apart, else in a legend.

    Parameters
    ----------
    table : DataFrame
        One row per point; with columns `low` and `high` a band is drawn around each line.
    x, y, line : str
        Columns of both axes, and of the name of the line.
    axes : tuple of str
        Titles of the axes, with their units.
    panel : str, optional
        Column that divides the lines among panels.
    dots : DataFrame, optional
        Further points in the colours of the lines, with the same columns: what was measured beside what was computed.
    points : bool
        Mark the points that the lines connect.
    ticks : sequence of float
        Where the x axis has its numbers; by default at round ones.
    shades : sequence of str, optional
        Colours in the order in which names appear; by default those of schedulers if `line` is "scheduler".
    heading, note : str
        Title, and a line below it.
    zero : bool
        The y axis begins at 0.
    """
    names = list(dict.fromkeys(table[line]))
    panels = list(dict.fromkeys(table[panel])) if panel else [""]
    ends = None if panel else line_ends(table, x, y, line, zero=zero)
    look = _looks(x, y, line, names, axes=axes, ticks=ticks, zero=zero, shades=shades, legend=ends is None)
    columns = [x, y, line, *([panel] if panel else [])]
    between = ["low", "high"] if {"low", "high"} <= set(table.columns) else []
    parts = [table[[*columns, *between]].assign(drawn="line")]
    if dots is not None:
        parts.append(dots[columns].assign(drawn="dot"))
    both = pd.concat(parts).round(6)
    tips = [f"{line}:N", alt.Tooltip(f"{x}:Q", title=axes[0], format=",~g"),
            alt.Tooltip(f"{y}:Q", title=axes[1], format=",.3~g")]  # fmt: skip
    base = alt.Chart(both).encode(x=look["x"], color=look["looks"]["color"])
    on_line = base.transform_filter("datum.drawn == 'line'")
    mark = alt.OverlayMarkDef(size=50, opacity=1) if points else False
    layers = [on_line.mark_line(point=mark).encode(y=look["y"], tooltip=tips, strokeDash=look["looks"]["strokeDash"])]
    if ends is not None:
        layers.append(names_at(ends, look["x"], look["y"], line, colour=look["looks"]["color"]))
    if between:
        layers.insert(0, on_line.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", title=axes[1]), y2="high:Q"))
    if dots is not None:
        there = base.transform_filter("datum.drawn == 'dot'").mark_point(filled=True, size=70, opacity=1)
        layers.append(there.encode(y=look["y"], tooltip=tips))
    width = (WIDTH - GAP * (len(panels) - 1)) // len(panels)
    drawn = alt.layer(*layers).properties(width=width, height=HEIGHT)
    if panel is None:
        return cast(alt.TopLevelMixin, drawn.properties(title=title(heading, note)))
    faceted = drawn.facet(column=alt.Column(f"{panel}:N", sort=panels, title=None), spacing=GAP)
    return cast(alt.TopLevelMixin, faceted.properties(title=title(heading, note)).configure_view(stroke=LINE))


def line_ends(table: pd.DataFrame, x: str, y: str, line: str, *, zero: bool) -> pd.DataFrame | None:
    """Return the last point of each line, if names fit there: all lines end at one x, and far apart."""
    ends = table.sort_values(x).drop_duplicates(line, keep="last")[[x, y, line]]
    shown = table[[name for name in (y, "low", "high") if name in table.columns]].to_numpy(np.float64)
    height = np.nanmax(shown) - (min(0.0, np.nanmin(shown)) if zero else np.nanmin(shown))
    apart = np.diff(np.sort(ends[y].to_numpy(np.float64)))
    fits = len(ends) > 1 and height > 0 and len(set(ends[x])) == 1 and bool((apart >= ENDS_APART * height).all())
    return ends if fits else None


def names_at(ends: pd.DataFrame, x: alt.X, y: alt.Y, line: str, *, colour: Any) -> alt.Chart:
    """Draw the names of lines at what `line_ends` returned."""
    words = alt.Chart(ends.round(6)).mark_text(align="left", dx=7, fontSize=12)
    return cast(alt.Chart, words.encode(x=x, y=y, text=f"{line}:N", color=colour))


def _looks(
    x: str, y: str, line: str, names: list[str], *, axes: tuple[str, str], ticks: Sequence[float], zero: bool,
    shades: Sequence[str] | None, legend: bool,
) -> dict[str, Any]:  # fmt: skip
    numbers: dict[str, Any] = {"format": ",~f"} | ({"values": list(ticks)} if len(ticks) else {})
    if shades is None and line == "scheduler":
        shades = list(colours(names).values())
    return {
        "x": alt.X(f"{x}:Q", title=axes[0], axis=alt.Axis(**numbers), scale=alt.Scale(nice=False, zero=False)),
        "y": alt.Y(f"{y}:Q", title=axes[1], scale=alt.Scale(zero=zero)),
        "looks": line_looks(
            line, cycled(names, shades or SHADES), title=None, sort=names,
            legend=stroke_legend(symbolSize=180, symbolOpacity=1, labelLimit=260) if legend else None,
        ),
    }  # fmt: skip


def plot_matrix(
    table: pd.DataFrame, *, x: str, y: str, value: str, axis: str, heading: str, note: str = "", number: str = ".2f"
) -> alt.LayerChart:
    """Draw a number for each pair of names as a coloured field: dark is high, and a frame marks the lowest of a column.

    Parameters
    ----------
    table : DataFrame
        One row per field; with columns `low` and `high`, an interval for the tooltip.
    x, y, value : str
        Columns of the two names and of the number.
    axis : str
        What the number is, with its unit.
    heading, note : str
        Title, and a line below it.
    number : str
        Format of the numbers (d3).
    """
    across, down = (list(dict.fromkeys(table[name])) for name in (x, y))
    tips = [name for name in (x, y, value, "low", "high") if name in table]
    shown = table[tips].assign(lowest=table[value] == table.groupby(x)[value].transform("min")).round(4)
    least, most = float(shown[value].min()), float(shown[value].quantile(0.95))
    limit = least + 0.5 * (most - least)
    n_lines = max(str(name).count(", ") + 1 for name in across)  # each part of a name stands in a line of its own
    above = alt.Axis(
        labelAngle=0, orient="top", labelLimit=150, labelExpr="split(datum.label, ', ')", labelPadding=14 * n_lines - 10
    )
    base = alt.Chart(shown).encode(
        x=alt.X(f"{x}:N", sort=across, title=None, axis=above),
        y=alt.Y(f"{y}:N", sort=down, title=None, axis=name_axis(down)),
    )
    scale = alt.Scale(range=list(HEAT), domainMax=most, clamp=True)
    fields = base.mark_rect().encode(color=alt.Color(f"{value}:Q", title=axis, scale=scale), tooltip=tips)
    frames = base.transform_filter("datum.lowest").mark_rect(fill=None, stroke=INK, strokeWidth=2.5)
    dark = alt.condition(f"datum['{value}'] > {limit}", alt.value(PAPER), alt.value(INK))
    numbers = base.mark_text(fontSize=12).encode(text=alt.Text(f"{value}:Q", format=number), color=dark)
    drawn = alt.layer(fields, frames, numbers).properties(
        width=alt.Step(min(150, WIDTH // len(across))), height=alt.Step(28), title=title(heading, note)
    )
    return cast(alt.LayerChart, drawn)

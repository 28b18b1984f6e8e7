"""Lines of any table: one for each name, on axes to scale, in panels if asked, with an interval or dots beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import altair as alt
import pandas as pd

from labkit.plots.bars import GAP, SHADES
from labkit.plots.theme import LINE, WIDTH, colours, title

HEIGHT: Final = 280


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
    said: str = "",
    zero: bool = True,
) -> alt.TopLevelMixin:
    """Draw a line for each name; panels side by side have the same scales.

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
    heading, said : str
        Title, and a line below it.
    zero : bool
        The y axis begins at 0.
    """
    names = list(dict.fromkeys(table[line]))
    panels = list(dict.fromkeys(table[panel])) if panel else [""]
    look = _looks(x, y, line, names, axes=axes, ticks=ticks, zero=zero, shades=shades)
    columns = [x, y, line, *([panel] if panel else [])]
    between = ["low", "high"] if {"low", "high"} <= set(table.columns) else []
    parts = [table[[*columns, *between]].assign(drawn="line")]
    if dots is not None:
        parts.append(dots[columns].assign(drawn="dot"))
    both = pd.concat(parts).round(6)
    tips = [f"{line}:N", alt.Tooltip(f"{x}:Q", title=axes[0], format=",~g"),
            alt.Tooltip(f"{y}:Q", title=axes[1], format=",.3~g")]  # fmt: skip
    base = alt.Chart(both).encode(x=look["x"], color=look["color"])
    on_line = base.transform_filter("datum.drawn == 'line'")
    mark = alt.OverlayMarkDef(size=50, opacity=1) if points else False
    layers = [on_line.mark_line(point=mark).encode(y=look["y"], tooltip=tips)]
    if between:
        layers.insert(0, on_line.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", title=axes[1]), y2="high:Q"))
    if dots is not None:
        there = base.transform_filter("datum.drawn == 'dot'").mark_point(filled=True, size=70, opacity=1)
        layers.append(there.encode(y=look["y"], tooltip=tips))
    width = (WIDTH - GAP * (len(panels) - 1)) // len(panels)
    drawn = alt.layer(*layers).properties(width=width, height=HEIGHT)
    if panel is None:
        return cast(alt.TopLevelMixin, drawn.properties(title=title(heading, said)))
    faceted = drawn.facet(column=alt.Column(f"{panel}:N", sort=panels, title=None), spacing=GAP)
    return cast(alt.TopLevelMixin, faceted.properties(title=title(heading, said)).configure_view(stroke=LINE))


def _looks(
    x: str, y: str, line: str, names: list[str], *, axes: tuple[str, str], ticks: Sequence[float], zero: bool,
    shades: Sequence[str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the encodings that all layers share."""
    numbers: dict[str, Any] = {"format": ",~f"} | ({"values": list(ticks)} if len(ticks) else {})
    if shades is None and line == "scheduler":
        shades = list(colours(names).values())
    chosen = [(shades or SHADES)[i % len(shades or SHADES)] for i in range(len(names))]
    return {
        "x": alt.X(f"{x}:Q", title=axes[0], axis=alt.Axis(**numbers), scale=alt.Scale(nice=False, zero=False)),
        "y": alt.Y(f"{y}:Q", title=axes[1], scale=alt.Scale(zero=zero)),
        "color": alt.Color(
            f"{line}:N", title=None, scale=alt.Scale(domain=names, range=chosen), sort=names,
            legend=alt.Legend(
                symbolType="stroke", symbolStrokeWidth=3.5, symbolSize=180, symbolOpacity=1, labelLimit=260,
            ),
        ),
    }  # fmt: skip

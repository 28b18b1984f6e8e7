"""How every figure looks: the theme, one colour per scheduler, units of time, and a renderer that needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any, Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.text import human_s, time_unit
from labkit.plots.palette import (
    AGNOSTIC,
    BLUE,
    DASHES,
    FAINT,
    FONT,
    GREEN,
    HEAT,
    INK,
    LINE,
    MUTED,
    OWN,
    PAPER,
    PURPLE,
    SHADES,
    TEAL,
    colour,
    colours,
)  # fmt: skip
from labkit.system.printing import printable

__all__ = [
    "AGNOSTIC", "FAINT", "FONT", "HEAT", "INK", "LINE", "MUTED", "PAPER", "SHADES", "colour", "colours", "human_s",
    "time_unit",
]  # fmt: skip

MAX_ROWS: Final = 5000
"""A figure with more rows than this is thinned or binned first, and its subtitle says so."""

WIDTH: Final = 860
"""Pixels of a plotted area: with labels and a legend as wide as a notebook on a screen of 1280 pixels."""

LABEL_WIDTH: Final = 26
"""Characters of a name in one line of an axis."""
MOST_LINES: Final = 3

VEGALITE_MIME: Final = "application/vnd.vegalite.v5+json"
_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_V5_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v5.json"


def scheduler_colours(names: Iterable[str]) -> alt.Scale:
    """Return the colour scale of some schedulers, in the order given."""
    shades = colours(names)
    return alt.Scale(domain=list(shades), range=list(shades.values()))


def line_looks(field: str, shades: alt.Scale, **look: Any) -> dict[str, alt.Color | alt.StrokeDash]:
    """Return the encodings of lines that differ in colour and in dashes, for print in grey; one legend for both."""
    drawn = shades.to_dict()
    dashes = [DASHES.get(shade, [1, 0]) for shade in drawn["range"]]
    return {
        "color": alt.Color(f"{field}:N", scale=shades, **look),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=drawn["domain"], range=dashes), **look),
    }


def cycled(names: Sequence[str], shades: Sequence[str]) -> alt.Scale:
    """Return the colour scale of some names; where there are more names than shades, these begin again."""
    return alt.Scale(domain=list(names), range=[shades[i % len(shades)] for i in range(len(names))])


def stroke_legend(**look: Any) -> alt.Legend:
    """Return the legend of a chart of lines: strokes broad enough to tell their colours apart."""
    return alt.Legend(symbolType="stroke", symbolStrokeWidth=3.5, **look)


def line_legend(names: Iterable[str] = ()) -> alt.Legend:
    """Return the legend of a chart whose lines are schedulers; long names stand in full, one below the other."""
    long = max(map(len, names), default=0) > LABEL_WIDTH
    look = {"orient": "bottom", "columns": 1, "direction": "vertical"} if long else {}
    return stroke_legend(title="Scheduler", symbolSize=180, labelLimit=0, **look)


def name_axis(names: Iterable[str], **look: Any) -> alt.Axis:
    """Return the axis of named rows; a long name goes on in the next line and is not cut."""
    lines = in_lines(names)
    return alt.Axis(**{"labelFontSize": 11 if lines else 12, "labelColor": INK, "labelLimit": 0, **lines, **look})


def in_lines(names: Iterable[str]) -> dict[str, str]:
    """Return the option of an axis or a header that breaks long names into lines; nothing where all are short.

    >>> in_lines(["fifo"]), sorted(in_lines(["las(quantum_s=60, threshold_gpu_s=3600)"]))
    ({}, ['labelExpr'])
    """
    shown = [printable_spec(name) for name in dict.fromkeys(names)]
    lines = {name: broken(name) for name in shown if len(name) > LABEL_WIDTH}
    return {"labelExpr": f"({json.dumps(lines)})[datum.label] || datum.label"} if lines else {}


def broken(name: str) -> list[str]:
    """Return the lines of a long name, which end behind a bracket, comma, colon or space where they can.

    Of a name that needs too many lines the middle is left out.

    >>> broken("srgt_age.py:SrgtAge(half_s=1000)")
    ['srgt_age.py:SrgtAge(', 'half_s=1000)']
    >>> broken("las(quantum_s=60, threshold_gpu_s=3600)")
    ['las(quantum_s=60,', 'threshold_gpu_s=3600)']
    """
    filled = [""]
    for part in re.findall(r"[^(,:\s]*[(,:\s]+|[^(,:\s]+", name):
        if len((filled[-1] + part).rstrip()) > LABEL_WIDTH:
            filled.append("")
        filled[-1] += part
    lines = [line for part in filled for line in wrap(part, LABEL_WIDTH, break_on_hyphens=False)] or [name]
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], "…" + name[1 - LABEL_WIDTH :]]


def title(text: str, *notes: str) -> alt.TitleParams:
    """Return a title; what a figure leaves out or how it was binned goes under it."""
    subtitle = [note for note in notes if note]
    return alt.TitleParams(text, subtitle=subtitle) if subtitle else alt.TitleParams(text)


def thin(frame: pd.DataFrame, *, limit: int = MAX_ROWS) -> tuple[pd.DataFrame, str]:
    """Return at most `limit` rows evenly spaced in order, and the note that says so (empty where nothing was left out).

    >>> shown, note = thin(pd.DataFrame({"x": range(10)}), limit=4)
    >>> shown["x"].tolist(), note
    ([0, 3, 6, 9], 'shows 4 of 10 points')
    """
    if len(frame) <= limit:
        return frame, ""
    keep = np.unique(np.linspace(0, len(frame) - 1, limit).round().astype(int))
    return frame.iloc[keep], f"shows {len(keep):,} of {len(frame):,} points"


def thin_lines(curve: pd.DataFrame, *, limit: int) -> tuple[pd.DataFrame, str]:
    """Thin each line to its share of the rows, keeping both ends."""
    if len(curve) <= limit:
        return curve, ""
    share = max(limit // curve["scheduler"].nunique(), 2)
    parts = [thin(part, limit=share)[0] for _, part in curve.groupby("scheduler", sort=False)]
    kept = pd.concat(parts)
    return kept, f"shows {len(kept):,} of {len(curve):,} points"


def layered(*charts: alt.Chart, height: int | alt.Step, title: alt.TitleParams) -> alt.LayerChart:
    """Return charts drawn over each other, in the width that all figures share."""
    return cast(alt.LayerChart, alt.layer(*charts).properties(width=WIDTH, height=height, title=title))


@alt.theme.register("labkit", enable=False)
def labkit_theme() -> alt.theme.ThemeConfig:
    """Return the look that all figures share."""
    axis = {
        "labelColor": MUTED, "labelFontSize": 11, "titleColor": INK, "titleFontSize": 12, "titleFontWeight": 500,
        "titlePadding": 8, "gridColor": FAINT, "domainColor": LINE, "tickColor": LINE, "labelFont": FONT,
        "titleFont": FONT,
    }  # fmt: skip
    words = {"labelFont": FONT, "titleFont": FONT, "labelColor": INK, "titleColor": MUTED}
    config: dict[str, Any] = {
        "background": PAPER,
        "font": FONT,
        "view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": 300},
        "title": {
            "anchor": "start", "color": INK, "fontSize": 15, "fontWeight": 600, "font": FONT, "offset": 14,
            "subtitleColor": MUTED, "subtitleFontSize": 12, "subtitleFont": FONT, "subtitlePadding": 4,
        },
        "axis": axis,
        "axisY": {"domain": False, "ticks": False},
        "axisX": {"tickCount": 8},
        "legend": words | {"labelFontSize": 12, "titleFontSize": 11, "titleFontWeight": 500, "symbolType": "circle"},
        "header": words | {"labelFontSize": 12, "titleFontSize": 11, "labelFontWeight": 600},
        "line": {"strokeWidth": 2.2, "strokeCap": "butt"},
        "bar": {"cornerRadiusEnd": 2},
        "range": {"heatmap": list(HEAT), "ramp": list(HEAT), "category": list(SHADES)},
    }  # fmt: skip
    return alt.theme.ThemeConfig(config=cast(Any, config))


def as_svg(spec: dict[str, Any]) -> str:
    r"""Return a figure as SVG.

    >>> r"a\x1bb" in as_svg({"title": "a\x1bb", "data": {"values": [{}]}, "mark": "point"})
    True
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(printable_spec(spec))
    return svg


def printable_spec(part: Any) -> Any:
    """Return a specification in whose texts control characters are written out.

    XML cannot hold them, and a separator of lines ends a text in Vega's expressions: the converter fails then.
    """
    if isinstance(part, str):
        return _NOT_IN_XML.sub("\ufffd", printable(part, keep="\n\t"))
    if isinstance(part, dict):
        return {printable_spec(key): printable_spec(value) for key, value in part.items()}
    return [printable_spec(item) for item in part] if isinstance(part, list) else part


def offline_renderer(spec: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return a figure in three forms: live in JupyterLab (Vega-Lite 5, which it bundles), SVG, and plain text."""
    text = spec.get("title", "chart")
    name = text.get("text", "chart") if isinstance(text, dict) else text
    return {
        VEGALITE_MIME: spec | {"$schema": _V5_SCHEMA},
        "image/svg+xml": as_svg(spec),
        "text/plain": f"<figure: {name}>",
    }


def _in_notebook(spec: dict[str, Any], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a figure in its three forms, and how JupyterLab shows the live one."""
    return offline_renderer(spec, **options), {VEGALITE_MIME: {"embed_options": embed_options()}}


def enable() -> None:
    """Show charts in labkit's look, and without a network."""
    alt.theme.enable("labkit")
    alt.renderers.enable("labkit")


alt.renderers.register("labkit", _in_notebook)
enable()
alt.data_transformers.disable_max_rows()


DARK: Final = {
    INK: "#e6eaf1", MUTED: "#a3adbb", LINE: "#4b5768", FAINT: "#2a323e", PAPER: "#1a212b",
    OWN: "#f6f8fc", PURPLE: "#b98af0", TEAL: "#58c7bf", BLUE: "#7d96ff", GREEN: "#3fb672", "#003c0f": "#93d6a3",
    "#695a96": "#a99bdc",
}  # fmt: skip
"""Ink on white paper -> the same on dark paper; colours that both can bear stay."""

_MENU: Final = f"""
.vega-embed {{ position: relative; display: inline-block; box-sizing: border-box; }}
.vega-embed.has-actions {{ padding-right: 38px; }}
.vega-embed details:not([open]) > :not(summary) {{ display: none !important; }}
.vega-embed summary {{ list-style: none; position: absolute; top: 0; right: 0; padding: 6px; line-height: 0;
  z-index: 10; border-radius: 999px; color: {MUTED}; opacity: .3; cursor: pointer; }}
.vega-embed summary::-webkit-details-marker {{ display: none; }}
.vega-embed:hover summary, .vega-embed details[open] summary {{ opacity: .9; }}
.vega-embed .vega-actions {{ position: absolute; top: 32px; right: 0; z-index: 11; display: flex;
  flex-direction: column; padding: 6px 0; border-radius: 4px; border: 1px solid {LINE};
  background: {PAPER}; text-align: left; }}
.vega-embed .vega-actions a {{ padding: 6px 14px; font: 13px {FONT}; color: {INK}; text-decoration: none;
  white-space: nowrap; }}
"""
"""Of the menu beside a figure: a style of one's own takes the place of the one that comes with it."""

_IN_DARK: Final = 'body[data-jp-theme-light="false"]'
_PAINTED: Final = ("fill", "stroke")


def dark_style(figures: str) -> str:
    """Return the rules that draw the inks of white paper as those of dark paper; `figures` selects the figures."""
    rules = [f'{figures} [{part}="{ink}"] {{ {part}: {dark}; }}' for ink, dark in DARK.items() for part in _PAINTED]
    return "\n".join([f"{figures} {{ background: transparent !important; }}", *rules])


def style() -> str:
    """Return the style sheet of figures in a notebook."""
    return f"{_MENU.strip()}\n{dark_style(f'{_IN_DARK} .vega-embed svg')}"


def embed_options() -> dict[str, Any]:
    """Return the options that JupyterLab passes to Vega-Embed."""
    return {"renderer": "svg", "defaultStyle": style()}

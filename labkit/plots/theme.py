"""How every figure looks: the theme, one colour per scheduler, units of time, and a renderer that needs no network."""

from __future__ import annotations

import colorsys
import json
import re
from collections import Counter
from collections.abc import Iterable
from textwrap import wrap
from typing import Any, Final, cast
from zlib import crc32

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.text import human_s, time_unit

__all__ = ["human_s", "time_unit"]

FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, MUTED, LINE, FAINT, PAPER = "#1b2330", "#5b6676", "#d9dee6", "#eef1f5", "#ffffff"
HEAT: Final = ("#eef3fb", "#b9d3f4", "#6fa6e8", "#2f6fce", "#163f86")
"""Nothing held ... everything held."""

MAX_ROWS: Final = 5000
"""A figure with more rows than this is thinned or binned first, and its subtitle says so."""

WIDTH: Final = 640

LABEL_WIDTH: Final = 26
"""Characters of a name in one line of an axis."""
MOST_LINES: Final = 3

COLOURS: Final = {
    "fifo": "#7b8798",
    "sjf": "#4fb3d9",
    "srtf": "#2563d8",
    "las": "#0f9d9a",
    "drf": "#e59a2b",
    "tetris": "#9254d6",
    "optimus": "#2b9f5c",
    "dl2": "#d4345f",
    "marl": "#c4571b",
    "dlrover": "#8a6d1d",
    "gavel_las": "#0b6e83",
    "gavel_ftf": "#6741c9",
}
"""The colour of each scheduler that ships with labkit, the same in every figure."""

AGNOSTIC: Final = "_agnostic"
"""Ends the name of a scheduler's version that does not tell device types apart."""

VEGALITE_MIME: Final = "application/vnd.vegalite.v5+json"
_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_V5_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v5.json"


def colour(scheduler: str) -> str:
    """Return the colour of a scheduler; one that labkit does not know gets its own from its name.

    A label may go on after the name: "drf (seed 2)" and "drf(oracle=True)" have the colour of "drf". The agnostic
    version of a scheduler has the opposite hue.

    >>> colour("drf") == colour("drf (seed 2)") == colour("drf(oracle=True)")
    True
    >>> colour("my_scheduler") == colour("my_scheduler")
    True
    """
    name = scheduler.split("(")[0].strip()
    if name in COLOURS:
        return COLOURS[name]
    return _opposite(colour(name.removesuffix(AGNOSTIC))) if name.endswith(AGNOSTIC) else _own_colour(name)


def _opposite(own: str) -> str:
    """Return the colour of the opposite hue, not darker than can be told from black."""
    red, green, blue = (int(own[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return _hex(*colorsys.hls_to_rgb((hue + 0.5) % 1, max(light, 0.45), saturation))


def _own_colour(name: str) -> str:
    hue = crc32(name.encode()) % 360 / 360
    return _hex(*colorsys.hls_to_rgb(hue, 0.45, 0.55))


def _hex(red: float, green: float, blue: float) -> str:
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def colours(labels: Iterable[str]) -> dict[str, str]:
    """Return the colour of each label of a figure; the second of one scheduler gets a lighter shade, and so on.

    >>> told = colours(["drf (seed 1)", "drf (seed 2)"])
    >>> told["drf (seed 1)"] == colour("drf"), told["drf (seed 2)"] == colour("drf")
    (True, False)
    """
    shades: dict[str, str] = {}
    times_seen: Counter[str] = Counter()
    for label in dict.fromkeys(labels):
        own = colour(label)
        shades[label] = _lighter(own, 1 - 0.6 ** times_seen[own])
        times_seen[own] += 1
    return shades


def _lighter(own: str, by: float) -> str:
    channels = (int(own[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + by * (255 - channel)):02x}" for channel in channels)


def scheduler_colours(names: Iterable[str]) -> alt.Scale:
    """Return the colour scale of some schedulers, in the order given."""
    shades = colours(names)
    return alt.Scale(domain=list(shades), range=list(shades.values()))


def line_legend(names: Iterable[str] = ()) -> alt.Legend:
    """Return the legend of a chart whose lines are schedulers; long names stand in full, one below the other."""
    look: dict[str, Any] = {"title": "Scheduler", "symbolType": "stroke", "symbolStrokeWidth": 3.5, "symbolSize": 180}
    if max(map(len, names), default=0) > LABEL_WIDTH:
        look |= {"orient": "bottom", "columns": 1, "direction": "vertical"}
    return alt.Legend(**look, labelLimit=0)


def name_axis(names: Iterable[str], **look: Any) -> alt.Axis:
    """Return the axis of named rows; a long name goes on in the next line and is not cut."""
    lines = in_lines(names)
    return alt.Axis(**{"labelFontSize": 11 if lines else 12, "labelColor": INK, "labelLimit": 0, **lines, **look})


def in_lines(names: Iterable[str]) -> dict[str, str]:
    """Return the option of an axis or a header that breaks long names into lines; nothing where all are short.

    >>> in_lines(["fifo"]), sorted(in_lines(["las(quantum_s=60, threshold_gpu_s=3600)"]))
    ({}, ['labelExpr'])
    """
    told = [_printable(name) for name in dict.fromkeys(names)]
    lines = {name: broken(name) for name in told if len(name) > LABEL_WIDTH}
    return {"labelExpr": f"({json.dumps(lines)})[datum.label] || datum.label"} if lines else {}


def broken(name: str) -> list[str]:
    """Return the lines of a long name; of one that needs too many the middle is left out.

    >>> broken("las(quantum_s=60, threshold_gpu_s=3600)")
    ['las(quantum_s=60,', 'threshold_gpu_s=3600)']
    """
    lines = wrap(name, LABEL_WIDTH, break_on_hyphens=False) or [name]
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], "…" + name[1 - LABEL_WIDTH :]]


def title(text: str, *notes: str) -> alt.TitleParams:
    """Return a title; what a figure leaves out or how it was binned goes under it."""
    said = [note for note in notes if note]
    return alt.TitleParams(text, subtitle=said) if said else alt.TitleParams(text)


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


@alt.theme.register("labkit", enable=True)
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
        "line": {"strokeWidth": 2.2, "strokeCap": "round"},
        "bar": {"cornerRadiusEnd": 2},
        "range": {"heatmap": list(HEAT), "ramp": list(HEAT), "category": list(COLOURS.values())},
    }  # fmt: skip
    return alt.theme.ThemeConfig(config=cast(Any, config))


def as_svg(spec: dict[str, Any]) -> str:
    r"""Return a figure as SVG; what XML cannot hold, such as control characters in a name, is shown as U+FFFD.

    The converter ends the whole process otherwise.

    >>> "a\ufffdb" in as_svg({"title": "a\x1bb", "data": {"values": [{}]}, "mark": "point"})
    True
    """
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(_printable(spec))
    return svg


def _printable(part: Any) -> Any:
    if isinstance(part, str):
        return _NOT_IN_XML.sub("\ufffd", part)
    if isinstance(part, dict):
        return {_printable(key): _printable(value) for key, value in part.items()}
    return [_printable(item) for item in part] if isinstance(part, list) else part


def offline_renderer(spec: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return a figure in three forms: live in JupyterLab (Vega-Lite 5, which it bundles), SVG, and plain text."""
    text = spec.get("title", "chart")
    name = text.get("text", "chart") if isinstance(text, dict) else text
    return {
        VEGALITE_MIME: spec | {"$schema": _V5_SCHEMA},
        "image/svg+xml": as_svg(spec),
        "text/plain": f"<figure: {name}>",
    }


alt.renderers.register("labkit", offline_renderer)
alt.renderers.enable("labkit")
alt.data_transformers.disable_max_rows()

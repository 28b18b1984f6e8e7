"""Figures for papers: a chart in the width of a column, its type large enough to read in print."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import altair as alt

from labkit.core.errors import InputError
from labkit.core.files import refuse_unwritable
from labkit.plots.theme import as_svg

WIDTH_IN: Final = {1: 3.35, 2: 7.0}
"""Inches of one column, and of two with the gap between them."""
MM: Final = 25.4
"""To an inch."""
LEAST_MM, MOST_MM = 40.0, 250.0

POINTS: Final = 72
"""To an inch: a pixel of a figure is a point in print."""

SMALLEST_PT: Final = 7.0
TITLE_PT: Final = 7.5
"""Of labels, and of titles of axes and legends."""

ENDINGS: Final = (".pdf", ".svg", ".png")
OF_TEX: Final = (".pgf", ".tikz", ".tex")
PNG_PPI: Final = 300
PAGE_IN: Final = 9.0
"""Height of a page's text: no figure is higher."""
TRIES: Final = 8

STEP: Final = 0.55
"""Of a row on a screen: its height in print."""
SHORTER: Final = {1: 0.42, 2: 0.55}
"""Of a panel's height on a screen, by columns: its height in print."""
TALLEST: Final = 0.8
"""A panel is at most so high, in widths of the whole figure."""


def for_paper(
    chart: alt.TopLevelMixin, *, columns: int = 1, height_in: float | None = None, width_mm: float | None = None
) -> alt.TopLevelMixin:
    """Return a chart as wide as one or two columns of a paper, without its title, which a caption tells there.

    All of it counts: axes, labels, and the legend, which goes below. A pixel of the result is a point in print.

    Parameters
    ----------
    chart : altair chart
        Of any of `labkit.plots`, or one's own.
    columns : int
        1 (3.35 in) or 2 (7 in).
    height_in : float, optional
        Of the plotted area of each panel; by default in proportion.
    width_mm : float, optional
        Width in mm, 40 to 250, in place of `columns`.

    Raises
    ------
    InputError
        If a width is none of these, or names on its axes leave no room.
    """
    if columns not in WIDTH_IN:
        raise InputError(f"columns is {columns!r}; expected 1 ({WIDTH_IN[1]} in) or 2 ({WIDTH_IN[2]} in).")
    width_in = WIDTH_IN[columns]
    if width_mm is not None:
        if not LEAST_MM <= width_mm <= MOST_MM:
            raise InputError(f"a figure {width_mm:g} mm wide; expected {LEAST_MM:g} to {MOST_MM:g} mm.")
        width_in = width_mm / MM
        columns = 1 if width_in < sum(WIDTH_IN.values()) / 2 else 2
    wanted = width_in * POINTS
    spec = _in_print(chart.to_dict())
    inner, lower = 0.75 * wanted, 1.0
    for _ in range(TRIES):
        sized = _sized(spec, inner, height_in=height_in, columns=columns, lower=lower)
        width, height = drawn_size(sized)
        over, high = width - wanted, height / (PAGE_IN * POINTS)
        if -1.0 < over <= 0.05 and high <= 1.0:
            break
        inner -= over + 0.3
        lower /= max(1.02 * high, 1.0) ** 1.2  # what is between the panels does not shrink
        if inner < 0.2 * wanted:
            break
    if over > 0.05:
        raise InputError(
            f"names on the axes and the legend leave no room for the figure in {width_in:.3g} in; take columns=2, a "
            "larger width or shorter labels."
        )
    as_drawn: Any = type(chart)
    return cast(alt.TopLevelMixin, as_drawn.from_dict(sized, validate=False))  # a second each, where it validates


def save_for_paper(
    chart: alt.TopLevelMixin, path: Path | str, *, columns: int = 1, height_in: float | None = None,
    width_mm: float | None = None,
) -> Path:  # fmt: skip
    """Save a chart for a paper as PDF, SVG or PNG (300 dpi), by the ending of the name."""
    return save_sized(for_paper(chart, columns=columns, height_in=height_in, width_mm=width_mm), path)


def save_sized(figure: alt.TopLevelMixin, path: Path | str) -> Path:
    """Save what `for_paper` returned."""
    import vl_convert

    path = Path(path)
    refuse_figure(path)
    spec = figure.to_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".png":
        path.write_bytes(vl_convert.svg_to_png(as_svg(spec), ppi=PNG_PPI))
    elif path.suffix.lower() == ".pdf":
        path.write_bytes(vl_convert.svg_to_pdf(as_svg(spec)))
    else:
        path.write_text(in_points(as_svg(spec)), encoding="utf-8")
    return path


def refuse_figure(path: Path | str, *, endings: Sequence[str] = ENDINGS) -> None:
    """Raise InputError if a figure cannot be written to `path`, before it is drawn."""
    path = Path(path)
    if path.suffix.lower() in OF_TEX:
        pdf = path.with_suffix(".pdf").name
        raise InputError(
            f"{path} ends in '{path.suffix}', TeX code, which labkit does not write; expected {' or '.join(endings)}. "
            f"Save {pdf}, and include it with \\includegraphics{{{pdf}}}."
        )
    refuse_unwritable(path, endings=endings)


def drawn_size(spec: dict[str, Any]) -> tuple[float, float]:
    """Return width and height of a whole figure in pixels, with axes and legend."""
    return size_of(as_svg(spec))


def size_of(svg: str) -> tuple[float, float]:
    """Return width and height of a picture in pixels.

    >>> size_of('<svg version="1.1" width="241" height="174.5" viewBox="0 0 241 174">')
    (241.0, 174.5)
    """
    found = re.search(r'<svg[^>]* width="([\d.]+)" height="([\d.]+)"', svg)
    return (float(found[1]), float(found[2])) if found else (0.0, 0.0)


def in_points(svg: str) -> str:
    """Return an SVG whose size is told in points, so that it has it in print whatever reads it."""
    return re.sub(r'(<svg[^>]*?) width="([\d.]+)" height="([\d.]+)"', r'\1 width="\2pt" height="\3pt"', svg, count=1)


def notes_of(chart: alt.TopLevelMixin) -> list[str]:
    """Return a chart's subtitle for a caption, without hints on clicking."""
    spec = chart.to_dict()
    headings = [part.get("title", {}) for part in (spec, *spec.get("vconcat", spec.get("hconcat", [])))]
    notes = [note for heading in headings if isinstance(heading, dict) for note in _listed(heading.get("subtitle", []))]
    parts = [part for note in notes for part in note.split("; ")]
    return [part for part in dict.fromkeys(parts) if not part.startswith("click ")]


def _listed(notes: str | list[str]) -> list[str]:
    return [notes] if isinstance(notes, str) else notes


def _in_print(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification with type, lines and marks for print, its legend below, and no title."""
    spec = copy.deepcopy(spec)
    spec.pop("title", None)
    for part in spec.get("vconcat", spec.get("hconcat", [])):
        if isinstance(part.get("title"), dict):
            part["title"] = {**part["title"], "subtitle": [], "fontSize": TITLE_PT, "offset": 3}
    _walk(spec)
    config = spec.setdefault("config", {})
    labels = {"labelFontSize": SMALLEST_PT, "titleFontSize": TITLE_PT, "titlePadding": 3, "labelPadding": 2}
    config["axis"] = {**config.get("axis", {}), **labels, "tickSize": 3, "gridWidth": 0.5, "domainWidth": 0.6}
    config["axisX"] = {**config.get("axisX", {}), "tickCount": 5}
    config["header"] = {**config.get("header", {}), "labelFontSize": TITLE_PT, "titleFontSize": TITLE_PT}
    config["legend"] = {
        **config.get("legend", {}), "labelFontSize": SMALLEST_PT, "titleFontSize": TITLE_PT, "symbolSize": 40,
        "columnPadding": 6, "rowPadding": 1, "padding": 0, "offset": 4, "symbolStrokeWidth": 1.5,
    }  # fmt: skip
    config["line"] = {**config.get("line", {}), "strokeWidth": 1.2}
    return spec | {"padding": 1, "background": "white"}


def _walk(part: Any) -> None:
    """Make type as small as print allows, and everything that was drawn for a screen smaller, in place."""
    for name, value in _inside(part):
        if isinstance(name, str) and name.endswith("ontSize") and isinstance(value, int | float):
            part[name] = TITLE_PT if name.startswith("title") else SMALLEST_PT
        elif name == "legend" and isinstance(value, dict):
            value |= {"orient": "bottom", "symbolSize": 40, "symbolStrokeWidth": 1.5}
            value |= {"title": None} if value.get("title") == "Scheduler" else {}
            value.setdefault("direction", "horizontal")
            value.setdefault("columns", 4)
        elif name == "mark" and isinstance(value, dict):
            part[name] = {key: _smaller(key, number) for key, number in value.items()}
        _walk(part[name])


def _inside(part: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a specification's part by name or place; data have none."""
    if isinstance(part, list):
        return list(enumerate(part))
    if not isinstance(part, dict):
        return []
    return [(name, value) for name, value in part.items() if name not in ("data", "datasets")]


def _smaller(key: str, value: Any) -> Any:
    """Return an option of a mark for print."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if key.endswith("ontSize"):
        return SMALLEST_PT
    factor = {"size": 0.5, "strokeWidth": 0.6, "thickness": 0.7, "height": 0.6, "dx": 0.7, "dy": 0.65}.get(key, 1.0)
    return value * factor


def _sized(
    spec: dict[str, Any], width: float, *, height_in: float | None, columns: int, lower: float
) -> dict[str, Any]:
    """Return a specification whose panels have a width, and heights in proportion."""
    sized = copy.deepcopy(spec)
    _size(sized, width, height_in=height_in, columns=columns, lower=lower)
    return sized


def _size(part: Any, width: float, *, height_in: float | None, columns: int, lower: float) -> None:
    for name, value in _inside(part):
        if name not in ("config", "encoding", "mark"):
            _size(value, width, height_in=height_in, columns=columns, lower=lower)
    if not isinstance(part, dict) or not isinstance(part.get("width"), int | float):
        return
    part["width"] = width
    height = part.get("height")
    if height_in is not None and height is not None:
        part["height"] = height_in * POINTS
    elif isinstance(height, dict) and "step" in height:
        part["height"] = {"step": height["step"] * STEP * lower}
    elif isinstance(height, int | float):
        part["height"] = min(height * SHORTER[columns], TALLEST * WIDTH_IN[columns] * POINTS) * lower

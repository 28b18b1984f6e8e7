"""Figures in a notebook follow the page's theme: the style that goes with them knows every ink."""

from __future__ import annotations

import re

import altair as alt
import pandas as pd

from labkit.plots import plot_bars
from labkit.plots.palette import FAINT, INK, LINE, MUTED, PAPER
from labkit.plots.theme import DARK, VEGALITE_MIME, as_svg, embed_options, style


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_is_written_can_be_read_on_dark_paper():
    for ink in (INK, MUTED):
        assert (luminance(DARK[ink]) + 0.05) / (luminance("#111111") + 0.05) > 4.5  # WCAG AA, JupyterLab's dark page


def test_every_ink_of_the_look_has_its_colour_in_the_dark():
    chart = plot_bars(pd.DataFrame({"x": [1.0], "y": ["a"]}), x="x", y="y", axis="X", heading="H")
    svg = as_svg(chart.to_dict())
    drawn = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', svg))
    assert drawn & {INK, MUTED, LINE, FAINT, PAPER}
    assert {INK, MUTED, LINE, FAINT, PAPER} <= set(DARK)
    assert all(f'svg [fill="{ink}"] {{ fill: {dark}; }}' in style() for ink, dark in DARK.items())


def test_a_figure_in_a_notebook_carries_the_style_beside_its_data_and_not_in_them():
    chart = alt.Chart(pd.DataFrame({"x": [1]})).mark_point()
    renderer = alt.renderers.get()
    data, about = renderer(chart.to_dict())
    assert about == {VEGALITE_MIME: {"embed_options": embed_options()}}
    assert "embed" not in str(data[VEGALITE_MIME])
    assert about[VEGALITE_MIME]["embed_options"]["renderer"] == "svg"  # a canvas has no elements to style

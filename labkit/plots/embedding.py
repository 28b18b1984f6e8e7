"""How a live figure sits in JupyterLab: as SVG, whose inks follow the page's theme."""

from __future__ import annotations

from typing import Any, Final

from labkit.plots.palette import FAINT, FONT, INK, LINE, MUTED, PAPER

DARK: Final = {INK: "#e6eaf1", MUTED: "#a3adbb", LINE: "#4b5768", FAINT: "#2a323e", PAPER: "#1a212b"}
"""Ink on white paper -> the same on dark paper; colours of data stay."""

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


def style() -> str:
    """Return the style sheet of figures in a notebook."""
    rules = [
        f'{_IN_DARK} .vega-embed svg [{part}="{ink}"] {{ {part}: {dark}; }}'
        for ink, dark in DARK.items()
        for part in ("fill", "stroke")
    ]
    back = f"{_IN_DARK} .vega-embed svg.marks {{ background: transparent !important; }}"
    return "\n".join([_MENU.strip(), back, *rules])


def embed_options() -> dict[str, Any]:
    """Return what JupyterLab passes on to the program that draws a figure."""
    return {"renderer": "svg", "defaultStyle": style()}

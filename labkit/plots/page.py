"""The HTML of a report: escaped text, static figures that come alive, and nothing from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any

import altair as alt

from labkit.plots.theme import as_svg, colours


@dataclass(frozen=True, slots=True)
class Card:
    """A number to see first."""

    what: str
    number: str
    note: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in the table; the best of its column stands out."""

    text: str
    best: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One row per run: its label and its cells."""

    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    pale: Sequence[bool] = ()
    notes: Sequence[str] = ()
    """Whether a row is not to be compared with others, and what to know of the numbers."""


@dataclass(frozen=True, slots=True)
class Section:
    """Cards and figures under a heading; a folded one opens with a click, a last one stands behind all others."""

    heading: str
    figures: Sequence[Any]
    note: str = ""
    folded: bool = False
    last: bool = False
    cards: Sequence[Card] = ()
    lead: str = ""


def html(
    *,
    heading: str,
    lead: str,
    cards: Sequence[Card],
    table: Table,
    sections: Sequence[Section],
    provenance: Sequence[tuple[str, str]],
    command: str,
) -> str:
    """Return the whole page; all text is escaped here, nothing before."""
    numbers, shades = count(1), colours(label for label, _ in table.rows)
    shown = [_section(section, numbers, shades) for section in sections if not section.folded and not section.last]
    deep = [_section(section, numbers, shades) for section in sections if section.folded]
    last = [_section(section, numbers, shades) for section in sections if section.last]
    body = [
        f'<header><p class="brand">labkit</p><h1>{escape(heading)}</h1><p class="lead">{escape(lead)}</p></header>',
        f'<div class="cards">{"".join(map(_card, cards))}</div>',
        f"<section><h2>Comparison</h2>{_table(table)}</section>",
        *shown,
        *(["<section><h2>Run by run</h2>", *deep, "</section>"] if deep else []),
        *last,
        _foot(provenance, command),
    ]
    return _PAGE.format(
        title=escape(heading), style=_asset("report.css"), body="\n".join(body), vega=vega(), script=_asset("report.js")
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{vega}</script>
<script>{script}</script>
</body>
</html>
"""  # noqa: E501 - the policy forbids the browser every request; Vega compiles its expressions, hence unsafe-eval


def _card(card: Card) -> str:
    return (
        f'<div class="card"><div class="what">{escape(card.what)}</div><div class="number">{escape(card.number)}</div>'
        f'<div class="note">{escape(card.note)}</div></div>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th scope='col'>{escape(heading)}</th>" for heading in table.headings)
    rows = []
    shades = colours(label for label, _ in table.rows)
    for i, (label, cells) in enumerate(table.rows):
        dot = f'<span class="dot" style="background:{shades[label]}"></span>'
        marked = "".join(f"<td{' class=best' if cell.best else ''}>{escape(cell.text)}</td>" for cell in cells)
        kind = " class=pale" if any(table.pale[i : i + 1]) else ""
        rows.append(f"<tr{kind}><th scope='row'>{dot}{escape(label)}</th>{marked}</tr>")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"{notes}"
    )


def _section(section: Section, numbers: Iterator[int], shades: dict[str, str]) -> str:
    figures = "".join(_figure(chart, number=next(numbers)) for chart in section.figures)
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    if section.folded:
        dot = f'<span class="dot" style="background:{shades.get(section.heading, "none")}"></span>'
        return f"<details><summary>{dot}{escape(section.heading)}</summary>{figures}{note}</details>"
    lead = f'<p class="note">{escape(section.lead)}</p>' if section.lead else ""
    cards = f'<div class="cards">{"".join(map(_card, section.cards))}</div>' if section.cards else ""
    return f"<section><h2>{escape(section.heading)}</h2>{lead}{cards}{figures}{note}</section>"


def _figure(chart: alt.Chart, *, number: int) -> str:
    """Return a figure as SVG with its specification beside it; the page's script puts the live chart in its place."""
    spec = chart.to_dict()
    svg = _at_home(as_svg(spec), number=number)
    return f'<figure>{svg}<script type="application/json" class="spec">{json_in_html(spec)}</script></figure>'


def _at_home(svg: str, *, number: int) -> str:
    """Return an SVG that may stand in a page: ids of its own, and no namespace declarations."""
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", svg)


def json_in_html(value: Any) -> str:
    r"""Return JSON that cannot end the script element it stands in.

    >>> json_in_html("</script>")
    '"\\u003c/script>"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _foot(provenance: Sequence[tuple[str, str]], command: str) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in provenance)
    again = f"<h2>Do it again</h2><pre><code>{escape(command)}</code></pre>" if command else ""
    return f"<section>{again}</section><section><h2>Provenance</h2><dl>{rows}</dl></section>"


@cache
def vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that may stand in a page."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub(r"</(script)", r"<\\/\1", bundle, flags=re.IGNORECASE).replace("<!--", "<\\!--")


@cache
def _asset(name: str) -> str:
    return (files("labkit.plots") / name).read_text(encoding="utf-8")

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
from typing import Any, Final

import altair as alt

from labkit.plots.theme import DARK, as_svg, colours, dark_style, printable_spec

GROWN: Final = 1.4
"""A figure may be so many times as large as it was drawn, on a wide page."""


WHOLE: Final = 26
"""Letters of a name in a table that does not go on in the next line."""


@dataclass(frozen=True, slots=True)
class Card:
    """A number to see first."""

    what: str
    number: str
    note: str


@dataclass(frozen=True, slots=True)
class TableCell:
    """A number in the table; the best of its column stands out."""

    text: str
    best: bool = False
    value: float | None = None
    """What it is sorted by, and what a CSV has; None: its text."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """One row per run: its label and its cells."""

    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TableCell]]]
    pale: Sequence[bool] = ()
    notes: Sequence[str] = ()
    """Whether a row is not to be compared with others, and what to know of the numbers."""
    name: str = "comparison"
    """Of the CSV that it can be saved as."""


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
    table: PageTable | None = None
    html: str = ""
    """Behind the figures, already escaped."""


def html(
    *,
    heading: str,
    lead: str,
    cards: Sequence[Card],
    table: PageTable,
    sections: Sequence[Section],
    provenance: Sequence[tuple[str, str]],
    command: str,
    shown: Sequence[str] = (),
) -> str:
    """Return the whole page; `shown` is what the runs show, in sentences; all text is escaped here, nothing before."""
    numbers, shades = count(1), colours(label for label, _ in table.rows)
    usual = [_section(section, numbers, shades) for section in sections if not section.folded and not section.last]
    deep = [_section(section, numbers, shades) for section in sections if section.folded]
    last = [_section(section, numbers, shades) for section in sections if section.last]
    body = [
        f'<header><p class="brand">labkit</p><h1>{escape(heading)}</h1><p class="lead">{escape(lead)}</p></header>',
        _conclusion(shown),
        f'<div class="cards">{"".join(map(_card, cards))}</div>',
        f"<section><h2>Comparison</h2>{_table(table)}</section>",
        *usual,
        *(["<section><h2>Run by run</h2>", *deep, "</section>"] if deep else []),
        *last,
        _foot(provenance, command),
    ]
    return _PAGE.format(
        title=escape(heading), style=_asset("report.css") + _dark(), body="\n".join(body), vega=vega(),
        script=_asset("report.js") + _asset("report_tables.js"),
    )  # fmt: skip


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:">
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
"""  # noqa: E501 - the policy forbids the browser every request, and to make code of text


def _dark() -> str:
    """Return what the page's figures, and the dots of its names, look like on dark paper."""
    dots = "\n".join(
        f'.dot[style="background:{ink}"] {{ background: {dark} !important; }}' for ink, dark in DARK.items()
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{dark_style('figure svg')}\n{dots}\n}}"


def _conclusion(shown: Sequence[str]) -> str:
    if not shown:
        return ""
    first, *others = (re.sub(r"--[\w-]+( \d+)?", r"<code>\g<0></code>", escape(sentence)) for sentence in shown)
    rest = "".join(f"<p>{sentence}</p>" for sentence in others)
    return f'<section class="conclusion"><h2>What this shows</h2><p class="first">{first}</p>{rest}</section>'


def _card(card: Card) -> str:
    return (
        f'<div class="card"><div class="what">{escape(card.what)}</div><div class="number">{escape(card.number)}</div>'
        f'<div class="note">{escape(card.note)}</div></div>'
    )


def _table(table: PageTable) -> str:
    """Return a table that sorts by a click on a heading, and can be saved."""
    head = "".join(
        f'<th scope="col"{kind} aria-sort="none"><button type="button">{escape(heading)}</button></th>'
        for heading, kind in [("Name", ' class="word"'), *((heading, "") for heading in table.headings)]
    )
    rows = []
    shades = colours(label for label, _ in table.rows)
    for i, (label, cells) in enumerate(table.rows):
        dot = f'<span class="dot" style="background:{shades[label]}"></span>'
        kind = " class=pale" if any(table.pale[i : i + 1]) else ""
        whole = ' class="whole"' if len(label) <= WHOLE else ""
        name = f'<span class="name">{dot}<span{whole}>{escape(label)}</span></span>'
        rows.append(f"<tr{kind}><th scope='row'>{name}</th>{''.join(map(_cell, cells))}</tr>")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="Table: {escape(table.name)}">'
        f'<table class="sortable" data-name="{escape(table.name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{notes}"
    )


def _cell(cell: TableCell) -> str:
    value = "" if cell.value is None or cell.value != cell.value else f' data-value="{cell.value!r}"'
    return f"<td{' class=best' if cell.best else ''}{value}>{escape(cell.text)}</td>"


def _section(section: Section, numbers: Iterator[int], shades: dict[str, str]) -> str:
    figures = "".join(_figure(chart, number=next(numbers)) for chart in section.figures)
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    if section.folded:
        dot = f'<span class="dot" style="background:{shades.get(section.heading, "none")}"></span>'
        return f"<details><summary>{dot}{escape(section.heading)}</summary>{figures}{note}</details>"
    lead = f'<p class="note">{escape(section.lead)}</p>' if section.lead else ""
    cards = f'<div class="cards">{"".join(map(_card, section.cards))}</div>' if section.cards else ""
    table = _table(section.table) if section.table else ""
    return f"<section><h2>{escape(section.heading)}</h2>{lead}{cards}{table}{figures}{note}{section.html}</section>"


def _figure(chart: alt.Chart, *, number: int) -> str:
    """Return a figure as SVG with its specification beside it; the page's script puts the live chart in its place."""
    spec = printable_spec(chart.to_dict())
    svg, said = _at_home(as_svg(spec), number=number), escape(_title_of(spec) or f"Figure {number}")
    kept = f'<script type="application/json" class="spec">{json_in_html(spec)}</script>'
    return f'<figure tabindex="0" aria-label="{said}">{svg}{kept}</figure>'


def _title_of(spec: dict[str, Any]) -> str:
    """Return the title of a figure, or of its first part; "": it has none."""
    parts = [spec, *spec.get("vconcat", spec.get("hconcat", []))]
    titles = [part["title"] for part in parts if part.get("title")]
    said = titles[0] if titles else ""
    text = said.get("text", "") if isinstance(said, dict) else said
    return " ".join(text) if isinstance(text, list) else str(text)


def _at_home(svg: str, *, number: int) -> str:
    """Return an SVG that may stand in a page: ids of its own, no namespace declarations, as wide as it reads well."""
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(
        r'<svg([^>]*?) width="([\d.]+)"', rf'<svg\1 style="max-width:calc(\2px * {GROWN})" width="\2"', svg, count=1
    )
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
    again = f'<h2>Do it again</h2><pre tabindex="0"><code>{escape(command)}</code></pre>' if command else ""
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

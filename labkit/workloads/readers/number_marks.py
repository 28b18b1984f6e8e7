"""Numbers as people write them: a column's marks of thousands and of decimals, as points of decimals alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from labkit.workloads.readers.base import numbers_of

if TYPE_CHECKING:
    import pandas as pd

_GAP: Final = "[ '\u2019\u00a0\u2009\u202f]"
_SPACED: Final = rf"[+-]?\d{{1,3}}(?:{_GAP}\d{{3}})+(?:[.,]\d+)?"
"""1 234,5 and 1'234: spaces, also those that break no line, and apostrophes are always those of thousands."""
_DOTTED: Final = r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?"
_THOUSANDS: Final = r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?"


def dates_with_points(frame: pd.DataFrame) -> bool:
    """Return whether a table has dates such as 01.03.2024, whose writers set points behind thousands."""
    return any(
        frame[column].head(100).astype("str").str.match(r"\s*\d{1,2}\.\d{1,2}\.\d{4}\b").any() for column in frame
    )


def plain_numbers(raw: pd.Series, *, separator: str, points: bool) -> tuple[pd.Series, str]:
    """Return cells with numbers such as 30,5 and 1,234 as 30.5 and 1234, and a sentence about it; "" where none are.

    A comma or point is that of decimals, or of thousands, in all of a column. Commas are of thousands where three
    digits follow each one in a table that commas separate. Points are where three digits follow each one, and commas
    follow some of these, or the table has semicolons and dates with `points`. Where the column does not tell, its cells
    stay as they are.
    """
    text = raw.astype("str").str.strip()
    there = text.str.fullmatch(rf"[+-]?\d(?:[\d.,]|{_GAP}(?=\d))*\d")
    marked = there & text.str.contains(rf"[.,]|{_GAP}", regex=True)
    if not marked.any():
        return raw, ""
    cells, kinds = text[marked], list[str]()
    if (spaced := cells.str.fullmatch(_SPACED)).any():
        cells = cells.where(~spaced, cells.str.replace(_GAP, "", regex=True))
        kinds.append("spaces or apostrophes of thousands")
    if _points_of_thousands(cells, text[there & ~marked], separator=separator, points=points):
        cells = cells.str.replace(".", "").str.replace(",", ".")
        kinds.append("points of thousands")
    elif (commas := cells[cells.str.contains(",")]).size:
        thousands = bool(commas.str.fullmatch(_THOUSANDS).all())
        if thousands and (separator == "," or commas.str.contains(r",\d+[,.]").any()):
            cells = cells.str.replace(",", "")
            kinds.append("commas of thousands")
        elif not thousands and commas.str.fullmatch(r"[+-]?\d+,\d+").all():
            cells = cells.str.replace(",", ".")
            kinds.append("commas of decimals")
    if not kinds:
        return raw, ""
    changed = cells[cells != text[marked]]
    first = changed.index[0]
    return (
        raw.where(~marked, cells.reindex(raw.index)),
        f"{raw.name} has {' and '.join(kinds)}: '{text[first]}' is {cells[first]}.",
    )


def _points_of_thousands(cells: pd.Series, others: pd.Series, *, separator: str, points: bool) -> bool:
    """Return whether points are those of thousands, in all cells with marks; `others` have none."""
    dotted = cells[cells.str.contains(".", regex=False)]
    if not len(dotted) or not dotted.str.fullmatch(_DOTTED).all():
        return False
    if dotted.str.contains(",", regex=False).any():
        return True
    return points and separator == ";" and not (numbers_of(others) >= 1000).any()

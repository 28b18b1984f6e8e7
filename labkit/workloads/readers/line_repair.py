"""Lines of a table that are no rows as they stand: cut by a newline, with a separator too many, a header once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

Record = tuple[int, list[str]]
"""The line on which a row begins, and its cells."""


class LineRepair(NamedTuple):
    """How lines with a wrong number of cells become rows: functions of cells and the names of columns.

    Attributes
    ----------
    begins : callable
        Whether a row begins with these cells; otherwise they go on where a newline cut the row before.
    whole : callable
        The cells of a row that has too many, or None.
    goes_on : callable
        Whether a row with these cells may have been cut: it lacks some, or the last one is free text.
    """

    begins: Callable[[Sequence[str], Sequence[str]], bool]
    whole: Callable[[list[str], Sequence[str]], list[str] | None]
    goes_on: Callable[[Sequence[str], Sequence[str]], bool] = lambda cells, names: len(cells) < len(names)


NO_REPAIR: Final = LineRepair(lambda *_: True, lambda *_: None)
"""Lines with a wrong number of cells are lost."""


def is_header(cells: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a row is a header, of these columns or of most of them among others.

    >>> is_header(["id", "end", "gpus"], ["id", "gpus", "end"]), is_header(["id", "3", "4"], ["id", "gpus", "end"])
    (True, False)
    """
    there = {cell.strip().lower() for cell in cells} - {""}
    known = {name.strip().lower() for name in names} - {""}
    return 2 * len(there & known) > len(known) and len(there & known) > 1


def joined(
    records: Iterator[Record], header: list[str], repair: LineRepair
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield records with the header that they stand under, which for a header is itself; what newlines cut is one."""
    before: Record | None = None
    names, known = header, set(header) - {""}
    for number, cells in records:
        if not known.isdisjoint(cells) and is_header(cells, header):
            if before is not None:
                yield *before, names
            before, names = None, cells
            yield number, cells, cells
            continue
        short = before is not None and (len(before[1]) < len(names) or len(cells) < len(names))
        if before is not None and short and not repair.begins(cells, names) and repair.goes_on(before[1], names):
            before = (before[0], [*before[1][:-1], f"{before[1][-1]} {cells[0]}", *cells[1:]])
            continue
        if before is not None:
            yield *before, names
        before = (number, cells)
    if before is not None:
        yield *before, names

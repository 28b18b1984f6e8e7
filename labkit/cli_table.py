"""Tables in a terminal, a pipe or a file: long words are folded where there is little room, a number is never cut."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final

from labkit.printing import printable, terminal

if TYPE_CHECKING:
    from rich.table import Column, Table
    from rich.text import Text

PIPED: Final = 100
"""Characters in a line of text, and of a table where there is no terminal; more where numbers need them."""

FOLDED: Final = 24
"""Characters that a column of words keeps at least."""


def numbers(table: Table, *headings: str) -> None:
    """Add columns of numbers: to the right, in one line."""
    for heading in headings:
        table.add_column(_lines(heading), justify="right", no_wrap=True)


def words(table: Table, heading: str = "") -> None:
    """Add a column of words that may be folded."""
    table.add_column(_lines(heading), overflow="fold")


def _lines(heading: str) -> Text:
    """Return a heading, which may have lines; a cell has one."""
    from rich.text import Text

    return Text(printable(heading, keep="\n"))


def say(text: str) -> None:
    """Print a text in lines of at most `PIPED` characters; no word is cut."""
    print(textwrap.fill(text, PIPED, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def show(table: Table) -> None:
    """Print a table; a terminal that is too narrow for its numbers breaks the lines itself."""
    console = terminal(width=None if sys.stdout.isatty() else PIPED)
    if console.width < (needed := sum(map(_width, table.columns))):
        console = terminal(width=needed)
    console.print(table, soft_wrap=False, crop=False)


def _width(column: Column) -> int:
    """Return the characters that a column needs, with the space around it."""
    from rich.cells import cell_len

    lines = [*str(column.header).split("\n"), *(printable(str(cell)) for cell in column.cells)]
    longest = max(map(cell_len, lines))
    return (longest if column.no_wrap else min(longest, FOLDED)) + 2

"""The way of text to a terminal: what would control it is written out, whichever file, name or option it came from.

`guard` stands before stdout and stderr while a program runs, `terminal` returns rich's console for tables, and
`progress.counter` writes its bars through `BarStream`. Colours and moves of the cursor are those three's own.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.segment import Segment

SPACES: Final = "\u00a0\u2009\u202f\u3000"
"""Spaces of languages, which Python does not call printable."""
_MOVES: Final = re.compile(r"[\r\n]*(\x1b\[A)*")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return text in which what a terminal would obey is written out: "\x1b" for the escape.

    Parameters
    ----------
    text : str
        One line, or lines.
    keep : str
        Characters that stay: "\n" where lines are meant.

    Notes
    -----
    Control characters, changes of the direction of writing, separators of lines and halves of surrogate pairs are not
    printable in Python's sense. DEL is written as JSON has it, which would take the other form for an error.

    >>> print(printable("a\x1b[2Jb\u202e\x7f"))
    a\x1b[2Jb\u202e\u007f
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or c in SPACES else _written(c) for c in text)


def _written(letter: str) -> str:
    return r"\u007f" if letter == "\x7f" else ascii(letter)[1:-1]


class GuardedStream:
    """A stream that writes out what a terminal would obey; lines and tabs stay.

    `stream`: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream itself: where rich's consoles write, with colours."""

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        self.rich_proxied_file.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def __eq__(self, other: object) -> bool:  # tqdm clears its bar for what goes to the same stream
        return self.rich_proxied_file is getattr(other, "rich_proxied_file", other)

    def __hash__(self) -> int:
        return hash(self.rich_proxied_file)


class BarStream(GuardedStream):
    """A stream for progress bars: the moves of the cursor with which a bar begins or ends are its own."""

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        moves = text if _MOVES.fullmatch(text) else "\r" * text.startswith("\r")
        self.rich_proxied_file.write(moves + printable(text[len(moves) :]))
        return len(text)


def own(stream: TextIO) -> TextIO:
    """Return the stream behind a guard, for moves of the cursor of labkit's own."""
    return getattr(stream, "rich_proxied_file", stream)


def guard() -> None:
    """Guard stdout and stderr of this process from now on."""
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), GuardedStream):
            setattr(sys, name, GuardedStream(getattr(sys, name)))


def terminal(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return rich's console for tables; brackets and colons of a text are no markup.

    `file`: stdout by default; `width`: characters of a line; by default those of the terminal.
    """
    return _console_class()(file=own(file or sys.stdout), width=width, markup=False, emoji=False, highlight=False)


@functools.cache
def _console_class() -> type[Console]:
    """Return the class of consoles, without loading rich before it is needed."""
    from rich.console import Console
    from rich.text import Text

    class Guarded(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)  # a cell is measured as it is shown

        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **options):
                yield segment if segment.control else segment._replace(text=printable(segment.text, keep="\n"))

    return Guarded

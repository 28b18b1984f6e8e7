"""Text that people type and read: lists of names, text too long for a message, spans of time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from labkit.system.printing import printable

CONTROL: Final = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
"""What no name of a file may hold: controls of terminals (C0, C1), marks of direction, and line ends of Unicode."""
_LABELLED: Final = re.compile(r"\s*([A-Za-z0-9_][\w.+-]*)\s*=\s*(\S.*)", re.DOTALL)


def split_names(text: str) -> list[str]:
    """Return the names of a comma-separated list, leaving commas inside brackets alone.

    >>> split_names("fifo, las(threshold_gpu_s=60, quantum_s=5)")
    ['fifo', 'las(threshold_gpu_s=60, quantum_s=5)']
    """
    names, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            names.append("")
        else:
            names[-1] += letter
    return [name.strip() for name in names if name.strip()]


def labelled(text: str) -> tuple[str | None, str]:
    """Return the label that stands before "=" and what it names; None where there is no label.

    >>> labelled("mine=first.py:First(k=2)"), labelled("las(quantum_s=60)")
    (('mine', 'first.py:First(k=2)'), (None, 'las(quantum_s=60)'))
    """
    found = _LABELLED.fullmatch(text)
    return (found[1], found[2].strip()) if found else (None, text)


_COMPUTED: Final = re.compile(r"'*[=+\-@\t\r]")


def spreadsheet_text(text: str) -> str:
    """Return a text for a cell of a CSV file: behind an apostrophe where a spreadsheet would compute it.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("-5"), spreadsheet_text("a=b")
    ("'=1+1", '-5', 'a=b')
    """
    return f"'{text}" if _COMPUTED.match(text) and not _is_number(text) else text


def text_of_spreadsheet(cell: str) -> str:
    """Return the text that `spreadsheet_text` made a cell of."""
    return cell[1:] if cell.startswith("'") and _COMPUTED.match(cell) else cell


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def odd_name(names: Iterable[object]) -> str | None:
    r"""Return the first name with a control character, written out; None if there is none.

    >>> odd_name(["a", "b\nc"]), odd_name(["a"])
    ('b\\nc', None)
    """
    return next((printable(text) for text in map(str, names) if re.search(CONTROL, text)), None)


def without_seed(trace: str) -> str:
    """Return the name of a trace without the seed that it was generated with.

    >>> without_seed("poisson(8, per_hour=30) seed 3"), without_seed("demo")
    ('poisson(8, per_hour=30)', 'demo')
    """
    return trace.rpartition(" seed ")[0] or trace


def text_or_none(value: object) -> str:
    """Return a value of a table as text; pandas makes NaN of None.

    >>> text_or_none(float("nan")), text_or_none(None), text_or_none(2)
    ('None', 'None', '2')
    """
    return "None" if value is None or value != value else str(value)


def shortened(text: str, *, most: int = 60) -> str:
    """Return a text that fits into a message.

    >>> shortened("poisson(80)"), shortened("(" * 5000, most=4)
    ('poisson(80)', '((((... (5,000 letters)')
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} letters)"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return (seconds per unit, name) of the unit in which a span of time reads best.

    >>> time_unit(90.0), time_unit(3 * 86400.0)
    ((1.0, 's'), (3600.0, 'h'))
    """
    units = ((1.0, "s", 300.0), (60.0, "min", 7200.0), (3600.0, "h", 10 * 86_400.0))
    return next(((scale, name) for scale, name, limit in units if not longest_s > limit), (86_400.0, "days"))


def amount(value: float) -> str:
    """Return an amount of GPUs or cores for people: a tenth is enough, and a hundredth below one.

    >>> amount(0.9), amount(2.0112), amount(0.254), amount(1234.0)
    ('0.9', '2', '0.25', '1,234')
    """
    return f"{round(value, 1 if abs(value) >= 1 else 2):,.10g}"


def human_s(seconds: float) -> str:
    """Return a span of time for people.

    >>> human_s(42.0), human_s(5400.0), human_s(float("nan"))
    ('42.0 s', '90.0 min', '–')
    """
    if not math.isfinite(seconds):
        return "–"
    scale, unit = time_unit(abs(seconds))
    return f"{seconds / scale:,.{0 if abs(seconds) >= 1000 * scale else 1}f} {unit}"

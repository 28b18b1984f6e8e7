"""All faults of a file in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_LISTED: Final = 20


def fault_report(name: str, faults: Sequence[str]) -> str:
    """Return one message for all faults of a file, the first 20 of them in full.

    >>> fault_report("a.csv", ["line 1: bad", "line 2: bad"])
    'a.csv: 2 faults: line 1: bad; line 2: bad.'
    """
    shown = "; ".join(faults[:MAX_LISTED])
    rest = f"; and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
    return f"{name}: {len(faults)} {'fault' if len(faults) == 1 else 'faults'}: {shown}{rest}."

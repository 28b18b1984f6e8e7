"""Where a scheduler of a user's own raised: its file and line, the decision, and the simulated time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

_IN_DECISION: Final = "decision "
"""How the note begins that says in which decision an error was raised."""


def note_decision(error: BaseException, *, number: int, now_s: float) -> None:
    """Note in an error that `schedule()` raised which decision it was; a traceback ends with it."""
    error.add_note(f"{_IN_DECISION}{number}, at {now_s:,.0f} s")


def raised_at(error: BaseException) -> str:
    """Return where `schedule()` raised, in brackets behind a space; "" where an error is not of a decision.

    The line is the last one in the folder of the scheduler's own file: what it calls elsewhere did as it was told.
    """
    noted = next((note for note in getattr(error, "__notes__", ()) if note.startswith(_IN_DECISION)), None)
    return "" if noted is None else f" ({', '.join(filter(None, (_line(error.__traceback__), noted)))})"


def _line(trace: TracebackType | None) -> str:
    """Return file and line of the scheduler's code that raised."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    first = next((i for i, (code, _) in enumerate(frames) if code.co_name == "schedule"), None)
    if first is None:
        return ""
    folder = Path(frames[first][0].co_filename).parent
    inside = [(code, line) for code, line in frames[first:] if Path(code.co_filename).parent == folder]
    return f"{Path(inside[-1][0].co_filename).name}:{inside[-1][1]}"

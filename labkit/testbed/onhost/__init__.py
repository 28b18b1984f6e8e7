"""Programs that are sent to a host that has no labkit yet.

Each is one file, needs the standard library alone, runs on Python 3.8 (to say that it is too old), and answers in JSON.
To add one: a file here with a `main`; `source` gives its text, which the host's Python takes with -c.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def source(name: str) -> str:
    """Return the text of a program, as `python -c` takes it."""
    return (Path(__file__).parent / f"{name}.py").read_text("utf-8")

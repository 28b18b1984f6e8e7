"""Programs that are sent to a host that has no labkit yet.

Each is one file, needs the standard library alone, runs on Python 3.8 (to say that it is too old), and answers in
messages of `frame`, the one module of labkit that it may import. To add one: a file here with a `main`; `source` gives
what the host's Python takes with -c.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

BOOT = """import sys, types
frame = types.ModuleType("labkit.testbed.onhost.frame")
sys.modules[frame.__name__] = frame
exec({frame!r}, frame.__dict__)
exec(compile({program!r}, {name!r}, "exec"), {{"__name__": "__main__"}})
"""


@cache
def source(name: str) -> str:
    """Return a program as `python -c` takes it, with the module that it answers through."""
    return BOOT.format(frame=_text("frame"), program=_text(name), name=f"{name}.py")


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text("utf-8")

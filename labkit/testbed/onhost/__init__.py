"""Programs that are sent to a host that has no labkit yet.

Each is one file, needs the standard library alone, runs on Python 3.8 (to say that it is too old), and answers in
messages of `shared`, the only module of labkit that it may import. To add one: a file here with a `main`; `source`
returns what the host's Python takes with -c. `labkit.testbed.ssh.host_messages` decodes the answers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

SHARED = "labkit.testbed.onhost.shared"
BOOT = """import sys, types
module = sys.modules[{shared!r}] = types.ModuleType({shared!r})
exec({text!r}, module.__dict__)
exec(compile({program!r}, {name!r}, "exec"), {{"__name__": "__main__"}})
"""


@cache
def source(name: str) -> str:
    """Return a program as `python -c` takes it, with the module that it may import."""
    return BOOT.format(shared=SHARED, text=_text("shared"), program=_text(name), name=f"{name}.py")


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text("utf-8")

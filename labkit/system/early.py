"""Ctrl-C while the programs `labkit` and `fab` are being loaded, or end: one line and exit code 130."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


PROGRAMS = ("labkit", "fab")


def _program() -> str:
    """Return which program this process is; empty where labkit is only imported."""
    if "labkit" in sys.orig_argv[1:4]:  # python -m labkit
        return "labkit"
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if name in PROGRAMS else ""


_reported = False


def tell() -> None:
    """Report that the program stops: once, however often Ctrl-C is pressed."""
    global _reported
    if not _reported:
        _reported = True
        os.write(2, f"{_program()}: stopped\n".encode())


def stop(*_: object) -> NoReturn:
    """End this process at once."""
    tell()
    os._exit(STOPPED)


def arm() -> None:
    """Let Ctrl-C end the process at once, if it is one of the programs and does not ignore it."""
    if _program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
    exec("")  # else Python would end by SIGINT, whatever its exit code, if Ctrl-C came within an exec(text) before


def hand_over() -> None:
    """Let Ctrl-C be an exception, for those that have something to tidy up."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)

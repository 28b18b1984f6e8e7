"""Processes that a member's user code has started: they end with the member, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from labkit.system.proc import Identity, all_pids, is_ours, send, stat, variables

MARK: Final = "LABKIT_MEMBER"
"""Variable of a member that its children inherit, also those with a session of their own."""


def mark_of(home: Path, name: str) -> str:
    """Return the value of `MARK` for a member."""
    return f"{home}/{name}"


def end_offspring(pid: int, mark: str) -> None:
    """Kill what a member has started: processes of its session, and those with its mark.

    Parameters
    ----------
    pid : int
        Process number of the member, which leads a session; the kernel gives the number to no other process while one
        of that session is left.
    mark : str
        What `mark_of` returned.
    """
    said = f"{MARK}={mark}".encode()
    for each in all_pids():
        if each in (pid, os.getpid()):
            continue
        found = stat(each)
        if found is None or found.dead:
            continue
        if found.session == pid or (is_ours(each) and said in variables(each)):
            with contextlib.suppress(OSError):
                send(Identity(each, found.start), signal.SIGKILL)

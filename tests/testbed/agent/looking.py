"""See from outside what an agent has done: processes by their label, and moments awaited."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from labkit.testbed.agent.places import STATE, read_json

WAIT_S = 30.0


def wait_for(condition: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
    """Wait until something outside is as it should be."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it did not happen in time"
        select.select([], [], [], 0.02)


def state_of(pid: int) -> str:
    """Return the letter of a process' state, or nothing if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text[text.rindex(")") + 2]


def runs(pid: int) -> bool:
    """Whether a process is there and is no corpse."""
    return state_of(pid) not in ("", "Z", "X")


def environment(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)


def labelled(folder: Path) -> list[int]:
    """Return processes that bear the label of a folder, as anybody can see them."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if runs(pid) and environment(pid).get("LABKIT_FOLDER") == str(folder)]


def agent_pid(folder: Path) -> int | None:
    """Return the process of the agent of a folder, if it runs."""
    pid = (read_json(folder / STATE) or {}).get("pid")
    if pid is None or not runs(pid):
        return None
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return pid if str(folder).encode() in words else None

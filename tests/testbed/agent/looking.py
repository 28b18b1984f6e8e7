"""See from outside what an agent has done: processes by their label, moments awaited, and bytes said to it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit.testbed.agent.folder_layout import SOCKET, STATE, call, read_json
from tests.hang import HANG_S


def wait_for(condition: Callable[[], object], *, timeout_s: float = HANG_S) -> None:
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


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def labelled(folder: Path) -> list[int]:
    """Return processes that bear the label of a folder, as any user can see them."""
    return [pid for pid in all_pids() if runs(pid) and environment(pid).get("LABKIT_FOLDER") == str(folder)]


def agents(folder: Path) -> list[int]:
    """Return processes that are agents of a folder."""
    return [pid for pid in all_pids() if runs(pid) and _is_agent(pid, folder)]


def _is_agent(pid: int, folder: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"labkit.testbed.agent" in words and str(folder).encode() in words


def agent_pid(folder: Path) -> int | None:
    """Return the process of the agent of a folder, if it runs."""
    pid = (read_json(folder / STATE) or {}).get("pid")
    return pid if pid is not None and runs(pid) and _is_agent(pid, folder) else None


def kill_agent(folder: Path) -> None:
    """Kill the agent of a folder, and nothing else."""
    pid = agent_pid(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not runs(pid))


def say(folder: Path, *lines: bytes, n_answers: int) -> list[dict[str, Any]]:
    """Say bytes to an agent, and return its answers; fewer if it hangs up."""
    with call(folder, SOCKET) as sock:
        sock.settimeout(HANG_S)
        for line in lines:
            sock.sendall(line)
        return hear(sock, n_answers)


def hear(sock: socket.socket, n_answers: int) -> list[dict[str, Any]]:
    with sock.makefile("rb") as file:
        answers = (file.readline() for _ in range(n_answers))
        return [json.loads(answer) for answer in answers if answer]

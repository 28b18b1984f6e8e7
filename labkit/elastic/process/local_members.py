"""Members of jobs among the processes of this machine, and the children that user code left: found and ended."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

from labkit.elastic.process.credentials import MEMBERS
from labkit.system.proc import Identity, all_pids, belongs_to_user, command_line, send, stat, variables, wait_for_end

MODULES: Final = ("labkit.elastic.process.member", "labkit.elastic.process.newcomer")
"""Programs of members: the second gets ready at a low priority first."""
LEADERS: Final = ("labkit.elastic.controller.process", "labkit.elastic.process.host_launcher")
"""Programs that lead members."""


class MemberArguments(NamedTuple):
    """Arguments in the command line of a member."""

    home: str
    role: str
    name: str
    site: str = ""
    device: str = ""


def member_arguments(pid: int) -> MemberArguments | None:
    """Return the arguments of a process; None if it is no member of a job."""
    line = command_line(pid)
    where = next((i for i, word in enumerate(line) if word in MODULES), None)
    if where is None or len(line) < where + 4:
        return None
    return MemberArguments(*line[where + 1 : where + 6])


def is_member(pid: int, folder: Path, name: str) -> bool:
    """Return whether a process is the named member of the job in a folder: process numbers are used again."""
    arguments = member_arguments(pid)
    return arguments is not None and arguments.name == name and Path(arguments.home).is_relative_to(folder)


def running(folder: Path) -> dict[str, int]:
    """Return process numbers by name of the members of the job in a folder that run on this machine."""
    members = ((member_arguments(pid), pid) for pid in all_pids())
    return {
        arguments.name: pid
        for arguments, pid in members
        if arguments is not None and Path(arguments.home).is_relative_to(folder)
    }


def end_orphans(home: Path) -> list[str]:
    """Kill the other members of a job on this machine if neither its controller nor a launcher runs here.

    Parameters
    ----------
    home : Path
        Home of a member: the folder of the job, or a folder among the members' homes of a job or launcher.

    Returns
    -------
    list of str
        Names of the members that were killed.
    """
    folder = home.parent.parent if home.parent.name == MEMBERS else home
    return [] if _is_led(folder) else end_members(folder, but=os.getpid())


def _is_led(folder: Path) -> bool:
    for pid in all_pids():
        line = command_line(pid)
        where = next((i for i, word in enumerate(line[:-1]) if word in LEADERS), None)
        if where is not None and Path(line[where + 1]) == folder:
            return True
    return False


def end_members(folder: Path, *, but: int = 0, timeout_s: float = 0.0) -> list[str]:
    """Kill the members of a job that run on this machine, except process `but`; return their names.

    They may still be ending when it returns, unless `timeout_s` is given: the longest time to wait for each.
    """
    pids = {name: pid for name, pid in running(folder).items() if pid != but}
    homes = {name: arguments.home for name, pid in pids.items() if (arguments := member_arguments(pid)) is not None}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids.values():
        wait_for_end(pid, timeout_s=timeout_s)
    for name, pid in pids.items():
        end_offspring(pid, mark_of(Path(homes.get(name, folder)), name))
    return sorted(pids)


MARK: Final = "LABKIT_MEMBER"
"""Variable of a member that its children inherit, also those with a session of their own."""


def mark_of(home: Path, name: str) -> str:
    """Return the value of `MARK` for a member."""
    return f"{home}/{name}"


def end_offspring(pid: int, mark: str) -> None:
    """Kill what a member has started: processes of its session, and those with its mark.

    `pid`: process number of the member, which leads a session; the kernel gives the number to no other process while
    one of that session is left. `mark`: what `mark_of` returned.
    """
    mark_bytes = f"{MARK}={mark}".encode()
    for each in all_pids():
        if each in (pid, os.getpid()):
            continue
        status = stat(each)
        if status is None or status.dead:
            continue
        if status.session == pid or (belongs_to_user(each) and mark_bytes in variables(each)):
            with contextlib.suppress(OSError):
                send(Identity(each, status.start), signal.SIGKILL)

"""All laptop testbeds of this user, found by their processes: also those of a killed notebook."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from labkit.testbed.errors import BedError
from labkit.testbed.laptop.bed import down
from labkit.testbed.laptop.plan import BedPlan, Spot, usual_folder
from labkit.testbed.laptop.processes import PROC, BedProcess, end, processes
from labkit.testbed.laptop.server import all_of

CONFIG = re.compile(r" (/(?:(?! /).)*?)/servers/(h\d+)/([0-9a-f]{16})-\2(?= |$)")
"""A server's configuration in its command line; a folder may have blanks, but none before a slash."""


@dataclass(frozen=True, slots=True)
class FoundBed:
    """A laptop testbed with running processes.

    Attributes
    ----------
    folder : Path
        Its folder, which may be gone.
    token : str
        Token of its processes.
    hosts : tuple of str
        Hosts whose servers run.
    whole : bool
        Whether its plan still exists.
    """

    folder: Path
    token: str
    hosts: tuple[str, ...]
    whole: bool

    @property
    def usual(self) -> bool:
        """Whether it is the one that `labkit bed down` ends."""
        return self.folder == usual_folder().absolute()


def beds() -> list[FoundBed]:
    """Return the laptop testbeds of this user whose servers run, by folder."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for each in processes():
        for match in CONFIG.finditer(each.command) if _mine(each) else ():
            hosts.setdefault((match[1], match[3]), set()).add(match[2])
    return [
        FoundBed(Path(folder), token, tuple(sorted(names)), _is_there(Path(folder), token))
        for (folder, token), names in sorted(hosts.items())
    ]


def end_bed(found: FoundBed) -> None:
    """End a bed, or the processes of a bed whose files are gone.

    Raises
    ------
    BedError
        If something cannot be ended.
    """
    if found.whole:
        down(found.folder)
        return
    plan = BedPlan(found.folder, found.token, "sshd", tuple(Spot(name, "127.0.0.1", 0) for name in found.hosts))
    if left := end(lambda: all_of(plan)):
        raise BedError(f"these processes of the bed do not end: {', '.join(str(each.pid) for each in left)}.")


def _mine(each: BedProcess) -> bool:
    try:
        return (PROC / str(each.pid)).stat().st_uid == os.getuid()
    except OSError:
        return not PROC.exists()


def _is_there(folder: Path, token: str) -> bool:
    try:
        plan = BedPlan.read(folder)
    except BedError:
        return False
    return plan is not None and plan.token == token

"""What starts and ends the members on one host, as the controller uses it: the interface `Launcher`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from labkit.elastic.protocol.messages.launchers import StartMember
from labkit.elastic.protocol.sites import Site

Started = Callable[[str, int], None]
"""Takes name and process number of a member that was started."""
Ended = Callable[[str, int], None]
"""Takes name and exit code of a member that ended; -1: unknown, 137: the kernel killed it for its memory."""


class Launcher(Protocol):
    """Starts and ends the members on one host."""

    def start(self, order: StartMember) -> None:
        """Start a member; its start and its end are reported to callbacks. OSError if it cannot be started."""

    def kill(self, name: str) -> None:
        """Kill a member, if it is there."""

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that another controller requested; `pid` 0: it may not have been started."""

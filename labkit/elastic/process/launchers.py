"""What starts and ends the members on one host, as the controller uses it: requests and the interface `Launcher`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from labkit.elastic.protocol.commands import Role
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site

Started = Callable[[str, int], None]
"""Takes name and process number of a member that was started."""
Ended = Callable[[str, int], None]
"""Takes name and exit code of a member that ended; -1: unknown, 137: the kernel killed it for its memory."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A request to start a member.

    Attributes
    ----------
    name, role : str
        Name of the member, and "server" or "worker".
    site : Site
        Device group that is to hold it.
    gently : bool
        True while others train: it gets ready at a low priority.
    """

    name: str
    role: Role
    site: Site = NOWHERE_ELSE
    gently: bool = False

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> StartRequest:
        """Return the request that `told` encoded."""
        return cls(said["name"], said["role"], Site.read(said["site"]), said["gently"])


class Launcher(Protocol):
    """Starts and ends the members on one host."""

    def start(self, order: StartRequest) -> None:
        """Start a member; its start and its end are reported to callbacks. OSError if it cannot be started."""

    def kill(self, name: str) -> None:
        """Kill a member, if it is there."""

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that another controller requested; `pid` 0: it may not have been started."""

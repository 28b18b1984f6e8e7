"""Which process drives a run: one generation after the other, and the orders of older ones are refused.

A fence is named after a run's first name on the hosts, which all copies of the run's folder have. Who leads it sends
its generation with every order; who takes over has a higher one, and the agent forgets no generation while it counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from labkit.system.private_files import write_private
from labkit.testbed.agent.folder_layout import read_json
from labkit.testbed.agent.messages import Leader, Refusal, check_name, wall_s

FENCES: Final = "fences"
ORDERS: Final = ("start", "claim", "tell", "stop", "renew")
"""Verbs that change what runs; a client that leads a run sends its fence with each of them."""
FENCED: Final = "fenced"
"""Kind of the refusal of an older controller."""
OLD_S: Final = 40 * 86400.0
"""Seconds after which a fence that nobody uses is forgotten: longer than the longest lease."""
MOST_TEXT: Final = 200


class FencedConnection(Protocol):
    """A connection of a client."""

    @property
    def alive(self) -> bool:
        """Whether it is open."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence, as a request or the disk has it."""

    name: str
    generation: int
    token: str
    by: str = ""
    since_s: float = 0.0

    @classmethod
    def of(cls, value: object) -> Fence:
        """Return the fence of a request; Refusal if it is none."""
        values: Mapping[str, Any] = value if isinstance(value, dict) else {}
        generation, token, by = values.get("generation"), values.get("token"), values.get("by", "")
        since_s = values.get("since_s", 0.0)
        if (
            type(generation) is not int
            or not 0 < generation < 1 << 53
            or not isinstance(by, str)
            or type(since_s) not in (int, float)
        ):
            raise Refusal("argument", "a fence has a name, a generation above 0, a token, and by whom it is led")
        return cls(
            check_name(values.get("name"), "fence"), generation, check_name(token, "token"), by[:MOST_TEXT], since_s
        )


class Fences:
    """The fences of an agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FENCES
        self._known: dict[str, Fence] = {}
        self._heard: dict[str, tuple[FencedConnection, int]] = {}
        """By fence: the connection that its newest order came over, and the number of orders."""
        for path in self._folder.glob("*.json"):
            with suppress(Refusal, TypeError):
                self._known[path.stem] = Fence.of(read_json(path))

    def look(self, name: str) -> Leader:
        """Return who leads a fence, and whether that process is connected."""
        led = self._known.get(name)
        if led is None:
            return Leader()
        connection, n_orders = self._heard.get(name, (None, 0))
        there = connection is not None and connection.alive
        return Leader(led.generation, led.token, led.by, there, n_orders)

    def lead(self, fence: Fence, connection: FencedConnection) -> Leader:
        """Let a process lead a fence from now on.

        Raise Refusal if another one leads it with that generation, or a higher one; or that cannot be written down.
        """
        self.check(fence)
        known = self._known.get(fence.name)
        if known is None or known.generation < fence.generation:
            led = replace(fence, since_s=wall_s())
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_private(self._folder / f"{fence.name}.json", json.dumps(asdict(led)))
            except OSError as error:
                raise Refusal("disk", f"who drives the run could not be written down: {error.strerror}") from None
            self._known[fence.name] = led
        self.heard(fence, connection)
        return self.look(fence.name)

    def heard(self, fence: Fence, connection: FencedConnection) -> None:
        """Note an order of the process that leads a fence."""
        self._heard[fence.name] = connection, self._heard.get(fence.name, (None, 0))[1] + 1

    def check(self, fence: Fence | None) -> None:
        """Refuse what comes from a process that does not lead its fence any more.

        Raise Refusal that names the process that took it over.
        """
        if fence is None or (led := self._known.get(fence.name)) is None:
            return
        if (fence.generation, fence.token) != (led.generation, led.token) and fence.generation <= led.generation:
            raise Refusal(FENCED, led.by)

    def holds(self, fence: Fence | None) -> bool:
        """Return whether `check` would let it pass."""
        try:
            self.check(fence)
        except Refusal:
            return False
        return True

    def forget_old(self) -> None:
        """Forget fences that nobody leads any more."""
        for name, led in list(self._known.items()):
            if wall_s() - led.since_s > OLD_S and not self.look(name).there:
                del self._known[name]
                (self._folder / f"{name}.json").unlink(missing_ok=True)

"""What threads tell the one that runs the session, in order."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from labkit.core.events import Events
from labkit.testbed.run.progress import JobUpdate


@dataclass(frozen=True, slots=True)
class InboxItem:
    """What came in from a thread, at which second of the run: of a job, of a host (`up`, why), or measurements."""

    at_s: float
    update: JobUpdate | None = None
    job: int = -1
    host: str = ""
    up: bool = True
    why: str = ""
    rows: Events | None = None


class Inbox:
    """What threads have told, in order."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._more = threading.Condition()

    def put(self, heard: InboxItem) -> None:
        """Add something."""
        with self._more:
            self._items.append(heard)
            self._more.notify_all()

    def taken(self) -> list[InboxItem]:
        """Return all that has come, and forget it."""
        with self._more:
            items = list(self._items)
            self._items.clear()
            return items

    def wait(self, seconds: float) -> None:
        """Wait until there is something, or for so long."""
        with self._more:
            self._more.wait_for(lambda: bool(self._items), max(seconds, 0.0))

    def __bool__(self) -> bool:
        return bool(self._items)

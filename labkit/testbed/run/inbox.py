"""Reports of threads to the thread that runs the session, in order."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from labkit.core.events import Events
from labkit.testbed.run.progress import JobUpdate


@dataclass(frozen=True, slots=True)
class InboxItem:
    """A report at a second of the run: an update of a job, the state of a host (`up`, why), or measurements.

    Measurements of a host have its name, those of jobs have none.
    """

    at_s: float
    update: JobUpdate | None = None
    job: int = -1
    host: str = ""
    up: bool = True
    why: str = ""
    rows: Events | None = None


class Inbox:
    """A queue of reports."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._more = threading.Condition()

    def put(self, item: InboxItem) -> None:
        """Add a report."""
        with self._more:
            self._items.append(item)
            self._more.notify_all()

    def taken(self) -> list[InboxItem]:
        """Return all reports, and remove them."""
        with self._more:
            items = list(self._items)
            self._items.clear()
            return items

    def wait(self, seconds: float) -> None:
        """Wait until there is a report, at most some seconds."""
        with self._more:
            self._more.wait_for(lambda: bool(self._items), max(seconds, 0.0))

    def __bool__(self) -> bool:
        return bool(self._items)

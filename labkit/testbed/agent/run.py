"""A run: its record, its events, and callbacks for new events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from labkit.testbed.agent.events import EventFile
from labkit.testbed.agent.places import EVENTS
from labkit.testbed.agent.records import AgentRunRecord, TaskRecord
from labkit.testbed.agent.wire import Refusal

OVER: Final = "over"
"""Kind of the last event of a run."""


class AgentRun:
    """A run.

    Parameters
    ----------
    record : AgentRunRecord
        State of the run.
    folder : Path
        Folder of the record.
    log : callable
        Takes a line for the agent's log.
    """

    def __init__(self, record: AgentRunRecord, folder: Path, *, log: Callable[[str], None]) -> None:
        self.record, self.folder, self._log = record, folder, log
        self.listeners: set[Callable[[], None]] = set()
        self.events = EventFile(folder / EVENTS, written=self._written)

    @property
    def complete(self) -> bool:
        """Whether no event will follow."""
        return self.events.last_kind == OVER and not self.events.waiting

    def task(self, name: str) -> TaskRecord:
        """Return the task of that name, also one that has ended."""
        if name not in self.record.tasks:
            known = ", ".join(sorted(self.record.tasks)) or "none"
            raise Refusal("unknown_task", f"run {self.record.run!r} has no task {name!r} here; it has: {known}")
        return self.record.tasks[name]

    def _written(self) -> None:
        for listener in list(self.listeners):
            listener()

    def write(self) -> bool:
        """Write the record; return False if the disk refuses it, which undoes nothing."""
        try:
            self.record.write(self.folder)
        except OSError as error:
            self._log(f"run {self.record.run}: the state could not be written: {error.strerror}")
            return False
        return True

    def record_event(self, kind: str, **values: Any) -> None:
        """Write the record, and an event; if the agent dies between the two, the next agent writes the event."""
        self.record.saying = {"n": self.events.n + 1, "kind": kind, "told": values}
        self.write()
        self.events.add(kind, **values)

    def catch_up(self) -> None:
        """Write the event that an earlier agent could not write any more."""
        saying = self.record.saying
        if saying is not None and saying["n"] > self.events.n:
            self.events.add(saying["kind"], **saying["told"])

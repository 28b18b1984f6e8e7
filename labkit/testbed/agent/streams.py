"""Streams to clients: events of a run, lines of a file, measurements. Each waits for a client that is slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from labkit.testbed.agent.connections import ClientRequest
from labkit.testbed.agent.loop import Loop, Timer
from labkit.testbed.agent.places import EVENTS
from labkit.testbed.agent.reading import LineReader
from labkit.testbed.agent.records import Phase, TaskRecord
from labkit.testbed.agent.run import AgentRun
from labkit.testbed.agent.shapes import FileLines, HostMeasurement
from labkit.testbed.agent.wire import Refusal, pack

LOOK_S: Final = 0.1
"""Seconds between two looks at a file that a client follows."""

AHEAD: Final = 64
"""Items that are sent before the client requests more."""


class ItemStream:
    """A stream: sends items while the client takes them, and ends with a reply."""

    def __init__(self, request: ClientRequest, *, ahead: int = AHEAD) -> None:
        self.request, self._credit = request, ahead

    def more(self, n: int) -> None:
        """Note that the client has taken n items."""
        self._credit += n
        self.pump()

    @property
    def wanted(self) -> bool:
        """Whether the client takes another item now."""
        return self._credit > 0 and self.request.open and self.request.connection.has_room

    def send(self, item: bytes) -> None:
        """Send one item."""
        self._credit -= 1
        self.request.item(item)

    def pump(self) -> None:
        """Send what there is."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop."""
        raise NotImplementedError


class EventStream(ItemStream):
    """The events of a run, from a number on, until it is over."""

    def __init__(self, request: ClientRequest, run: AgentRun, *, since: int, ahead: int = AHEAD) -> None:
        super().__init__(request, ahead=ahead)
        self._run, self._last = run, since
        self._reader = LineReader(run.folder, [EVENTS], offset=0)
        run.listeners.add(self.pump)

    def pump(self) -> None:
        """Send events that are written and not sent yet."""
        while self.wanted:
            lines = self._lines()
            if lines is None:
                if self._run.complete:
                    self.request.reply({"over": self._run.record.over, "last": self._last})
                return
            if lines:
                self.send(b"[%b]" % b",".join(lines))

    def _lines(self) -> list[bytes] | None:
        """Return the next events; None if there are no more."""
        _, lines = self._reader.lines()
        if not lines:
            return None
        fresh = []
        for line in lines:
            n = json.loads(line)["n"]
            if n > self._last:
                self._last = n
                fresh.append(line)
        return fresh

    def close(self) -> None:
        """Stop."""
        self._run.listeners.discard(self.pump)
        self._reader.close()


class Follow(ItemStream):
    """The lines of a file of a task, until the task has ended and all lines are sent."""

    def __init__(
        self,
        request: ClientRequest,
        run: AgentRun,
        task: TaskRecord,
        *,
        names: list[str],
        offset: int,
        loop: Loop,
        ahead: int = AHEAD,
    ) -> None:
        super().__init__(request, ahead=ahead)
        self._run, self._task, self._loop = run, task, loop
        self._reader = LineReader(run.folder, [task.name, *names], offset=offset)
        self._timer: Timer | None = None

    def pump(self) -> None:
        """Send the lines that are there, and look again after `LOOK_S`."""
        self._pause()
        try:
            done = self._send_all()
        except (Refusal, OSError) as error:
            self.request.refuse(error if isinstance(error, Refusal) else Refusal("file", str(error)))
            return
        if done:
            self.request.reply({"offset": self._reader.offset, "how": self._now().how})
        elif self.request.open:
            self._timer = self._loop.after(LOOK_S, self.pump)

    def _now(self) -> TaskRecord:
        return self._run.record.tasks.get(self._task.name, self._task)

    def _send_all(self) -> bool:
        """Send the lines that are there; return True if no more will follow."""
        ended = self._now().phase == Phase.ENDED
        while self.wanted:
            start, lines = self._reader.lines(all_of_it=ended)
            if lines:
                texts = [line.decode(errors="surrogateescape") for line in lines]
                self.send(pack(FileLines(start, self._reader.offset, texts)).rstrip())
            elif not self._reader.more or not ended:
                return ended
        return False

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop."""
        self._pause()
        self._reader.close()


class MeasurementStream(ItemStream):
    """A measurement at an interval; those that the client does not take in time are left out, and counted."""

    def __init__(
        self,
        request: ClientRequest,
        *,
        every_s: float,
        loop: Loop,
        sample: Callable[[], HostMeasurement],
        ahead: int = AHEAD,
    ) -> None:
        super().__init__(request, ahead=ahead)
        self._every_s, self._loop, self._sample, self._n_missed = every_s, loop, sample, 0
        self._timer = loop.after(every_s, self._due)

    def _due(self) -> None:
        self._timer = self._loop.after(self._every_s, self._due)
        if self.wanted:
            self.send(pack(replace(self._sample(), n_missed=self._n_missed)).rstrip())
        else:
            self._n_missed += 1

    def pump(self) -> None:
        """Wait for the next measurement."""

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

"""One job that is measured: it is placed, and what it tells is kept with the moment at which it was heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.errors import HostError
from labkit.testbed.profiling.stage import ProfilingSession
from labkit.testbed.run.progress import JobUpdate

PATIENCE_S: Final = 90.0
"""A start or a scaling that takes longer has failed."""


@dataclass(frozen=True, slots=True)
class Step:
    """An update: when it was done on the clock of its host, and when we heard of it."""

    time_s: float
    heard_s: float


class MeasuredJob:
    """A job of a kind, on a stage.

    Attributes
    ----------
    task : str
        Its name on the hosts.
    steps : list of Step
        Its updates, from its start on.
    members : dict
        Name of each process -> (role, host, number there).
    """

    def __init__(self, stage: ProfilingSession, number: int) -> None:
        self.stage, self.number = stage, number
        self.steps: list[Step] = []
        self.members: dict[str, tuple[str, str, int]] = {}
        self._changed = threading.Condition()
        self._n_scaled = 0
        self._began = False
        self._failure, self._dropped, self._over = "", "", False
        self._deployment = stage.deployment(number, tell=self._told, hear=self._heard)
        self.task = self._deployment.task

    # --- what it tells, in threads of its deployment

    def _told(self, _: int, told: JobUpdate) -> None:
        with self._changed:
            if told.what in ("failed", "ended"):
                self._failure = told.why or "it failed"
            elif told.what == "dropped":
                self._dropped = told.why or "the scaling came to nothing"
            self._over = self._over or told.what in ("failed", "ended", "stopped", "done")
            self._changed.notify_all()

    def _heard(self, event: dict[str, Any]) -> None:
        with self._changed:
            kind = event["event"]
            if kind == "loss":
                self.steps.append(Step(float(event["time"]), time.monotonic()))
            elif kind == "started":
                self.members[event["name"]] = (event["role"], event.get("host", ""), int(event["pid"]))
            elif kind == "left":
                self.members.pop(event["name"], None)
            elif kind == "began":
                self._began = True
            elif kind == "scaled":
                self._n_scaled += 1
            self._changed.notify_all()

    # --- what is done with it

    def place(self, place: JobPlacement) -> float:
        """Let its tasks sit there; return the seconds until they train."""
        n_members = sum(sum(counts) for counts in place.values())
        with self._changed:
            n_before, started = self._n_scaled, self._began
        since = time.monotonic()
        self._deployment.want(place)
        self._wait(lambda: self._n_scaled > n_before if started else self._began, PATIENCE_S, "it does not train")
        took_s = time.monotonic() - since
        self._wait(lambda: len(self.members) == n_members, PATIENCE_S, "who is to leave does not")
        return took_s

    def more_steps(self, n: int, *, least_s: float, most_s: float) -> int:
        """Wait for so many updates more, and at least so many seconds; return how many there were.

        Raises
        ------
        HostError
            If it ends meanwhile.
        """
        begun, since = len(self.steps), time.monotonic()
        self._wait(lambda: len(self.steps) >= begun + n, most_s, "")
        self._wait(lambda: time.monotonic() - since >= least_s, max(most_s, least_s), "")
        return len(self.steps) - begun

    def stop(self) -> float:
        """Let it stop, with a checkpoint; return the seconds until it is gone, from its last update on."""
        self._deployment.want(None)
        self._wait(lambda: self._over, PATIENCE_S, "it does not stop")
        gone_s = time.monotonic()
        with self._changed:
            self._over, self._began = False, False
            self.members.clear()
        return gone_s - (self.steps[-1].heard_s if self.steps else gone_s)

    def pids(self, role: str) -> list[tuple[str, int]]:
        """Return host and number of each process of a role."""
        return [(host, pid) for its, host, pid in self.members.values() if its == role]

    def _wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something; tell `what` is wrong if it does not come, nothing where that is empty.

        Raises
        ------
        HostError
            If it fails, or it does not come.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while not done():
                self._refuse_failure()
                left = until - time.monotonic()
                if left <= 0:
                    if not what:
                        return
                    raise HostError(f"{what} after {seconds:g} s.")
                self._changed.wait(min(left, 0.05))

    def _refuse_failure(self) -> None:
        if self._failure:
            raise HostError(self._failure)
        if self._dropped:
            why, self._dropped = self._dropped, ""
            raise HostError(why)

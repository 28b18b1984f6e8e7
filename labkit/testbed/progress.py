"""How far a job on the testbed is, from the events of its elastic runtime."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

REPORT_S: Final = 1.0
"""Between two reports of a job."""

WINDOW_S: Final = 3.0
"""A speed is that of the last so many seconds."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something a scheduler should hear of a job.

    Attributes
    ----------
    what : str
        began, scaled, progressed, lost_host (those left go on), dropped (a scaling that came to nothing), unsaved (a
        checkpoint that could not be written or brought here).
    steps : float
        Updates done.
    speed : float
        Updates per second, NaN where unknown.
    loss : float
        NaN where there is none.
    why : str
        In words.
    host : str
        Where a job failed; empty: no host has a part in it.
    own : bool
        Whether a job that failed says itself that it cannot train.
    life : int
        Of which start of the job this is told.
    """

    what: str
    steps: float
    speed: float = float("nan")
    loss: float = float("nan")
    why: str = ""
    host: str = ""
    own: bool = False
    life: int = 0


@dataclass(slots=True)
class Progress:
    """Folds the events of one job, one at a time.

    How far it is, is told once a second, and when its last step is done.

    Parameters
    ----------
    n_steps : float
        Updates that it is to make.

    Attributes
    ----------
    steps : int
        Updates done.
    saved : int
        Of which so many are in a checkpoint.
    """

    steps: int = 0
    saved: int = 0
    n_steps: float = float("inf")
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _reported_s: float = float("-inf")
    _began: bool = False

    def note(self, event: Mapping[str, Any]) -> Told | None:
        """Take in an event; return what is to be told, if anything."""
        kind = event["event"]
        if kind == "loss":
            return self._stepped(float(event["time"]), int(event["version"]) + 1, float(event["loss"]))
        if kind == "began":
            return self._begun(int(event["version"]))
        if kind == "saved":
            self.saved = max(self.saved, int(event["version"]))
        elif kind == "scaled":
            self._recent.clear()
            return Told("scaled", self.steps)
        elif kind in ("dropped", "lost_host", "unsaved") and event.get("why") != "training has ended":
            return Told(kind, self.steps, why=str(event.get("why", "")))
        return None

    @property
    def speed(self) -> float:
        """Updates per second of late; NaN before there are two."""
        if len(self._recent) < 2:
            return float("nan")
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else float("nan")

    def _begun(self, version: int) -> Told | None:
        """Note that training begins, or goes on at a version after somebody died."""
        self.steps = version
        self._recent.clear()
        what, self._began = ("progressed" if self._began else "began"), True
        return Told(what, version)

    def _stepped(self, at_s: float, steps: int, loss: float) -> Told | None:
        self.steps = max(self.steps, steps)
        self._recent.append((at_s, steps))
        while at_s - self._recent[0][0] > WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        if at_s - self._reported_s < REPORT_S and self.steps < self.n_steps:
            return None
        self._reported_s = at_s
        return Told("progressed", self.steps, self.speed, loss)

"""When to decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from labkit.core.clock import next_slot_s, this_slot_s
from labkit.core.errors import InputError, unknown


@dataclass(frozen=True, slots=True)
class Cadence:
    """When a session asks its scheduler: every slot, at every event, or both.

    Make one with `every_slot` or `at_events`.

    Attributes
    ----------
    slot_s : float
        Decisions fall on multiples of this; inf: no slots.
    events : bool
        Decide when a job arrives or completes, or a machine leaves or joins.
    gap_s : float
        With `events`: decisions are at least this far apart, and what happens in between is told together.
    when_empty : bool
        Decide once more when the last job leaves, with no job there; otherwise idle time begins without a decision.
    from_s : float
        No decision falls before this; with slots alone.
    """

    slot_s: float = math.inf
    events: bool = True
    gap_s: float = 0.0
    when_empty: bool = False
    from_s: float = 0.0

    @staticmethod
    def published(name: str) -> Cadence:
        """Return when the simulator of a published system decides; `PUBLISHED` has them.

        >>> Cadence.published("pollux")
        Cadence(slot_s=60.0, events=False, gap_s=0.0, when_empty=False, from_s=60.0)

        Raises
        ------
        InputError
            If there is none of that name.
        """
        if name not in PUBLISHED:
            raise unknown("cadence", name, PUBLISHED)
        return PUBLISHED[name]

    def __post_init__(self) -> None:
        if not self.slot_s > 0:
            raise InputError(f"a slot of {self.slot_s} s; expected seconds > 0.")
        if not self.gap_s >= 0:
            raise InputError(f"a gap of {self.gap_s} s; expected seconds >= 0.")
        if math.isinf(self.slot_s) and not self.events:
            raise InputError("a cadence without slots and without events never decides; give one of them.")
        if not self.from_s >= 0 or (self.from_s and self.events):
            raise InputError(f"decisions from {self.from_s} s on; expected seconds >= 0, and slots without events.")

    def next_slot_s(self, now_s: float) -> float:
        """Return the first slot boundary after now.

        >>> every_slot(600).next_slot_s(600.0)
        1200.0
        """
        return now_s if math.isinf(now_s) else next_slot_s(now_s, self.slot_s)

    def this_slot_s(self, now_s: float) -> float:
        """Return the first slot boundary with a decision that is not before now."""
        return max(this_slot_s(now_s, self.slot_s), self.from_s)


def every_slot(slot_s: float) -> Cadence:
    """Return the cadence that decides every `slot_s` seconds, as DL2, Optimus and Gavel do."""
    return Cadence(slot_s=float(slot_s), events=False)


def run_then_decide(slot_s: float) -> Cadence:
    """Return the cadence that lets `slot_s` seconds pass before each decision, the first one too, as Pollux does."""
    return Cadence(slot_s=float(slot_s), events=False, from_s=float(slot_s))


PUBLISHED: Final[Mapping[str, Cadence]] = {
    "pollux": run_then_decide(60.0),
    "helios": every_slot(1.0),
    "synergy": every_slot(300.0),
    "blox": every_slot(300.0),
    "shockwave": every_slot(120.0),
    "sia": run_then_decide(60.0),
    "tiresias": Cadence(),
    "muri": Cadence(),
}
"""When the simulators of published systems decide."""


def at_events(*, gap_s: float = 0.0, quantum_s: float = math.inf, when_empty: bool = False) -> Cadence:
    """Return the cadence that decides when something happened, and at least every `quantum_s` seconds."""
    return Cadence(slot_s=float(quantum_s), events=True, gap_s=float(gap_s), when_empty=when_empty)

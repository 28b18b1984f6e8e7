"""When to decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.core.clock import next_slot_s, this_slot_s
from labkit.core.errors import InputError


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
    """

    slot_s: float = math.inf
    events: bool = True
    gap_s: float = 0.0
    when_empty: bool = False

    def __post_init__(self) -> None:
        if not self.slot_s > 0:
            raise InputError(f"a slot of {self.slot_s} s; expected seconds > 0.")
        if not self.gap_s >= 0:
            raise InputError(f"a gap of {self.gap_s} s; expected seconds >= 0.")
        if math.isinf(self.slot_s) and not self.events:
            raise InputError("a cadence without slots and without events never decides; give one of them.")

    def next_slot_s(self, now_s: float) -> float:
        """Return the first slot boundary after now.

        >>> every_slot(600).next_slot_s(600.0)
        1200.0
        """
        return now_s if math.isinf(now_s) else next_slot_s(now_s, self.slot_s)

    def this_slot_s(self, now_s: float) -> float:
        """Return the first slot boundary that is not before now."""
        return this_slot_s(now_s, self.slot_s)


def every_slot(slot_s: float) -> Cadence:
    """Return the cadence that decides every `slot_s` seconds, as DL2, Optimus and Gavel do."""
    return Cadence(slot_s=float(slot_s), events=False)


def at_events(*, gap_s: float = 0.0, quantum_s: float = math.inf, when_empty: bool = False) -> Cadence:
    """Return the cadence that decides when something happened, and at least every `quantum_s` seconds."""
    return Cadence(slot_s=float(quantum_s), events=True, gap_s=float(gap_s), when_empty=when_empty)

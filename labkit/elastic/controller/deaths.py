"""Limits on the deaths of a job's processes: too many within some time, without progress, end the job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.struct import Count, Number, Struct

RESTARTS: Final = 10
SHORTAGES: Final = 10
"""Processes that may run out of memory within the same time and without progress, while their limit is unchanged."""
WITHIN_S: Final = 600.0


def check_restarts(restarts: int, within_s: float) -> None:
    """Raise InputError unless `restarts` is a whole number, 0 or more, and `within_s` above 0."""
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise InputError(f"restarts is {restarts!r}; expected a whole number, 0 or more.")
    if not within_s > 0:
        raise InputError(f"restarts_within_s is {within_s!r}; expected seconds above 0.")


@dataclass(frozen=True, slots=True)
class Death(Struct):
    """The death of a process, or of all processes of a host at once."""

    what: str
    """Name of the process, and how it ended."""
    when_s: Number
    """Time, on the clock of the controller's machine."""
    furthest: Count
    """Updates that were complete until then, at most."""
    joined: bool
    """Whether the process had ever joined the job."""


class Deaths:
    """Recent deaths since which training has made no progress.

    Progress does not cancel the death of a process that had never joined; it counts until another process joins.

    Parameters
    ----------
    restarts : int
        Deaths that a job survives.
    within_s : float
        Seconds for which a death counts.
    how : str
        What the processes did, for the message.
    remedy : str
        What was exceeded, or what can be done, for the message.
    """

    def __init__(
        self, *, restarts: int = RESTARTS, within_s: float = WITHIN_S, how: str = "died", remedy: str = ""
    ) -> None:
        self._restarts, self._within_s, self._how = restarts, within_s, how
        self._remedy = remedy or f"more than restarts={restarts}."
        self._known: list[Death] = []
        self._furthest = 0

    def reached(self, step: int) -> None:
        """Note how many updates are complete."""
        self._furthest = max(self._furthest, step)

    def forgive(self) -> None:
        """Forget all deaths: their reason has been removed."""
        self._known.clear()

    def joined(self) -> None:
        """Note that a process has joined."""
        self._known = [death for death in self._known if death.joined]

    def note(self, what: str, *, now_s: float, joined: bool) -> str:
        """Note a death; return why the job must end, or an empty string if it goes on.

        Examples
        --------
        >>> deaths = Deaths(restarts=1, within_s=60)
        >>> deaths.note("ps-0 (exit code -9)", now_s=0.0, joined=True)
        ''
        >>> deaths.note("ps-1 (exit code -9)", now_s=1.0, joined=True)[:63]
        '2 processes died within 60 s without a step forward, the last o'
        """
        self._known = [death for death in self._known if self._counts(death, now_s)]
        self._known.append(Death(what, now_s, self._furthest, joined))
        n = len(self._known)
        if n <= self._restarts:
            return ""
        return (
            f"{n} process{'es' * (n > 1)} {self._how} within {self._within_s:g} s without a step forward, the last of "
            f"them {what}; {self._remedy}"
        )

    def _counts(self, death: Death, now_s: float) -> bool:
        stuck = not death.joined or death.furthest >= self._furthest
        return stuck and now_s - death.when_s < self._within_s

    def state(self) -> tuple[Death, ...]:
        """Return the state for a controller that takes over."""
        return tuple(self._known)

    def take_over(self, deaths: Iterable[Death]) -> None:
        """Restore what `state` returned."""
        self._known = list(deaths)
        self._furthest = max((death.furthest for death in self._known), default=0)


def shortages(within_s: float) -> Deaths:
    """Return a limit on processes that run out of memory, which do not count towards `restarts`.

    >>> shortages(60.0).note("ps-1", now_s=0.0, joined=True)
    ''
    """
    remedy = "give them more memory (Job.resize), or spread the blocks over more servers."
    return Deaths(restarts=SHORTAGES, within_s=within_s, how="ran out of memory", remedy=remedy)

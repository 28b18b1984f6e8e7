"""Deaths of a job's processes, and when there are too many: within a time, and without progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from labkit.core.errors import InputError

RESTARTS: Final = 10
SHORTAGES: Final = 10
"""Times that memory may run out, within the same time and without a step forward, while its limit stays as it is."""
WITHIN_S: Final = 600.0


def check_restarts(restarts: int, within_s: float) -> None:
    """Raise InputError unless a job can be given up after more than so many deaths within so many seconds."""
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise InputError(f"restarts is {restarts!r}; expected a whole number, 0 or more.")
    if not within_s > 0:
        raise InputError(f"restarts_within_s is {within_s!r}; expected seconds above 0.")


@dataclass(frozen=True, slots=True)
class Death:
    """A process that died, or all of a host at once.

    Attributes
    ----------
    what : str
        Its name and how it ended.
    when_s : float
        On the clock of the controller's machine.
    furthest : int
        Updates that were complete until then, at the most.
    joined : bool
        Whether it had ever joined the job.
    """

    what: str
    when_s: float
    furthest: int
    joined: bool


class Deaths:
    """Those that count: not long ago, and training has not got further since.

    The death of a process that had never joined says nothing about training, and training nothing about it: it counts
    until another process joins.

    Parameters
    ----------
    restarts : int
        Deaths that a job outlives.
    within_s : float
        Seconds for which a death counts.
    how : str
        What they did, for the message.
    remedy : str
        What is more than the limit, and what could be done.
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
        """Forget them all: what they died of was changed."""
        self._known.clear()

    def joined(self) -> None:
        """Note that a process has joined."""
        self._known = [death for death in self._known if death.joined]

    def note(self, what: str, *, now_s: float, joined: bool) -> str:
        """Note a death; return why the job is to be given up, if it is.

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

    def state(self) -> list[list[Any]]:
        """Return what the next controller must know, as JSON has it."""
        return [list(astuple(death)) for death in self._known]

    def take_over(self, rows: Iterable[Sequence[Any]]) -> None:
        """Go on where another controller was."""
        self._known = [Death(*row) for row in rows]
        self._furthest = max((death.furthest for death in self._known), default=0)


def shortages(within_s: float) -> Deaths:
    """Return the count of processes that ran out of memory: no crashes, and they need no restarts of the user's.

    >>> shortages(60.0).note("ps-1", now_s=0.0, joined=True)
    ''
    """
    remedy = "give them more memory (Job.resize), or spread the blocks over more servers."
    return Deaths(restarts=SHORTAGES, within_s=within_s, how="ran out of memory", remedy=remedy)

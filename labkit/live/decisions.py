"""What was decided about jobs lately, and why, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.placement import Repair

MOST: Final = 200
"""Entries that are kept."""
NAMED_MACHINES: Final = 4
"""Machines that an entry names; of more, it tells the number."""

_PHRASES: Final = {
    Kind.PREEMPTED: "loses its tasks",
    Kind.FAILED: "failed, and waits",
    Kind.DROPPED: "is given up",
    Kind.RELAXED: "has a goal that is given up",
    Kind.FELL_BACK: "the fallback decided",
    Kind.LEFT: "is gone",
    Kind.JOINED: "is there",
}
_SHOWN: Final = np.isin(np.arange(max(Kind) + 1), [*_PHRASES, Kind.PLACED, Kind.REPAIRED, Kind.EXPLAINED])


@dataclass(slots=True)
class LoggedDecision:
    """One change of a job or a machine."""

    time_s: float
    """When."""
    about: str
    """"job 3", or the name of a machine."""
    what: str
    """What became of it; empty where only a reason was told."""
    why: str = ""
    """The scheduler's reason; empty where it tells none."""

    def line(self) -> str:
        """Return it as a sentence."""
        text = ": ".join(filter(None, (self.what, self.why)))
        return f"{when(self.time_s)}: {self.about}: {text}"


def when(time_s: float) -> str:
    """Return a moment of a run: in seconds within its first hour, then as a clock shows it.

    >>> when(83.42), when(42_440.7), when(90_061.0)
    ('83.4 s', '11:47:20', '25:01:01')
    """
    if time_s < 3600:
        return f"{time_s:.1f} s"
    return f"{time_s // 3600:.0f}:{time_s % 3600 // 60:02.0f}:{time_s % 60 // 1:02.0f}"


class DecisionLog:
    """The newest decisions of a run.

    Parameters
    ----------
    jobs : Jobs
        Of the run.
    cluster : Cluster
        It runs on.
    reasons : sequence of str
        Texts that events name by number; may grow.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster, *, reasons: Sequence[str]) -> None:
        self.reasons = reasons
        self.entries: deque[LoggedDecision] = deque(maxlen=MOST)
        """The newest last."""
        self.n = 0
        """How many there were."""
        self._jobs, self._cluster = jobs, cluster

    def fold(self, rows: Events) -> None:
        """Take note of events; of a large batch, of the newest alone."""
        rows = rows[_SHOWN[rows["kind"]]]
        firsts = _begins(rows)
        self.n += max(0, len(firsts) - MOST)
        for part in np.split(rows, firsts[1:])[-MOST:] if len(rows) else ():
            self._add(part)

    def _add(self, part: Events) -> None:
        first = part[0]
        kind, time_s = Kind(int(first["kind"])), float(first["time_s"])
        if kind == Kind.EXPLAINED:
            self._explain(time_s, self._about(first), self._text(int(first["value"])))
            return
        self.n += 1
        what = self._placed(part) if kind == Kind.PLACED else self._what(kind, first)
        self.entries.append(LoggedDecision(time_s, self._about(first), what))

    def _about(self, row: Any) -> str:
        if row["job"] >= 0:
            return f"job {self._jobs.id[row['job']]}"
        return str(self._cluster.machines[row["machine"]]) if row["machine"] >= 0 else "all jobs"

    def _what(self, kind: Kind, row: Any) -> str:
        if kind != Kind.REPAIRED:
            return _PHRASES[kind]
        if row["value"] == Repair.BALANCE:
            return "its servers' blocks are spread anew"
        return f"its {_role(int(row['role']), 1)} {row['task']} is replaced"

    def _text(self, number: int) -> str:
        return self.reasons[number] if 0 <= number < len(self.reasons) else ""

    def _explain(self, time_s: float, about: str, why: str) -> None:
        """Put a reason beside what was done at its moment; alone where nothing was."""
        for entry in reversed(self.entries):
            if entry.time_s != time_s:
                break
            if entry.about == about and not entry.why:
                entry.why = why
                return
        self.n += 1
        self.entries.append(LoggedDecision(time_s, about, "", why))

    def _placed(self, part: Events) -> str:
        tasks = [(role, int(part["value"][part["role"] == role].sum())) for role in (Role.WORKER, Role.PS)]
        counts = ", ".join(f"{n} {_role(role, n)}" for role, n in tasks if n)
        cores = part["cpus"][np.isfinite(part["cpus"])]
        each = f" with {_span(cores)} cores each" if len(cores) else ""
        places = dict.fromkeys(self._cluster.machines[self._cluster.group_machine[g]] for g in part["group"].tolist())
        on = ", ".join(places) if len(places) <= NAMED_MACHINES else f"{len(places)} machines"
        return f"{counts}{each} on {on}"


def _begins(rows: Events) -> Any:
    """Return where a new entry begins: the PLACED rows of a job at a moment are one."""
    if not len(rows):
        return np.empty(0, np.intp)
    goes_on = rows["kind"][1:] == Kind.PLACED
    for name in ("kind", "job", "time_s"):
        goes_on &= rows[name][1:] == rows[name][:-1]
    return np.concatenate([[0], np.flatnonzero(~goes_on) + 1])


def _role(role: int, n: int) -> str:
    return "PS" if role == Role.PS else f"worker{'' if n == 1 else 's'}"


def _span(values: Any) -> str:
    least, most = float(values.min()), float(values.max())
    return f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"

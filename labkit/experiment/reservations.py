"""Reservations: hosts that are kept for some jobs, or for none, from a start to an end, whatever the scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, unknown
from labkit.core.files import read_table
from labkit.core.host_names import listed
from labkit.core.jobs import Jobs
from labkit.core.life import Hold
from labkit.core.resources import Bools
from labkit.core.text import shortened

DAY_S: Final = 86400.0
DAYS_AHEAD: Final = 400
"""Days of a daily reservation that schedulers which plan ahead are told of."""
RUNNING: Final = {
    "preempt": "jobs of others there are preempted at its start",
    "finish": "jobs of others there continue",
}
"""What becomes of the jobs of others that run on the hosts when a reservation starts."""
EXPECTED: Final = (
    'expected a TOML file with a table for each: [reservation.night], hosts = "gpu[01-02]", start_s = 3600, '
    'end_s = 7200, users = ["vision"]'
)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Hosts that only some jobs may use from a start to an end, as `scontrol create reservation` makes them [1]_.

    Raise InputError if a value makes no sense.

    References
    ----------
    .. [1] https://slurm.schedmd.com/reservations.html
    """

    name: str
    """What jobs call it that belong to it."""
    hosts: tuple[str, ...] | int
    """Names of machines, or how many: the last ones of the cluster, as most placers begin with the first."""
    start_s: float = 0.0
    end_s: float = math.inf
    """`start_s` and `end_s`: seconds since the run began; inf: it has no end."""
    users: tuple[str, ...] = ()
    """Whose jobs may use it without belonging to it; empty: only jobs that belong to it, or none (maintenance)."""
    device_type: str = ""
    """Where `hosts` is a number: of which device type they are; "": of any."""
    daily: bool = False
    """It holds again each day, for ever."""
    running: str = "preempt"
    """"preempt": jobs of others that run there at its start are preempted; "finish": they go on until they are done."""
    known_s: float = 0.0
    """Seconds since the run began from which on schedulers that plan ahead know of it."""

    def __post_init__(self) -> None:
        what = f"reservation {shortened(self.name)}"
        if not self.hosts or (isinstance(self.hosts, int) and self.hosts < 1):
            raise InputError(f"{what} has no hosts; expected names, ranges such as gpu[01-04], or a number of hosts.")
        if not 0 <= self.start_s < math.inf:
            raise InputError(f"{what} starts at {self.start_s} s; expected seconds >= 0 since the run's beginning.")
        if not self.end_s > self.start_s:
            raise InputError(
                f"{what} ends at {self.end_s:g} s, and starts at {self.start_s:g} s; expected a later end."
            )
        if self.daily and not self.end_s - self.start_s < DAY_S:
            raise InputError(
                f"{what} is daily and lasts {self.end_s - self.start_s:g} s; expected an end_s less than a day later."
            )
        if self.running not in RUNNING:
            raise unknown(f"running of {what}", self.running, RUNNING)
        if self.device_type and not isinstance(self.hosts, int):
            raise InputError(
                f"{what} names its hosts and a device_type; give a number of hosts of that type, or names."
            )

    @property
    def for_ever(self) -> bool:
        """Return whether it never ends for good."""
        return self.daily or math.isinf(self.end_s)

    def holds(self, now_s: float) -> bool:
        """Return whether it holds at a moment: from its start on, and before its end.

        >>> night = Reservation("night", ("a",), start_s=100, end_s=200, daily=True)
        >>> [night.holds(t) for t in (99, 100, 199, 200, 86500, 86600)]
        [False, True, True, False, True, False]
        """
        return any(self.start_s + s <= now_s < self.end_s + s for s in self._shifts(now_s))

    def over(self, now_s: float) -> bool:
        """Return whether it will never hold again."""
        return not self.for_ever and now_s >= self.end_s

    def next_turn_s(self, now_s: float) -> float:
        """Return the next moment after now at which it starts or ends; inf: never."""
        turns = [edge + s for s in self._shifts(now_s) for edge in (self.start_s, self.end_s)]
        return min((turn for turn in turns if turn > now_s), default=math.inf)

    def meets(self, other: Reservation) -> bool:
        """Return whether both ever hold at the same moment."""
        return self._starts_within(other) or other._starts_within(self)

    def _starts_within(self, other: Reservation) -> bool:
        days = math.ceil((other.start_s - self.start_s) / DAY_S) if self.daily else 0
        return other.holds(self.start_s + max(days, 0) * DAY_S)

    def _shifts(self, now_s: float) -> Iterator[float]:
        """Yield the seconds by which its start and end may be shifted to be near a moment."""
        day = math.floor((now_s - self.start_s) / DAY_S) if self.daily else 0
        return (k * DAY_S for k in (range(max(day - 1, 0), max(day, 0) + 2) if self.daily else (0,)))

    def machines(self, cluster: Cluster) -> Bools:
        """Return which machines of a cluster it holds, (M,).

        Raise InputError if the cluster has no such hosts, or too few.
        """
        if isinstance(self.hosts, int):
            return self._last(self.hosts, cluster)
        known = set(cluster.machines)
        for host in self.hosts:
            if host not in known:
                shown = list(cluster.machines)[:20]
                raise unknown(f"host of reservation {self.name}", host, shown if len(known) > 20 else known)
        return np.isin(np.array(cluster.machines), self.hosts)

    def _last(self, n: int, cluster: Cluster) -> Bools:
        """Return the last n machines, of its device type if it has one."""
        if self.device_type and self.device_type not in cluster.device_types:
            raise unknown(f"device_type of reservation {self.name}", self.device_type, cluster.device_types)
        kinds = np.array(cluster.device_types)[cluster.group_type]
        fits = (kinds == self.device_type) if self.device_type else cluster.capacity[:, 0] > 0
        found = np.unique(cluster.group_machine[fits & (cluster.capacity[:, 0] > 0)])
        if len(found) < n:
            raise InputError(
                f"reservation {self.name} wants {n} hosts{f' of type {self.device_type}' if self.device_type else ''}; "
                f"{cluster.name} has {len(found)}."
            )
        return np.isin(np.arange(cluster.n_machines), found[-n:])

    def __str__(self) -> str:
        n_of = f"the last {self.hosts}" if isinstance(self.hosts, int) else shortened(",".join(self.hosts), most=40)
        kind = f" with {self.device_type}" if self.device_type else ""
        end = "on" if math.isinf(self.end_s) else f"to {self.end_s:g} s"
        who = f" for {', '.join(self.users)}" if self.users else ""
        return f"{self.name}: {n_of}{kind} from {self.start_s:g} s {end}{' daily' * self.daily}{who}"


@dataclass(frozen=True, slots=True)
class Reservations:
    """Some reservations, of which no two hold the same host at the same moment.

    Raise InputError if there are none, or two have the same name.

    Examples
    --------
    >>> print(Reservations.of({"night": {"hosts": "gpu[01-02]", "start_s": 3600, "end_s": 7200, "users": "vision"}}))
    night: gpu01,gpu02 from 3600 s to 7200 s for vision
    """

    each: tuple[Reservation, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.each:
            raise InputError(f"there are no reservations; {EXPECTED}.")
        names = [one.name for one in self.each]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two reservations are called {twice}; give each a name of its own.")

    @classmethod
    def of(cls, source: Reservations | Sequence[Reservation] | Mapping[str, Mapping[str, Any]] | str | Path) -> Self:
        """Return reservations of a list, of a mapping by name, or of a TOML file with tables [reservation.NAME].

        Raise InputError if it is none of them.
        """
        if isinstance(source, Reservations):
            return cls(source.each)
        if isinstance(source, str | Path):
            source = read_table(Path(source), key="reservation", what="reservations", expected=EXPECTED)
        if isinstance(source, Mapping):
            return cls(tuple(_reservation_of(name, table) for name, table in source.items()))
        if odd := next((one for one in source if not isinstance(one, Reservation)), None):
            raise InputError(
                f"reservations has {shortened(repr(odd))}; expected Reservation(name, hosts, ...), a mapping by name, "
                "or a TOML file."
            )
        return cls(tuple(source))

    def machines(self, cluster: Cluster) -> Bools:
        """Return which machines each holds, (R, M).

        Raise InputError as `Reservation.machines`, or if two hold the same machine at the same moment.
        """
        held = np.array([one.machines(cluster) for one in self.each])
        for a, b in combinations(range(len(self.each)), 2):
            both = np.flatnonzero(held[a] & held[b])
            if len(both) and self.each[a].meets(self.each[b]):
                raise InputError(
                    f"reservations {self.each[a].name} and {self.each[b].name} both hold host "
                    f"{cluster.machines[both[0]]} at a time; give them other hosts, or other times."
                )
        return held

    def holds(self, jobs: Jobs, cluster: Cluster) -> tuple[Hold, ...]:
        """Return the holds on machines, each day of a daily one by itself."""
        found = []
        for one, machines in zip(self.each, self.machines(cluster), strict=True):
            theirs = np.isin(jobs.user, [jobs.users.index(user) for user in one.users if user in jobs.users])
            own = jobs.reservation == one.name
            may = own | (theirs & (jobs.reservation == ""))
            for day in range(DAYS_AHEAD if one.daily else 1):
                start_s, end_s = one.start_s + day * DAY_S, one.end_s + day * DAY_S
                found.append(
                    Hold(machines=machines, may=may, own=own, known_s=one.known_s, start_s=start_s, end_s=end_s)
                )
        return tuple(found)

    def next_turn_s(self, now_s: float) -> float:
        """Return the next moment after now at which one starts or ends; inf: never."""
        return min(one.next_turn_s(now_s) for one in self.each)

    def __len__(self) -> int:
        return len(self.each)

    def __str__(self) -> str:
        return "; ".join(map(str, self.each))


def unmet(jobs: Jobs, reservations: Reservations | None) -> list[str]:
    """Return a sentence if jobs belong to reservations that a run does not have."""
    known = [] if reservations is None else [one.name for one in reservations.each]
    names = [name for name in jobs.reservation if name and name not in known]
    if not names:
        return []
    told = shortened(", ".join(dict.fromkeys(names)), most=60)
    return [
        f"jobs that belong to a reservation which the run does not have: {len(names):,} ({told}); they run like any "
        "other. --reservations FILE gives some."
    ]


def _reservation_of(name: str, table: Any) -> Reservation:
    """Return the reservation of a table."""
    if not isinstance(table, Mapping):
        raise InputError(f"reservation {name} is {shortened(repr(table))}; {EXPECTED}.")
    known = {f.name: f for f in fields(Reservation) if f.name != "name"}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise unknown(f"key of reservation {name}", str(key), known)
        values[key] = _value(name, key, value)
    return Reservation(name, **({"hosts": ()} | values))


def _value(name: str, key: str, value: Any) -> Any:
    """Return the value of a key as a reservation has it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    texts = (value,) if isinstance(value, str) else value
    some_texts = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    expected = "names, or how many hosts" if key == "hosts" else "names"
    if key == "hosts" and (some_texts or (number and isinstance(value, int))):
        return value if number else tuple(dict.fromkeys(one for text in texts for one in listed(text)))
    if key == "users" and some_texts:
        return tuple(one.strip() for text in texts for one in text.split(",") if one.strip())
    if key in ("start_s", "end_s", "known_s"):
        expected = "seconds since the run's beginning"
        if number and not math.isnan(value):
            return float(value)
    if key == "daily":
        expected = "true or false"
        if isinstance(value, bool):
            return value
    if key in ("device_type", "running") and isinstance(value, str):
        return value
    raise InputError(f"{key} of reservation {name} is {shortened(repr(value))}; expected {expected}.")

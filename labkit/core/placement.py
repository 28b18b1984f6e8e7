"""From counts to device groups: the gangs a scheduler wants, and the placement that a backend applies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from math import inf
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.errors import PlacementError
from labkit.core.resources import Amounts, Bools, Ints
from labkit.core.text import shortened

_NONE: Final[Ints] = np.empty(0, np.int32)
_NEVER: Final[Bools] = np.empty(0, np.bool_)
_NO_ROLE: Final = np.empty(0, np.int8)
_DECLARED: Final[Amounts] = np.empty(0, np.float32)

REPAIR: Final = np.dtype([("job", np.int32), ("role", np.int8), ("task", np.int32), ("kind", np.int8)])
"""One repair of a job that holds tasks: of which task of a role (-1: of all), and what is done (`Repair`)."""
Repairs = NDArray[Any]
"""A structured array of dtype `REPAIR`."""


class Repair(IntEnum):
    """What can be done about the tasks of a job where they are."""

    REPLACE = 0
    """Another process takes the place of one task, on the same host and with the same amounts."""
    BALANCE = 1
    """The blocks of all parameter servers (role PS, task -1) are spread anew by their measured load."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a decision changes a job, in words; `speed`: the steps/s that are predicted of it, NaN: none."""

    job: int
    text: str
    speed: float = np.nan


def repairs_of(rows: Iterable[tuple[int, int, int, int]]) -> Repairs:
    """Return repairs, each a job, a role, a task and a `Repair`.

    >>> repairs_of([(3, 1, 0, Repair.REPLACE), (4, 1, -1, Repair.BALANCE)])["job"].tolist()
    [3, 4]
    """
    return np.array([tuple(int(number) for number in row) for row in rows], REPAIR)


_NO_REPAIRS: Final[Repairs] = repairs_of(())


@dataclass(frozen=True, eq=False, slots=True)
class Gangs:
    """How many tasks each job should get: an allocation, in order of preference.

    Attributes
    ----------
    job : array
        (C,) job numbers, the most urgent first.
    n_workers, n_ps : array
        (C,) tasks of each role.
    device_type : array
        (C,) the device type that the gang must have; -1: any.
    shrinks : array of bool
        (C,) which gangs may be given fewer workers and PSs where they do not fit, in about the same ratio; empty: none.
        A rigid job's gang never may.
    partner : array
        (C,) a job that shares the GPUs of this gang, or -1; empty: no job shares. The partner gets as many workers, in
        the same places, and the PSs that it asked for; it has no row of its own. A pair does not shrink.
    """

    job: Ints
    n_workers: Ints
    n_ps: Ints
    device_type: Ints
    shrinks: Bools = field(default_factory=lambda: _NEVER)
    partner: Ints = field(default_factory=lambda: _NONE)

    @classmethod
    def of(
        cls,
        job: ArrayLike,
        *,
        n_workers: ArrayLike,
        n_ps: ArrayLike = 0,
        device_type: ArrayLike = -1,
        shrinks: ArrayLike = False,
        partner: ArrayLike | None = None,
    ) -> Self:
        """Return gangs from columns or scalars.

        Raises
        ------
        PlacementError
            If a column holds something else than whole numbers, or numbers of tasks < 0, or is of another length.
        """
        jobs = np.atleast_1d(np.asarray(job, np.int32))
        n = len(jobs)
        mates = _NONE if partner is None else _column("Gangs.of: partner", partner, n)
        may_shrink = np.full(n, shrinks, np.bool_)
        workers = _column("Gangs.of: n_workers", n_workers, n, least=0)
        servers = _column("Gangs.of: n_ps", n_ps, n, least=0)
        return cls(jobs, workers, servers, _column("Gangs.of: device_type", device_type, n), may_shrink, mates)

    @property
    def named(self) -> Ints:
        """All jobs that get tasks here: `job`, and then those that share with one of them."""
        return np.concatenate([self.job, self.partner[self.partner >= 0]]) if len(self.partner) else self.job

    def take(self, order: Ints) -> Self:
        """Return the gangs at some positions, in that order."""
        columns = (self.job[order], self.n_workers[order], self.n_ps[order], self.device_type[order])
        shrinks = self.shrinks[order] if len(self.shrinks) else _NEVER
        return type(self)(*columns, shrinks, self.partner[order] if len(self.partner) else _NONE)

    def may_shrink(self) -> Bools:
        """Return which gangs may be given fewer tasks, (C,), also where `shrinks` is empty."""
        return self.shrinks if len(self.shrinks) else np.zeros(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """What a decision changes: the jobs in `set_jobs` get exactly the tasks listed for them, all others keep theirs.

    A job in `set_jobs` without tasks is stopped. `Placement.nothing()` changes nothing.

    Attributes
    ----------
    set_jobs : array
        (C,) numbers of the jobs whose gang this placement sets, each once.
    job, role, group, count : array
        (P,) how many tasks of a role of a job sit in a device group. Rows of a job are next to each other; a role may
        have several in one group.
    partner : array
        (C,) the job with which each of `set_jobs` shares its GPUs, or -1; empty: no job shares. Both are set, each
        names the other, and their workers sit in the same places.
    relaxed : array
        Jobs of which a goal is given up with this decision, such as an SLO that cannot be met: an event tells it.
    doubts : array
        Why a fallback decided this in the place of a scheduler (`labkit.core.events.Doubt`): an event tells it; empty:
        none did.
    missing : array
        (C,) tasks that each of `set_jobs` was to have and did not get, because there was no room for its whole gang: an
        event tells it; empty: none.
    cpus, memory_gb : array
        (P,) cores and GB of each task of a row; NaN: as declared; empty: all as declared. A job that runs, and has the
        same tasks in the same places with other amounts, goes on without a restart.
    devices : array
        (P,) the GPUs of the group on which the tasks of a row sit, as bits, in runs where tasks take parts of GPUs
        (`labkit.core.devices`); -1, or empty: those that fit best.
    repairs : array
        Of dtype `REPAIR` (`repairs_of` makes one): what is to be done about tasks where they are. A job that is
        repaired need not be among `set_jobs`; one that is in both is placed first, and its tasks are those it holds
        then, numbered within the role from 0 in the order of its rows.
    reasons : tuple of Reason
        Why this decision changes a job, in words, one for each job or several; empty: not told.
    again_s : float
        Where decisions fall at events: decide again by this moment, in seconds since the run began, although nothing
        happens; inf: at the next event.
    declined : array
        Numbers of active jobs that are refused for good: an event tells that each was given up (DROPPED, cause
        DECLINED), and it has no JCT. One that holds tasks gives them back; none of them may be among `set_jobs`.
    """

    set_jobs: Ints
    job: Ints
    role: NDArray[np.int8]
    group: Ints
    count: Ints
    partner: Ints = field(default_factory=lambda: _NONE)
    relaxed: Ints = field(default_factory=lambda: _NONE)
    missing: Ints = field(default_factory=lambda: _NONE)
    cpus: Amounts = field(default_factory=lambda: _DECLARED)
    memory_gb: Amounts = field(default_factory=lambda: _DECLARED)
    doubts: Ints = field(default_factory=lambda: _NONE)
    repairs: Repairs = field(default_factory=lambda: _NO_REPAIRS)
    reasons: tuple[Reason, ...] = ()
    devices: Ints = field(default_factory=lambda: _NONE)
    again_s: float = inf
    declined: Ints = field(default_factory=lambda: _NONE)

    @classmethod
    def nothing(cls) -> Self:
        """Return the placement that changes nothing."""
        return cls(_NONE, _NONE, _NO_ROLE, _NONE, _NONE, _NONE, _NONE, _NONE, _DECLARED, _DECLARED)

    @classmethod
    def of(
        cls,
        set_jobs: ArrayLike,
        *,
        job: ArrayLike = (),
        role: ArrayLike = 0,
        group: ArrayLike = (),
        count: ArrayLike = 1,
        partner: ArrayLike | None = None,
        cpus: ArrayLike | None = None,
        memory_gb: ArrayLike | None = None,
        repairs: Repairs | None = None,
        reasons: Iterable[Reason] = (),
        declined: ArrayLike = (),
    ) -> Self:
        """Return a placement from columns or scalars.

        Raises
        ------
        PlacementError
            If `set_jobs`, `job` or `declined` is no list of job numbers, such as a list of tuples, or another column
            holds something else than whole numbers, or is of another length.
        """
        rows, named = _job_numbers("job", job), _job_numbers("set_jobs", set_jobs)
        return cls(
            named,
            rows,
            _column("Placement.of: role", role, len(rows)).astype(np.int8),
            _column("Placement.of: group", group, len(rows)),
            _column("Placement.of: count", count, len(rows)),
            _NONE if partner is None else _column("Placement.of: partner", partner, len(named)),
            cpus=_amounts(cpus, len(rows)),
            memory_gb=_amounts(memory_gb, len(rows)),
            repairs=_NO_REPAIRS if repairs is None else repairs,
            reasons=tuple(reasons),
            declined=_job_numbers("declined", declined),
        )

    @classmethod
    def joined(cls, parts: Iterable[Placement]) -> Self:
        """Return the placement that does what several do, each of which sets other jobs: all reasons, the first wish.

        >>> one, other = Placement.of([0], job=[0], group=3), Placement.of([2])
        >>> Placement.joined([one, other]).set_jobs.tolist()
        [0, 2]
        """
        given, nothing = list(parts), cls.nothing()
        columns = {
            f.name: [getattr(nothing, f.name), *(getattr(p, f.name) for p in given)]
            for f in fields(cls)
            if f.name not in ("reasons", "again_s")
        }
        for name, none, of in _OPTIONAL:
            if any(map(len, columns[name])):
                columns[name][1:] = [
                    mine if len(mine) else np.full(len(getattr(part, of)), none, mine.dtype)
                    for part, mine in zip(given, columns[name][1:], strict=True)
                ]
        joined = {name: np.concatenate(column) for name, column in columns.items()}
        reasons = tuple(reason for part in given for reason in part.reasons)
        again_s = min((part.again_s for part in given), default=inf)
        return cls(**{**joined, "role": joined["role"].astype(np.int8)}, reasons=reasons, again_s=again_s)

    def only(self, *, rows: Bools, jobs: Bools) -> Self:
        """Return some rows, (P,), and some of the jobs that it sets, (C,)."""
        masks = dict.fromkeys(("job", "role", "group", "count"), rows) | {"set_jobs": jobs}
        masks |= {name: rows if of == "job" else jobs for name, _, of in _OPTIONAL}
        columns = ((name, mask, getattr(self, name)) for name, mask in masks.items())
        return replace(self, **{name: column[mask] for name, mask, column in columns if len(column)})

    def __len__(self) -> int:
        return len(self.job)


_OPTIONAL: Final = (
    ("partner", -1, "set_jobs"),
    ("missing", 0, "set_jobs"),
    ("cpus", np.nan, "job"),
    ("memory_gb", np.nan, "job"),
    ("devices", -1, "job"),
)
"""Columns of a placement that may be empty, what that stands for, and which column is as long."""


def _job_numbers(name: str, values: ArrayLike) -> Ints:
    """Return job numbers as an array.

    >>> _job_numbers("set_jobs", [3, 4]).tolist(), _job_numbers("set_jobs", 3).tolist()
    ([3, 4], [3])
    """
    try:
        found = np.ascontiguousarray(values, np.int32)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or found.ndim > 1:
        raise PlacementError(
            f"Placement.of: {name} is {shortened(repr(values), most=60)}; expected numbers of jobs, with a column for "
            "each other thing: Placement.of([3, 4], job=[3, 4], role=0, group=[0, 1], count=[2, 1]) gives job 3 two "
            "workers in group 0, and job 4 one in group 1."
        )
    return found


def _amounts(values: ArrayLike | None, n: int) -> Amounts:
    if values is None:
        return _DECLARED
    return np.array(np.broadcast_to(np.asarray(values, np.float32), (n,)))


def _column(key: str, values: ArrayLike, n: int, *, least: int = -1) -> Ints:
    """Return whole numbers of n rows from a column, or from one for all; below `least`, if it is not -1, is refused."""
    given = np.asarray(values)
    if given.shape not in ((), (1,), (n,)):
        raise PlacementError(f"{key} has the shape {given.shape} for {n} rows; give one for each, or one for all.")
    if given.dtype.kind not in "iub":
        whole = given.dtype.kind == "f" and (given == np.round(given)).all() and (abs(given) < 2**31).all()
        if not whole and given.size:
            odd = given if given.dtype.kind != "f" else given[~(given == np.round(given))]
            raise PlacementError(
                f"{key} is {shortened(repr(odd.ravel()[:1].tolist()), most=60)}; expected whole numbers."
            )
    if least >= 0 and given.size and given.min() < least:
        raise PlacementError(f"{key} is {given.min()}; expected numbers >= {least}.")
    return given.astype(np.int32) if given.shape == (n,) else np.full(n, given.astype(np.int32))

"""Room for whole gangs on machines that a scheduler chooses by itself: neighbours first, as batch systems do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from labkit.core.devices import NEAR
from labkit.core.placement import Placement
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import rooms
from labkit.core.snapshot import Snapshot

NOT_BARRED: Bools = np.empty(0, np.bool_)


class Seat(NamedTuple):
    """Where a gang sits: device groups, roles (0: worker), how many tasks, and sets of GPUs (-1: not told), (P,)."""

    group: Ints
    role: Ints
    n: Ints
    devices: Ints


class GangRoom:
    """Finds seats for gangs on machines, in any state of what is free.

    A gang that names a number of machines sits on so many, spread evenly; any other on one machine if that holds it,
    else on those with most room. Of machines with room, the shortest run of neighbours that suffices is taken, and of
    equal ones the first; the order is the cluster's.

    Parameters
    ----------
    snapshot : Snapshot
        Jobs, machines, and which of them jobs may have.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._table, self._cluster = snapshot.table, snapshot.cluster
        self._runs_on, self._demand = snapshot.runs_on, snapshot.demand
        self._of = snapshot.cluster.group_machine
        self._up: Bools = snapshot.up[self._of]
        self._hosting = snapshot.hosting
        self._first = np.searchsorted(self._of, np.arange(snapshot.cluster.n_machines + 1))

    def groups(self, job: int) -> Bools:
        """Return the device groups that may host the workers of a job, (G,)."""
        open_: Bools = self._up if self._hosting is None else self._up & self._hosting.open[self._hosting.row[job]]
        if self._demand[0, job, GPUS] > 0:
            open_ = open_ & self._runs_on[job, self._cluster.group_type]
        return open_

    def machines(self, job: int) -> Bools:
        """Return the machines that may host the workers of a job, (M,)."""
        return self._cluster.machines_of(self.groups(job))

    def n_machines(self, job: int) -> int:
        """Return on how many machines a gang sits; 0: on any number."""
        return 0 if self._hosting is None else max(int(self._hosting.spread[job]), 0)

    def alike(self, job: int) -> tuple[object, ...]:
        """Return the key of a gang's room: equal for jobs that fit wherever one of them does."""
        rules = self._hosting
        row = (-1, 0) if rules is None else (int(rules.row[job]), int(rules.zone[job]))
        gang = int(self._table.n_workers[job]), int(self._table.n_ps[job]), self.n_machines(job)
        return row, self._runs_on[job].tobytes(), self._demand[:, job].tobytes(), *gang

    @property
    def n_all(self) -> int:
        """How many machines the cluster has."""
        return self._cluster.n_machines

    def find(self, job: int, free: Floats, *, barred: Bools = NOT_BARRED, k: int | None = None) -> Seat | None:
        """Return where a gang finds room in what is free, (G, R + D), off some machines, (M,); None: nowhere.

        It sits on k machines, by default on as many as it names.
        """
        open_ = self.groups(job)
        if len(barred):
            open_ = open_ & ~barred[self._of]
        if (rules := self._hosting) is None or not (level := rules.zone[job]):
            return self._within(open_, job, free, barred=barred, k=k)
        zones = rules.zones[level - 1]
        seats = (self._within(open_ & (zones == z), job, free, barred=barred, k=k) for z in range(zones.max() + 1))
        return next((seat for seat in seats if seat is not None), None)

    def _within(self, open_: Bools, job: int, free: Floats, *, barred: Bools, k: int | None) -> Seat | None:
        """Return where a gang finds room on open device groups (G,)."""
        n, k = int(self._table.n_workers[job]), self.n_machines(job) if k is None else k
        by_group: Ints = np.where(open_, rooms(free, self._demand[0, job]), 0).clip(max=n)
        chosen = self._chosen(self._summed(by_group), n, k)
        return None if chosen is None else self._seat(job, free, chosen, by_group, barred)

    def _summed(self, by_group: Ints) -> Ints:
        return np.bincount(self._of, by_group, self._cluster.n_machines).astype(np.int64)

    def by_machine(self, job: int, free: Floats) -> Ints:
        """Return how many workers of a job each machine has room for in what is free, (M,)."""
        return self._summed(np.where(self.groups(job), rooms(free, self._demand[0, job]), 0))

    def suffices(self, job: int, room: Ints) -> bool:
        """Return whether machines with room for so many workers, (M,), can host a gang, ignoring zones."""
        n, k = int(self._table.n_workers[job]), self.n_machines(job)
        return bool((room >= -(-n // k)).sum() >= k) if k > 0 else bool(room.sum() >= n)

    def take(self, free: Floats, job: int, seat: Seat, *, sign: int = -1) -> None:
        """Take a gang out of what is free, (G, R + D), which is changed; `sign=1` gives it back."""
        np.add.at(free, seat.group, sign * self.amounts(job, seat, free.shape[1]))

    def amounts(self, job: int, seat: Seat, n_columns: int) -> Floats:
        """Return what each row of a seat takes, (P, R + D)."""
        r, demand = self._demand.shape[2], self._demand[seat.role, job]
        amounts = np.zeros((len(seat.group), n_columns))
        amounts[:, :r] = seat.n[:, None] * demand
        if n_columns > r:
            on = (np.maximum(seat.devices, 0)[:, None] >> np.arange(n_columns - r)) & 1
            amounts[:, r:] = np.where(demand[:, GPUS] < 1, seat.n * demand[:, GPUS], 1.0)[:, None] * on
        return amounts

    def on(self, seat: Seat) -> Bools:
        """Return the machines of a seat, (M,)."""
        there: Bools = np.bincount(self._of[seat.group], minlength=self._cluster.n_machines) > 0
        return there

    @staticmethod
    def _chosen(room: Ints, n: int, k: int) -> list[tuple[int, int]] | None:
        """Return machines and how many workers each has; None where they do not suffice."""
        if room.sum() < n:
            return None
        if k > 0:
            least, more = divmod(n, k)
            at = neighbours(room >= least + (more > 0), k)
            return None if at is None else [(m, least + (i < more)) for i, m in enumerate(at)]
        if (one := neighbours(room >= n, 1)) is not None:
            return [(one[0], n)]
        counts, left = [], n
        for m in np.argsort(-room, kind="stable").tolist():
            counts.append((m, min(left, int(room[m]))))
            left -= counts[-1][1]
            if not left:
                return counts
        return None

    def _seat(
        self, job: int, free: Floats, chosen: list[tuple[int, int]], by_group: Ints, barred: Bools
    ) -> Seat | None:
        rows = []
        for m, count in chosen:
            left = count
            for g in range(self._first[m], self._first[m + 1]):
                if (n := min(left, int(by_group[g]))) > 0:
                    rows.append((g, 0, n))
                    left -= n
        n_ps, rest = int(self._table.n_ps[job]), free.copy()
        seat = self._on_gpus(job, rest, rows)
        if n_ps:
            rows = []
            open_ = self._up if not len(barred) else self._up & ~barred[self._of]
            room = np.where(open_, rooms(rest, self._demand[1, job]), 0)
            near = np.bincount([m for m, _ in chosen], minlength=self._cluster.n_machines)[self._of] > 0
            for g in np.lexsort((-room, ~near)).tolist():
                if (n := min(n_ps, int(room[g]))) > 0:
                    rows.append((g, 1, n))
                    n_ps -= n
            if n_ps:
                return None
            seat = Seat(*(np.concatenate(two) for two in zip(seat, self._on_gpus(job, rest, rows), strict=True)))
        return seat

    def _on_gpus(self, job: int, free: Floats, rows: list[tuple[int, int, int]]) -> Seat:
        """Return the seat of rows (group, role, tasks) of which each names its GPUs; take it out of what is free."""
        if free.shape[1] > self._demand.shape[2]:
            rows_on = [(*row[:2], *each) for row in rows for each in self._gpus_for(job, free[row[0]], *row[1:])]
        else:
            rows_on = [(*row, -1) for row in rows]
        columns = np.array(rows_on, np.int32).reshape(-1, 4)
        seat = Seat(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3])
        self.take(free, job, seat)
        return seat

    def _gpus_for(self, job: int, free: Floats, role: int, n: int) -> list[tuple[int, int]]:
        """Return how many of n tasks have which set of GPUs of a group, (R + D,): parts by best fit."""
        gpus, left = float(self._demand[role, job, GPUS]), free[self._demand.shape[2] :].copy()
        if not gpus > 0:
            return [(n, -1)]
        if gpus >= 1:
            whole = np.flatnonzero(left > 1 - NEAR)[: round(n * gpus)]
            return [(n, int((1 << whole).sum()))]
        on = np.zeros(len(left), np.int64)
        for _ in range(n):
            d = int(np.argmin(np.where(left >= gpus - NEAR, left, np.inf)))
            left[d], on[d] = left[d] - gpus, on[d] + 1
        return [(int(on[d]), 1 << int(d)) for d in np.flatnonzero(on)]


def neighbours(fits: Bools, k: int) -> list[int] | None:
    """Return k of the machines that fit, (M,): from the shortest run of neighbours that suffices, or the longest ones.

    >>> neighbours(np.array([1, 0, 1, 1, 1], bool), 1), neighbours(np.array([1, 0, 1, 1, 1], bool), 2)
    ([0], [2, 3])
    >>> neighbours(np.array([1, 0, 1, 1, 0], bool), 3), neighbours(np.array([1, 0], bool), 2)
    ([0, 2, 3], None)
    """
    at = np.flatnonzero(fits)
    if len(at) < k:
        return None
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    enough = [run for run in runs if len(run) >= k]
    if enough:
        return [int(m) for m in min(enough, key=len)[:k]]
    chosen: list[int] = []
    for run in sorted(runs, key=len, reverse=True):
        chosen += run[: k - len(chosen)].tolist()
    return sorted(chosen)


def placement_of(seats: dict[int, Seat], stopped: Sequence[int] = (), declined: Sequence[int] = ()) -> Placement:
    """Return the placement that starts some jobs, each in its seat, stops others, and gives some up."""
    if not seats:
        return Placement.of(list(stopped), declined=list(declined))
    placement = Placement.of(
        [*seats, *stopped],
        job=np.repeat(list(seats), [len(seat.group) for seat in seats.values()]),
        group=np.concatenate([seat.group for seat in seats.values()]),
        role=np.concatenate([seat.role for seat in seats.values()]),
        count=np.concatenate([seat.n for seat in seats.values()]),
        declined=list(declined),
    )
    return replace(placement, devices=np.concatenate([seat.devices for seat in seats.values()]))

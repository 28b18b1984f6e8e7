"""The schedule that a trace recorded: each job starts when and where it did, whatever another scheduler would do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from labkit.core.host_names import listed
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement, Reason
from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.gang_room import GangRoom, Seat, placement_of

ELSEWHERE = "the machines that were recorded have no room"


@dataclass(eq=False)
class Recorded:
    """Start each job at the moment and on the machines that the trace recorded, as far as the cluster has room.

    It measures how far simulated schedulers are from what happened: it takes no overheads, speeds, limits or rules but
    the recorded times. A job whose machines the cluster does not have, or which have no room, starts on others of its
    device type; one for which there is no room at all waits for it. A job without a recorded start starts when there
    is room.
    """

    knows_types: ClassVar[bool] = True
    over_partitions: ClassVar[bool] = True
    follows_record: ClassVar[bool] = True

    _jobs: Jobs | None = field(default=None, init=False, repr=False)
    _start_s: Floats = field(default_factory=lambda: np.empty(0), init=False, repr=False)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start now, and when the next one does."""
        table, waiting, now_s = snapshot.table, snapshot.waiting, snapshot.now_s
        if self._jobs is not table:
            self._jobs, self._start_s = table, np.nan_to_num(table.recorded_start_s, nan=-math.inf)
        start_s = self._start_s[waiting]
        room, free = GangRoom(snapshot), snapshot.left.copy()
        number = {name: m for m, name in enumerate(snapshot.cluster.machines)}
        seats: dict[int, Seat] = {}
        reasons = []
        due = waiting[start_s <= now_s + 1e-6]
        for job in due[np.argsort(self._start_s[due], kind="stable")].tolist():
            hosts = [number[name] for name in listed(str(table.recorded_hosts[job])) if name in number]
            seat = self._there(job, hosts, room, free)
            if seat is None and (seat := room.find(job, free)) is not None and hosts:
                reasons.append(Reason(job, ELSEWHERE))
            if seat is not None:
                room.take(free, job, seat)
                seats[job] = seat
        later = start_s[start_s > now_s + 1e-6]
        return replace(placement_of(seats), reasons=tuple(reasons), again_s=float(later.min(initial=math.inf)))

    @staticmethod
    def _there(job: int, hosts: list[int], room: GangRoom, free: Floats) -> Seat | None:
        """Return the seat of a job on these machines, spread evenly if that is possible; None: it has none there."""
        if not hosts:
            return None
        others = np.ones(room.n_all, np.bool_)
        others[hosts] = False
        even = room.find(job, free, barred=others, k=len(hosts))
        return even if even is not None else room.find(job, free, barred=others, k=0)

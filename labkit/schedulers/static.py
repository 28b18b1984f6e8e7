"""Every job with the gang and cores that its user set, or that are known to be well tuned, from start to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import FirstFit
from labkit.schedulers.base import start_in_order
from labkit.schedulers.dlrover.carry import CarriedRoom
from labkit.schedulers.dlrover.plan import Plan
from labkit.workloads import catalogue


@dataclass(frozen=True, slots=True)
class Static:
    """Start jobs in order of arrival as they are configured, and never change them: what tables call manual tuning.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    backfill : bool
        Pass over a job that does not fit now.
    tuned : bool
        Give malleable jobs on CPU cores the gang and the cores that the catalogue has as well tuned (DLRover's
        Table 2), within what is useful to them. A job whose model it does not know, or whose tasks no machine holds, is
        started as its user set it.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = FirstFit()
    backfill: bool = True
    tuned: bool = False

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        if not self.tuned:
            return start_in_order(snapshot, snapshot.waiting, self.placer, backfill=self.backfill)
        waiting = snapshot.waiting
        room = CarriedRoom(snapshot, snapshot.running(waiting[:0]))
        plans = {int(job): plan for job in waiting if (plan := _tuned(snapshot, int(job))) is not None}
        others: Ints = waiting[[int(job) not in plans for job in waiting]] if len(waiting) else waiting
        room.take(start_in_order(snapshot, others, self.placer, backfill=self.backfill))
        for job, plan in plans.items():
            if room.settle(job, plan, whole=True) is not None:
                continue
            if not snapshot.n_running and not len(
                room.placement()
            ):  # not even on the empty cluster: as its user set it
                return start_in_order(snapshot, np.array([job], np.int32), self.placer, backfill=True)
            if not self.backfill:
                break
        return room.placement()


def _tuned(snapshot: Snapshot, job: int) -> Plan | None:
    """Return the well-tuned plan of a job; None: its own."""
    table = snapshot.table
    if not table.malleable[job] or not table.max_ps[job] or table.worker_demand[job, 0] > 0:
        return None
    try:
        model = catalogue.model(table.models[table.model[job]])
    except InputError:
        return None
    if max(model.worker_demand.cpus, model.ps_demand.cpus) > snapshot.offered[:, CPUS].max():
        return None
    n_workers, n_ps = min(model.n_workers, int(table.max_workers[job])), min(model.n_ps, int(table.max_ps[job]))
    return Plan(n_workers, model.worker_demand.cpus, n_ps, model.ps_demand.cpus)

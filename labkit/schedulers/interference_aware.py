"""Interference-aware and greedy: each gang where it and its neighbours lose least time, or nowhere yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.marl.lookahead import LookAheadPods

ORDERS: Final = ("area", "duration", "arrival")


@dataclass(eq=False)
class InterferenceAware(LookAheadPods):
    """Put each gang where it and those beside it take least longer; a job that would be slow everywhere waits.

    Waiting jobs are taken by area, the least first: declared seconds alone x tasks. For a job of d seconds alone, every
    placement x that is weighed (all ways onto one machine, even splits over several; at home and in the pods with most
    free GPUs) costs

        c(x) = (seconds that the job would take there + seconds more that the jobs beside it would) / d,

    with the steps that each has left, slowed as the fitted model foresees, links shared equally. The job goes to the
    least c. If even that is above `patience`, and something runs, it stays in the queue until the next decision, but no
    longer than twice d after its arrival: then it goes to the least c, whatever that is. None is preempted; a job that
    does not fit lets those behind it pass. So it is not work-conserving, on purpose.

    It is `look_ahead_pods` with a limit and an order: one threshold, nothing trained. It knows what
    `least_interference` does: the interference model fitted to measurements before the run, and what the tasks of each
    model use (`Context.interference`; without it no job slows another), beside declared durations and the catalogue's
    times and sizes. `even` and `even_pods` know nothing of interference; `marl` is shown the catalogue's use instead.

    Attributes
    ----------
    patience : float
        At least 1: a job waits if its cheapest placement costs more than so many times its time alone; inf: never.
    order : {"area", "duration", "arrival"}
        Which waiting job is placed first.
    forwards : bool
        False: a job goes to another pod only where it finds no room at home.
    """

    oracle: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    patience: float = 2.0
    order: str = "area"

    def __post_init__(self) -> None:
        if not self.patience >= 1:
            raise InputError(
                f"interference_aware: patience is {self.patience}; expected times a job's duration >= 1, inf for none."
            )
        if self.order not in ORDERS:
            raise unknown("order of interference_aware", self.order, ORDERS)

    def _queue(self, snapshot: Snapshot) -> Ints:
        """Return the waiting jobs in the order in which they are placed; ties by arrival."""
        waiting, table = snapshot.waiting, snapshot.table
        if self.order == "arrival":
            return waiting
        key = table.duration_s[waiting]
        if self.order == "area":
            key = key * (table.n_workers[waiting] + table.n_ps[waiting])
        ordered: Ints = waiting[np.argsort(key, kind="stable")]
        return ordered

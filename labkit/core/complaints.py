"""Which placements are refused, and what the message says: the same on machines and in a simulation."""

from __future__ import annotations

import numpy as np

from labkit.core import checks
from labkit.core.book import Book, Records
from labkit.core.cluster import Cluster
from labkit.core.device_types import OpenTypes
from labkit.core.errors import PlacementError
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.repairs import refuse_repairs
from labkit.core.resources import GPUS, Bools, Floats, Ints

_OF_A_JOB = {
    checks.NO_SUCH_JOB: "the placement sets job {job}, which is not active; name only jobs of snapshot.jobs.number.",
    checks.SET_TWICE: "the placement sets job {job} twice; name each job once in set_jobs.",
    checks.NOT_SET: "the placement has tasks for job {job}, which is not among its set_jobs; add it there.",
    checks.SCATTERED: "the placement's rows of job {job} are not next to each other; sort them by job.",
    checks.NO_PAIR: (
        "the placement lets job {job} share with job {partner}; name both in set_jobs, each as the other's partner."
    ),
    checks.APART: (
        "the placement lets job {job} share with job {partner}, but their workers sit in different places; give both "
        "the same rows of workers."
    ),
}


class PlacementChecks:
    """Refuses placements that a backend cannot carry out, or that give a job GPUs of a type that it may not have.

    `first_row`, `mate`: (N,) -1; after `refuse` the first row of each job of the placement, or -2, and its partner.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster, *, first_row: Ints, mate: Ints) -> None:
        self._jobs, self._cluster, self._group_machine = jobs, cluster, cluster.group_machine.astype(np.int32)
        self._types: OpenTypes | None = None
        self._first_row, self._mate = first_row, mate

    def refuse(self, placement: Placement, book: Book, *, phases: Records, over: int, up: Bools) -> None:
        """Raise unless a placement can be carried out; nothing is noted then.

        Raise PlacementError, which names a job or a row.

        Parameters
        ----------
        book : Book
            What is free, and which tasks each job has.
        phases, over, up
            As of `checks.check`.
        """
        if len(placement.partner) not in (0, len(placement.set_jobs)):
            raise PlacementError(
                f"the placement sets {len(placement.set_jobs)} jobs and has {len(placement.partner)} partners; give "
                "one for each, -1 for none, or no partners at all."
            )
        fault, where = checks.check(
            placement.set_jobs, placement.partner, placement.job, placement.role, placement.group, placement.count,
            placement.cpus, placement.memory_gb, placement.devices, phases, over, book.allocations, book.tasks,
            book.left, book.demand, up, self._group_machine, self._first_row, self._mate,
        )  # fmt: skip
        try:
            if fault != checks.OK:
                raise PlacementError(complaint(fault, where, placement, self._jobs, self._cluster, book.free))
            self._types = self._types or OpenTypes.of(self._jobs, self._cluster)
            self._types.refuse(placement)
            if len(placement.repairs):
                refuse_repairs(placement, book.allocations, self._jobs)
        except PlacementError:
            self.forget()
            raise

    def forget(self) -> None:
        """Forget the last placement."""
        self._first_row[:] = self._mate[:] = -1


def complaint(fault: int, where: int, placement: Placement, jobs: Jobs, cluster: Cluster, free: Floats) -> str:
    """Return the fault of the job or row that `checks.check` found, and its remedy."""
    if fault in _OF_A_JOB or fault == checks.UNLIKE:
        among = placement.set_jobs == where
        partner = int(placement.partner[among][0]) if len(placement.partner) and among.any() else -1
        if fault != checks.UNLIKE:
            return _OF_A_JOB[fault].format(job=where, partner=partner)
        gpus = jobs.worker_demand[[where, partner], GPUS]
        return (
            f"the placement lets job {where} share with job {partner}; their workers have {gpus[0]:g} and {gpus[1]:g} "
            "GPUs. Pair jobs with as many GPUs each, and with one at all."
        )
    group, count = int(placement.group[where]), int(placement.count[where])
    if fault == checks.BAD_ROW:
        return (
            f"row {where} of the placement has role {placement.role[where]}, group {group} and count {count}; "
            f"expected role 0 or 1, group 0 to {cluster.n_groups - 1} and count >= 1."
        )
    job = jobs.id[int(placement.job[where])]
    if fault == checks.BAD_AMOUNT:
        given = ", ".join(_amounts_in_words(placement, where))
        return (
            f"row {where} of the placement gives each task of job {job} {given}; expected finite amounts > 0, or NaN "
            "for what was declared."
        )
    if fault == checks.DOWN:
        machine = cluster.machines[cluster.group_machine[group]]
        return f"job {job} is to have tasks in device group {group}, but machine {machine} is down; see snapshot.up."
    return (
        f"job {job} does not fit device group {group} ({count} tasks{_of_each(placement, where)}); it had "
        f"{free[group, 0]:g} GPUs, "
        f"{free[group, 1]:g} cores and {free[group, 2]:g} GB free before this decision."
    )


def _amounts_in_words(placement: Placement, row: int) -> list[str]:
    """Return the amounts that a row gives each of its tasks, in words; none where it gives what was declared."""
    columns = ((placement.cpus, "cores"), (placement.memory_gb, "GB"))
    return [f"{amount[row]:g} {unit}" for amount, unit in columns if len(amount) and not np.isnan(amount[row])]


def _of_each(placement: Placement, row: int) -> str:
    amounts = _amounts_in_words(placement, row)
    return f" of {' and '.join(amounts)} each" if amounts else ""

"""What to tell of a placement that cannot be carried out."""

from __future__ import annotations

import numpy as np

from labkit.core import checks
from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.resources import GPUS, Floats

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

"""What room each pod has while a decision is made, and which jobs no pod ever holds."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.pods import n_pods, pod_of_groups
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, rooms
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.kernels import kernel


class PodRoom:
    """The free room of each pod while jobs are started.

    Attributes
    ----------
    trial : Trial
        The tasks as they would be.
    started : array of bool
        (N,) jobs that got tasks here.
    free_gpus : array
        (pods,) GPUs that are free.
    """

    def __init__(self, snapshot: Snapshot, waiting: Ints) -> None:
        self.snapshot, self.waiting, self.trial = snapshot, waiting, Trial(snapshot)
        cluster = snapshot.cluster
        self._pod, self._up = pod_of_groups(cluster), snapshot.up[cluster.group_machine]
        self.started: Bools = np.zeros(len(snapshot.table), np.bool_)
        self.free_gpus: Floats = np.bincount(
            self._pod, np.where(self._up, self.trial.free[:, GPUS], 0.0), n_pods(cluster)
        ).astype(np.float64)
        self._groups = [np.flatnonzero(self._pod == pod) for pod in range(n_pods(cluster))]
        self._kind = kinds_of(snapshot.table, snapshot.runs_on, waiting)
        self._of = dict(zip(waiting.tolist(), self._kind.tolist(), strict=True))
        self._full: set[tuple[int, int]] = set()

    def holds(self, job: int, pod: int) -> bool:
        """Tell whether a pod may hold a waiting job now: what says no is sure, what says yes is not."""
        if (self._of[job], pod) in self._full:
            return False
        mine = self._groups[pod]
        table, snapshot = self.snapshot.table, self.snapshot
        held = holds(
            self.trial.free[mine], self._up[mine], snapshot.runs_on[job, snapshot.cluster.group_type[mine]],
            table.worker_demand[job], table.ps_demand[job], int(table.n_workers[job]), int(table.n_ps[job]),
        )  # fmt: skip
        if not held:
            self.note_full(job, pod)
        return bool(held)

    def may_fit(self, jobs: Ints, pod: int) -> Ints:
        """Return the jobs that a pod may hold now."""
        return np.array([job for job in jobs.tolist() if self.holds(job, pod)], np.int32)

    def note_full(self, job: int, pod: int) -> None:
        """Note that a pod does not hold a job, nor others of its kind: room only becomes less."""
        self._full.add((self._of[job], pod))

    def take(self, placement: Placement, pod: int) -> None:
        """Take the room of what was placed in a pod."""
        rows = zip(placement.job.tolist(), placement.role.tolist(), placement.group.tolist(), placement.count.tolist(),
                   strict=True)  # fmt: skip
        for job, role, group, count in rows:
            self.trial.add(job, role, group, count)
        self.started[placement.set_jobs] = True
        self.free_gpus[pod] -= self.snapshot.table.gpus[placement.set_jobs].sum()


def kinds_of(jobs: Jobs, runs_on: Bools, which: Ints) -> Ints:
    """Return the kind of some jobs, those of one kind ask for the same gang: (n,)."""
    columns = np.column_stack(
        [jobs.worker_demand[which], jobs.ps_demand[which], jobs.n_workers[which], jobs.n_ps[which], runs_on[which]]
    )
    _, kind = np.unique(columns, axis=0, return_inverse=True)
    return kind.ravel().astype(np.int32)


@kernel
def holds(
    free: Floats, up: Bools, runs_on: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int
) -> bool:  # fmt: skip
    """Tell whether some groups (G,) have room for the workers, for the PSs, and in all for both."""
    total = np.zeros(free.shape[1])
    for_workers, for_ps = 0, 0
    w, p = rooms(free, worker), rooms(free, ps)
    for g in range(len(free)):
        if up[g]:
            for_ps += min(p[g], n_ps)
            if worker[GPUS] <= 0 or runs_on[g]:
                for_workers += min(w[g], n_workers)
            for r in range(len(total)):
                total[r] += free[g, r]
    for r in range(len(total)):
        if n_workers * worker[r] + n_ps * ps[r] > total[r] + SLACK:
            return False
    return for_workers >= n_workers and for_ps >= n_ps


def refuse_pods_without_gpus(cluster: Cluster) -> None:
    """Raise if one of several pods has no GPU while others have.

    Raises
    ------
    InputError
        It names the pod.
    """
    n = n_pods(cluster)
    gpus = np.bincount(pod_of_groups(cluster), cluster.capacity[:, GPUS], n)
    if n > 1 and gpus.any() and not gpus.all():
        raise InputError(
            f"pod {int(gpus.argmin())} of {cluster.name} has no GPU, so that no job can train there; expected GPUs in "
            "each pod. Take a cluster whose partitions all have some."
        )


def refuse_unfit(jobs: Jobs, cluster: Cluster, runs_on: Bools, *, forwards: bool) -> None:
    """Raise if a pod has no GPU, or if a job's home is no pod or no pod that it may go to ever holds it.

    Raises
    ------
    InputError
        It names the pod or the first such job.
    """
    refuse_pods_without_gpus(cluster)
    n, pods = n_pods(cluster), pod_of_groups(cluster)
    if jobs.home.max(initial=-1) >= n:
        one = int(jobs.home.argmax())
        raise InputError(
            f"job {jobs.id[one]} arrives in pod {jobs.home[one]}; {cluster.name} has pods 0 to {n - 1}. Take a cluster "
            "with more pods, or a trace with fewer homes."
        )
    every_job = np.arange(len(jobs), dtype=np.int32)
    kind = kinds_of(jobs, runs_on, every_job)
    held = np.array(
        [_held_empty(jobs, cluster, runs_on, int(one), pods, n) for one in np.unique(kind, return_index=True)[1]]
    )
    stays = (jobs.home >= 0) & (not forwards)
    fits = np.where(stays, held[kind, np.maximum(jobs.home, 0)], held[kind].any(axis=1))
    if not fits.all():
        one = int(np.flatnonzero(~fits)[0])
        where = f"its pod {jobs.home[one]}, and nothing is forwarded" if stays[one] else f"none of the {n} pods"
        raise InputError(
            f"job {jobs.id[one]} asks for {jobs.n_workers[one]} workers and {jobs.n_ps[one]} PSs with "
            f"{jobs.gpus[one]:g} GPUs in all; {where} of {cluster.name} holds it when empty. Take larger pods, or "
            "drop the job."
        )


def _held_empty(jobs: Jobs, cluster: Cluster, runs_on: Bools, job: int, pods: Ints, n: int) -> Bools:
    """Return which empty pods may hold a job, (pods,)."""
    found = np.zeros(n, np.bool_)
    for pod in range(n):
        mine = pods == pod
        found[pod] = holds(
            cluster.capacity[mine], np.ones(int(mine.sum()), np.bool_), runs_on[job, cluster.group_type[mine]],
            jobs.worker_demand[job], jobs.ps_demand[job], int(jobs.n_workers[job]), int(jobs.n_ps[job]),
        )  # fmt: skip
    return found

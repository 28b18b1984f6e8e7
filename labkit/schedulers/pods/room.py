"""What room each pod has while a decision is made, and which jobs no pod ever holds."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.pods import n_pods, pod_of_groups
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import ScratchBook, empty_book, may_hold
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial


class PodRoom:
    """The free room of each pod while jobs are started.

    Attributes
    ----------
    trial : Trial
        The tasks as they would be.
    started : array of bool
        (N,) jobs that got tasks here.
    """

    def __init__(self, snapshot: Snapshot, waiting: Ints) -> None:
        self.snapshot, self.waiting, self.trial = snapshot, waiting, Trial(snapshot)
        self.started: Bools = np.zeros(len(snapshot.table), np.bool_)
        self._kind = kinds_of(snapshot.table, snapshot.runs_on, waiting)
        self._of = dict(zip(waiting.tolist(), self._kind.tolist(), strict=True))
        self._full: set[tuple[int, int]] = set()

    def holds(self, job: int, pod: int) -> bool:
        """Return whether a pod may hold a waiting job now: what says no is sure, what says yes is not."""
        if (self._of[job], pod) in self._full:
            return False
        held = _may_hold(self.trial.book, pod, self.snapshot.table, self.snapshot.runs_on, job)
        if not held:
            self.note_full(job, pod)
        return held

    @property
    def free_gpus(self) -> Floats:
        """(pods,) GPUs that are free."""
        book, cluster = self.trial.book, self.snapshot.cluster
        free = np.where(book.up, book.free[:, GPUS], 0.0)
        return np.bincount(pod_of_groups(cluster), free, n_pods(cluster)).astype(np.float64)

    def may_fit(self, jobs: Ints, pod: int) -> Ints:
        """Return the jobs that a pod may hold now."""
        return np.array([job for job in jobs.tolist() if self.holds(job, pod)], np.int32)

    def note_full(self, job: int, pod: int) -> None:
        """Note that a pod does not hold a job, nor others of its kind: room only becomes less."""
        self._full.add((self._of[job], pod))

    def take(self, placement: Placement) -> None:
        """Take the room of what was placed."""
        self.trial.take(placement)
        self.started[placement.set_jobs] = True


def kinds_of(jobs: Jobs, runs_on: Bools, which: Ints) -> Ints:
    """Return the kind of some jobs, those of one kind ask for the same gang: (n,)."""
    columns = np.column_stack(
        [jobs.worker_demand[which], jobs.ps_demand[which], jobs.n_workers[which], jobs.n_ps[which], runs_on[which]]
    )
    _, kind = np.unique(columns, axis=0, return_inverse=True)
    return kind.ravel().astype(np.int32)


def _may_hold(book: ScratchBook, pod: int, jobs: Jobs, runs_on: Bools, job: int) -> bool:
    """Return whether a pod may hold the gang that a job asks for; False is sure."""
    return bool(
        may_hold(
            book, pod, jobs.worker_demand[job], jobs.ps_demand[job], int(jobs.n_workers[job]), int(jobs.n_ps[job]),
            runs_on[job],
        )
    )  # fmt: skip


def refuse_pods_without_gpus(cluster: Cluster) -> None:
    """Raise if one of several pods has no GPU while others have.

    Raise InputError, which names the pod.
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

    Raise InputError, which names the pod or the first such job.
    """
    refuse_pods_without_gpus(cluster)
    n = n_pods(cluster)
    if jobs.home.max(initial=-1) >= n:
        one = int(jobs.home.argmax())
        raise InputError(
            f"job {jobs.id[one]} arrives in pod {jobs.home[one]}; {cluster.name} has pods 0 to {n - 1}. Take a cluster "
            "with more pods, or a trace with fewer homes."
        )
    every_job = np.arange(len(jobs), dtype=np.int32)
    kind = kinds_of(jobs, runs_on, every_job)
    ones, empty = np.unique(kind, return_index=True)[1].tolist(), empty_book(cluster)
    held = np.array([[_may_hold(empty, pod, jobs, runs_on, one) for pod in range(n)] for one in ones])
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

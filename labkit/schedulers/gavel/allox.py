"""AlloX: the assignment of jobs to GPUs with the least sum of completion times, without preemption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.greedy import ROOM
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Allox:
    """Match jobs with places in the queues of GPUs so that the sum of completion times is least [1]_.

    A job that is k-th from the end of a GPU's queue delays k jobs, itself included, so that it costs k times its time
    there: a min-cost matching. The heads of the queues run, and keep their GPUs until they are done. The published
    version takes jobs of one GPU only. Here a gang of s GPUs queues as a job of s times the length at one of them, and
    the gangs at the heads start while they fit; with gangs of one GPU nothing changes.

    Attributes
    ----------
    alpha : float
        Of the waiting jobs, only this fraction is looked at, the oldest ones, but at least as many as GPUs are free.

    References
    ----------
    .. [1] Le et al., "AlloX: compute allocation in hybrid clusters", EuroSys 2020.
    """

    alpha: float = 1.0

    aware = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"allox: alpha is {self.alpha}; expected a fraction of the waiting jobs, 0 < alpha <= 1.")

    def allocate(self, problem: Problem) -> Allocation:
        """Return which job runs where, all or nothing.

        The value is the least sum of seconds until each job that waited is done, on GPUs that are free now.
        """
        return with_what_is_there(problem, self._match)

    def _match(self, problem: Problem) -> Allocation:
        share, left = _who_keeps(problem)
        waiting = np.flatnonzero(~share.any(axis=1))
        oldest = waiting[np.argsort(-problem.age_s[waiting], kind="stable")]
        n_oldest = max(int(left.sum() + ROOM), int(self.alpha * len(oldest)))
        total_s = _start(problem, oldest[:n_oldest], share, left)
        return Allocation(share=share, value=total_s, bound=total_s)


def _who_keeps(problem: Problem) -> tuple[Floats, Floats]:
    """Return the shares of the jobs that run on (J, V), and the GPUs of each type that they leave (T,)."""
    share, left = np.zeros(problem.speed.shape), problem.capacity.copy()
    if problem.before is None:
        return share, left
    for j, v in np.argwhere((problem.before.share >= 1) & (problem.speed > 0)):
        need = problem.n_gpus[j] * problem.use[v]
        if (need <= left + ROOM).all():  # machines may have left
            share[j, v] = 1.0
            left -= need
    return share, left


def _start(problem: Problem, jobs: Ints, share: Floats, left: Floats) -> float:
    """Start the heads of the queues while they fit; return the sum of completion times."""
    kinds = _kinds(problem.use)
    servers = np.array([np.floor(left[problem.use[columns[0]] > 0].min() + ROOM) for columns in kinds], np.int64)
    servers = np.where([len(np.flatnonzero(problem.use[columns[0]])) > 1 for columns in kinds], servers > 0, servers)
    free = [k for k in range(len(kinds)) if servers[k] > 0]
    if not len(jobs) or not free:
        return 0.0
    seconds, column = _lengths(problem, jobs, [kinds[k] for k in free])
    able = np.isfinite(seconds).any(axis=1)
    jobs, seconds, column = jobs[able], seconds[able], column[able]
    if not len(jobs):
        return 0.0
    kind, ahead, total_s = queue(seconds, servers[free])
    reserved = np.zeros(len(left), np.bool_)
    for i in np.argsort(ahead, kind="stable"):
        j, v = jobs[i], column[i, kind[i]]
        need = problem.n_gpus[j] * problem.use[v]
        if (need <= left + ROOM).all() and not reserved[need > 0].any():
            share[j, v] = 1.0
            left -= need
        elif ahead[i] <= 0:
            reserved |= need > 0  # a gang at the head waits for room; those behind do not take it
    return total_s


def _kinds(use: Floats) -> list[Ints]:
    """Return the columns of each kind of server: those that take their GPUs from the same types."""
    _, kind = np.unique(use, axis=0, return_inverse=True)
    return [np.flatnonzero(kind == k) for k in dict.fromkeys(kind.ravel().tolist())]


def _lengths(problem: Problem, jobs: Ints, kinds: list[Ints]) -> tuple[Floats, Ints]:
    """Return the GPU-seconds of jobs on each kind of server, and the column that is fastest there, (J, K) both."""
    n_gpus = problem.n_gpus[jobs, None]
    fits = (n_gpus[:, :, None] * problem.use <= problem.capacity + ROOM).all(axis=2)
    speed = np.where(fits, problem.speed[jobs], 0.0)
    column = np.stack([columns[speed[:, columns].argmax(axis=1)] for columns in kinds], axis=1)
    fastest = np.take_along_axis(speed, column, axis=1)
    work = np.broadcast_to(problem.steps_left[jobs, None] * n_gpus, fastest.shape)
    return np.divide(work, fastest, out=np.full(fastest.shape, np.inf), where=fastest > 0), column


def queue(seconds: Floats, servers: Ints) -> tuple[Ints, Ints, float]:
    """Return the queues of identical servers with the least sum of completion times.

    `seconds`: (J, K) of each job on each kind of server; infinite: it cannot run there; `servers`: (K,) how many there
    are of a kind, > 0.

    Returns
    -------
    kind, ahead : array
        (J,) the kind of server of each job, and how many jobs of its queue run before it, 0: none.
    total_s : float
        The sum of completion times.

    Examples
    --------
    Two short jobs go before a long one on the fast server, rather than to the slow one:

    >>> kind, ahead, total_s = queue(np.array([[1.0, 9.0], [2.0, 9.0], [4.0, 9.0]]), np.array([1, 1]))
    >>> kind.tolist(), ahead.tolist(), total_s
    ([0, 0, 0], [0, 1, 2], 11.0)
    """
    from scipy.optimize import linear_sum_assignment

    n_jobs = len(seconds)
    deepest = -(-n_jobs // servers)  # no job is further from the end in the best queues
    kinds = np.repeat(np.arange(len(servers)), servers * deepest)
    from_end = np.concatenate([np.repeat(np.arange(1, d + 1), n) for n, d in zip(servers, deepest, strict=True)])
    able = np.isfinite(seconds)
    never = 1.0 + n_jobs * float(np.where(able, seconds.max(axis=1, initial=0.0, where=able)[:, None], 0.0).sum())
    cost = np.where(able, seconds, never)[:, kinds] * from_end
    _, places = linear_sum_assignment(cost)
    kind, place = kinds[places], from_end[places]
    total_s = float(cost[np.arange(n_jobs), places].sum())
    return kind, _ahead(kind, place), total_s


def _ahead(kind: Ints, place: Ints) -> Ints:
    """Return how many run before each job, (J,), if the first ones in the list are at the heads where they can be."""
    n_jobs = len(kind)
    count = np.zeros((int(kind.max()) + 1, int(place.max()) + 1), np.int64)
    np.add.at(count, (kind, place), 1)
    order = np.lexsort((-np.arange(n_jobs), place, kind))  # the last ones join the longest queues
    begins = np.flatnonzero(np.r_[True, (np.diff(kind[order]) != 0) | (np.diff(place[order]) != 0)])
    server = np.empty(n_jobs, np.int64)
    server[order] = np.arange(n_jobs) - np.repeat(begins, np.diff(np.r_[begins, n_jobs]))
    length = (count[kind] > server[:, None]).sum(axis=1)
    ahead: Ints = length - place
    return ahead

"""The ledger folds events into what is believed: which jobs wait, what each holds, how far each is."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from labkit.core.book import Book, Records, gpu_share, hold, release
from labkit.core.clock import steps_at
from labkit.core.cluster import Cluster
from labkit.core.devices import widened
from labkit.core.events import Events, Kind
from labkit.core.hosting import HostRules
from labkit.core.jobs import Jobs
from labkit.core.pods import with_forwarding
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.use import Use
from labkit.kernels import inner, kernel

BELIEF: Final = np.dtype(
    [
        ("phase", np.int32),
        ("steps", np.float64),
        ("since_s", np.float64),
        ("speed", np.float64),
        ("attained_gpu_s", np.float64),
        ("held_gpus", np.float64),
        ("held_since_s", np.float64),
        ("first_start_s", np.float64),
        ("slots", np.int32),
        ("held_from", np.int32),
    ],
    align=True,
)
"""What is believed of a job: `steps` done at `since_s`, growing by `speed`; GPU-seconds likewise. `slots` that it held
tasks in so far, without those since decision `held_from`, from which on it has held some."""

UNSEEN, WAITING, HOLDING, DONE = range(4)

_ARRIVED, _PLACED, _STARTED, _RESCALED = int(Kind.ARRIVED), int(Kind.PLACED), int(Kind.STARTED), int(Kind.RESCALED)
_PROGRESSED, _PAUSED, _PREEMPTED = int(Kind.PROGRESSED), int(Kind.PAUSED), int(Kind.PREEMPTED)
_COMPLETED, _FAILED, _LEFT, _JOINED = int(Kind.COMPLETED), int(Kind.FAILED), int(Kind.LEFT), int(Kind.JOINED)
_LOSS, _DROPPED, _DECIDED, _MEASURED = int(Kind.LOSS), int(Kind.DROPPED), int(Kind.DECIDED), int(Kind.MEASURED)
_FORWARDED, _TASK_FAILED = int(Kind.FORWARDED), int(Kind.TASK_FAILED)
HEARD_LOSS, HEARD_USE, HEARD_FORWARDED = 1, 2, 4

N_ARRIVED, N_DONE, N_HOLDING, N_ACTIVE, ACTIVE_DIRTY, FIRST_WAITING, N_WAITING, N_STARTED, WAITING_LOST, N_DECIDED = (
    range(10)
)


class Ledger:
    """Belief about jobs and machines, from events alone.

    Attributes
    ----------
    jobs, cluster : Jobs, Cluster
        What was declared: `Jobs.declared`, whatever jobs were given.
    belief : array
        (N,) records of dtype `BELIEF`.
    book : Book
        The tasks each job holds, and the free capacity (G, R).
    up : array of bool
        (M,) machines that are there.
    losses : dict
        job -> list of (steps, loss) as they were reported.
    use : Use
        What was measured of the jobs' tasks.
    pod : array
        (N,) the pod that each job belongs to: its home, or where it was forwarded to; -1: none.
    hosting : HostRules or None
        Which machines may host which jobs, if the run has rules about that; set by its session.
    version : int
        Grows with every batch of events; snapshots of an older version are stale.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster) -> None:
        self.jobs, self.cluster = jobs.declared, cluster
        self.belief = np.zeros(len(jobs), dtype=BELIEF)
        self.belief["first_start_s"] = np.nan
        self.book = Book(jobs, cluster)
        self.up: Bools = np.ones(cluster.n_machines, dtype=np.bool_)
        self.losses: dict[int, list[tuple[float, float]]] = {}
        self.pod: Ints = self.jobs.home.astype(np.int32)
        self.hosting: HostRules | None = None
        self.version = 0
        self._use: Use | None = None
        self._counts = np.zeros(10, np.int32)
        self._active = np.empty(len(jobs), np.int32)
        self._waiting = np.empty(len(jobs), np.int32)
        self._some_at_home = bool((self.pod >= 0).any())
        self._group_machine = cluster.group_machine.astype(np.int32)
        self._capacity = widened(cluster.capacity, self.book.n_devices)
        self._steps_then = np.empty(256)  # by row of a batch: steps done when a loss was reported

    def fold(self, batch: Events) -> None:
        """Take note of a batch of events."""
        if not len(batch):
            return
        self.version += 1
        self.book.ensure(len(batch))
        if len(batch) > len(self._steps_then):
            self._steps_then = np.empty(2 * len(batch))
        heard = _fold(
            batch, self.belief, self._counts, self._active, self._waiting, self.up, self._group_machine,
            self._capacity, self.book.allocations, self.book.tasks, self.book.spare, self.book.left, self.book.demand,
            self._steps_then,
        )  # fmt: skip
        if heard & HEARD_USE or (self._use is not None and self._use.knows_tasks):
            self.use.note(batch)
        if heard & HEARD_FORWARDED:
            told = batch[batch["kind"] == _FORWARDED]
            self.pod[told["job"]] = told["value"]
        if heard & HEARD_LOSS:
            for row in np.flatnonzero(batch["kind"] == _LOSS):
                points = self.losses.setdefault(int(batch["job"][row]), [])
                points.append((float(self._steps_then[row]), float(batch["value"][row])))

    def completed(self, batch: Events) -> Events:
        """Return a batch that is yet to be folded, with a FORWARDED event for each job that its placements forward."""
        return with_forwarding(batch, pod=self.pod, cluster=self.cluster) if self._some_at_home else batch

    @property
    def some_at_home(self) -> bool:
        """Return whether any job belongs to a pod."""
        return self._some_at_home

    def columns(self, *, n_tasks: int) -> dict[str, Any]:
        """Return the columns that `_fold` works on, for kernels that call it; there is room for so many more tasks.

        What is folded there makes snapshots stale as well.
        """
        self.version += 1
        self.book.ensure(n_tasks)
        book = self.book
        own: dict[str, Any] = {
            "belief": self.belief,
            "counts": self._counts,
            "active": self._active,
            "waiting": self._waiting,
        }
        own |= {"up": self.up, "group_machine": self._group_machine, "capacity": self._capacity}
        return own | {
            "allocations": book.allocations, "tasks": book.tasks, "spare": book.spare, "free": book.left,
            "demand": book.demand,
            "steps_then": self._steps_then,
        }  # fmt: skip

    @property
    def use(self) -> Use:
        """What was measured of the jobs' tasks; made when it is first asked for."""
        if self._use is None:
            self._use = Use(len(self.jobs))
        return self._use

    @property
    def n_done(self) -> int:
        """Number of jobs that are over: completed, or given up."""
        return int(self._counts[N_DONE])

    @property
    def n_holding(self) -> int:
        """Number of jobs that hold tasks."""
        return int(self._counts[N_HOLDING])

    @property
    def n_active(self) -> int:
        """Number of jobs that arrived and are not done."""
        return int(self._counts[N_ARRIVED] - self._counts[N_DONE])

    def active(self) -> Ints:
        """Return the jobs that arrived and are not done, by arrival, (J,)."""
        if self._counts[ACTIVE_DIRTY]:
            _keep_active(self._active, self._counts, self.belief)
        return self._active[: self._counts[N_ACTIVE]].copy()

    def waiting(self) -> Ints:
        """Return the active jobs that hold no tasks, by arrival."""
        if self._counts[WAITING_LOST]:
            ids = self.active()
            ids = ids[self.belief["phase"][ids] == WAITING]
            self._waiting[: len(ids)] = ids
            self._counts[N_WAITING] = len(ids)
            self._counts[FIRST_WAITING] = self._counts[WAITING_LOST] = self._counts[N_STARTED] = 0
        elif self._counts[N_STARTED]:
            _keep_waiting(self._waiting, self._counts, self.belief)
        return self._waiting[self._counts[FIRST_WAITING] : self._counts[N_WAITING]].copy()

    def ended(self) -> Ints:
        """Return the jobs that are over, completed or given up, in order of their ends."""
        jobs = np.flatnonzero(self.belief["phase"] == DONE).astype(np.int32)
        in_time: Ints = jobs[np.argsort(self.belief["since_s"][jobs], kind="stable")]
        return in_time

    def steps_done(self, jobs: Ints, now_s: float) -> Floats:
        """Return the steps that each job is believed to have done by now."""
        return _grown(self.belief, jobs, now_s)

    def slots_run(self, jobs: Ints) -> Ints:
        """Return the times between two decisions in which each job has held tasks, the one that is over now too."""
        of = self.belief[jobs]
        since = np.where(of["phase"] == HOLDING, self._counts[N_DECIDED] - of["held_from"], 0)
        slots: Ints = of["slots"] + since
        return slots

    def attained_gpu_s(self, jobs: Ints, now_s: float) -> Floats:
        """Return the GPU-seconds that each job has held so far."""
        return _attained(self.belief, jobs, now_s)


@kernel
def _grown(belief: Records, jobs: Ints, now_s: float) -> Floats:
    steps = np.empty(len(jobs))
    for i in range(len(jobs)):
        steps[i] = steps_at(belief[jobs[i]], now_s)
    return steps


@inner(_nrt=False)
def attained_at(job: Any, now_s: float) -> float:
    """Return the GPU-seconds that a job has held by now."""
    return float(job.attained_gpu_s + job.held_gpus * (now_s - job.held_since_s))


@kernel
def _attained(belief: Records, jobs: Ints, now_s: float) -> Floats:
    attained = np.empty(len(jobs))
    for i in range(len(jobs)):
        attained[i] = attained_at(belief[jobs[i]], now_s)
    return attained


@kernel
def _keep_active(active: Ints, counts: Ints, belief: Records) -> None:
    n = 0
    for i in range(counts[N_ACTIVE]):
        if belief[active[i]].phase != DONE:
            active[n] = active[i]
            n += 1
    counts[N_ACTIVE] = n
    counts[ACTIVE_DIRTY] = 0


@kernel
def _keep_waiting(waiting: Ints, counts: Ints, belief: Records) -> None:
    """Take the jobs that started out of the queue; where they were its first, only its beginning moves."""
    first = counts[FIRST_WAITING]
    while first < counts[N_WAITING] and belief[waiting[first]].phase != WAITING:
        first += 1
        counts[N_STARTED] -= 1
    counts[FIRST_WAITING] = first
    if counts[N_STARTED]:
        n = first
        for i in range(first, counts[N_WAITING]):
            if belief[waiting[i]].phase == WAITING:
                waiting[n] = waiting[i]
                n += 1
        counts[N_WAITING] = n
        counts[N_STARTED] = 0


@inner
def _settle_gpus(belief: Records, allocations: Records, demand: Floats, job: int, now_s: float) -> None:
    """Bring a job's GPU-seconds up to now, and note how many GPUs it holds from now on."""
    at = belief[job]
    at.attained_gpu_s = attained_at(at, now_s)
    at.held_since_s = now_s
    workers_gpus = gpu_share(allocations, job) * allocations[job].n_workers * demand[0, job, 0]
    at.held_gpus = workers_gpus + allocations[job].n_ps * demand[1, job, 0]


@inner
def _release(
    belief: Records, allocations: Records, tasks: Records, spare: Ints, free: Floats, demand: Floats, job: int,
    now_s: float,
) -> None:  # fmt: skip
    """Give back all tasks of a job; a partner holds its GPUs alone from now on."""
    partner = allocations[job].partner
    release(allocations, tasks, spare, free, demand, job)
    if partner >= 0:
        _settle_gpus(belief, allocations, demand, partner, now_s)


@kernel
def _fold(  # noqa: C901 - one branch per kind of event
    batch: Events, belief: Records, counts: Ints, active: Ints, waiting: Ints, up: Bools, group_machine: Ints,
    capacity: Floats, allocations: Records, tasks: Records, spare: Ints, free: Floats, demand: Floats,
    steps_then: Floats,
) -> int:  # fmt: skip
    heard = 0
    for i in range(len(batch)):
        event = batch[i]
        kind, job = event.kind, event.job
        if kind == _DECIDED:
            counts[N_DECIDED] += 1
        elif kind == _ARRIVED:
            belief[job].phase = WAITING
            active[counts[N_ACTIVE]] = job
            counts[N_ACTIVE] += 1
            waiting[counts[N_WAITING]] = job
            counts[N_WAITING] += 1
            counts[N_ARRIVED] += 1
        elif kind == _PLACED:
            if i == 0 or batch[i - 1].kind != _PLACED or batch[i - 1].job != job:
                _release(belief, allocations, tasks, spare, free, demand, job, event.time_s)
                allocations[job].partner = event.partner
                if belief[job].phase == WAITING:
                    belief[job].phase = HOLDING
                    belief[job].held_from = counts[N_DECIDED] - 1
                    counts[N_HOLDING] += 1
                    counts[N_STARTED] += 1
            hold(
                allocations, tasks, spare, free, demand, job, event.role, event.group, int(event.value), event.cpus,
                event.memory_gb, event.task,
            )  # fmt: skip
            if i + 1 == len(batch) or batch[i + 1].kind != _PLACED or batch[i + 1].job != job:
                _settle_gpus(belief, allocations, demand, job, event.time_s)
        elif (kind >= _STARTED and kind <= _FAILED) or kind == _DROPPED:
            belief[job].steps = event.value
            belief[job].since_s = event.time_s
            belief[job].speed = event.speed if kind <= _PROGRESSED else 0.0
            if kind == _STARTED and belief[job].first_start_s != belief[job].first_start_s:
                belief[job].first_start_s = event.time_s
            if kind == _DROPPED and belief[job].phase == WAITING:  # refused: it held nothing
                belief[job].phase = DONE
                counts[N_DONE] += 1
                counts[ACTIVE_DIRTY] = counts[WAITING_LOST] = 1
            elif kind >= _PREEMPTED:
                _release(belief, allocations, tasks, spare, free, demand, job, event.time_s)
                _settle_gpus(belief, allocations, demand, job, event.time_s)
                counts[N_HOLDING] -= 1
                over = counts[N_DECIDED] - (1 if kind == _PREEMPTED else 0)  # by the decision that was taken just now
                belief[job].slots += over - belief[job].held_from
                if kind in (_COMPLETED, _DROPPED):
                    belief[job].phase = DONE
                    counts[N_DONE] += 1
                    counts[ACTIVE_DIRTY] = 1
                else:
                    belief[job].phase = WAITING
                    counts[WAITING_LOST] = 1
        elif kind in (_LEFT, _JOINED):
            up[event.machine] = kind == _JOINED
            sign = 1.0 if kind == _JOINED else -1.0
            for g in range(len(group_machine)):
                if group_machine[g] == event.machine:
                    for r in range(capacity.shape[1]):
                        free[g, r] += sign * capacity[g, r]
        elif kind == _LOSS:
            heard |= HEARD_LOSS
            steps_then[i] = steps_at(belief[job], event.time_s)
        elif kind in (_MEASURED, _TASK_FAILED):
            heard |= HEARD_USE
        elif kind == _FORWARDED:
            heard |= HEARD_FORWARDED
    return heard

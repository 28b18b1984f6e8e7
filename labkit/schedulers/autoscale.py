"""Or et al.'s autoscaler: workers are added while each is worth it; servers and cores stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS
from labkit.core.snapshot import Snapshot
from labkit.placers import FirstFit
from labkit.schedulers.base import capacity, place, requested_gangs
from labkit.schedulers.recall import Recall


@dataclass(frozen=True, slots=True)
class _Scaling:
    """When a job was changed last, with how many workers and which speed before, and whether it is done growing."""

    changed_s: float
    n_workers: int = 0
    speed: float = 0.0
    done: bool = False


@dataclass(eq=False)
class Autoscale:
    """Add workers to each malleable job with servers, `step` at a time, while they are worth it [1]_.

    Jobs start as they were asked for, in order of arrival, and waiting ones come before additions. The first addition
    is a trial; after `interval_s` the scaling efficiency

        (speed now - speed before) / workers added / (speed before / workers before)

    tells whether they were worth it: from `threshold` on there are more, below it they are taken away again, and the
    job stays as it is. That is the form DLRover compares with [2]_ (threshold 0.3; 4 workers at a time for Wide&Deep, 1
    for xDeepFM).

    Attributes
    ----------
    step : int
        Workers in one addition.
    steps : tuple of (str, int)
        The same for jobs of some models.
    threshold : float
        Least efficiency of an addition that is kept.
    interval_s : float
        Seconds from a change of a job to its next one, at least: launch, start and sample take 180.
    total_cores : float
        Most cores of one job.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.

    References
    ----------
    .. [1] Or, Zhang and Freedman, "Resource elasticity in distributed deep learning", MLSys 2020.
    .. [2] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", sec. 6.3.
    """

    knows_types: ClassVar[bool] = False

    step: int = 4
    steps: tuple[tuple[str, int], ...] = (("xdeepfm", 1),)
    threshold: float = 0.3
    interval_s: float = 180.0
    total_cores: float = 200.0
    placer: Placer = FirstFit()
    quantum_s: float = 60.0
    _memory: Recall[Mapping[int, _Scaling]] = field(default_factory=lambda: Recall({}), init=False, repr=False)

    def __post_init__(self) -> None:
        for name, step in (("step", self.step), *((f"the step of {model}", step) for model, step in self.steps)):
            if step < 1:
                raise InputError(f"autoscale: {name} is {step}; expected a number of workers >= 1.")
        for name in ("threshold", "interval_s", "total_cores"):
            if not getattr(self, name) >= 0:
                raise InputError(f"autoscale: {name} is {getattr(self, name)}; expected a number >= 0.")

    def begin(self, context: Context) -> None:  # noqa: ARG002 - nothing is known of jobs before they come
        """Forget other jobs."""
        self._memory.forget()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, and which get more workers or fewer."""
        before = self._memory.before(snapshot)
        started = place(self.placer, snapshot, requested_gangs(snapshot, snapshot.waiting))
        jobs = snapshot.jobs
        grows = jobs.running & jobs.malleable & (jobs.n_ps > 0) & (jobs.partner < 0)
        known = {int(job): before.get(int(job), _Scaling(snapshot.now_s)) for job in jobs.number[grows]}
        for job in started.set_jobs.tolist():
            known[job] = _Scaling(snapshot.now_s)
        self._memory.keep(known)
        if len(started.set_jobs) < len(snapshot.waiting) or len(started.set_jobs):
            return started  # room is for those that wait
        free = capacity(snapshot)[CPUS] - float(jobs.allocated[:, CPUS].sum())
        wanted: dict[int, int] = {}
        of_model = dict(self.steps)
        for j in np.flatnonzero(grows):
            job, worker_cores = int(jobs.number[j]), float(jobs.worker_demand[j, CPUS])
            most = int(jobs.max_workers[j])
            if worker_cores > 0:
                left = min(self.total_cores - float(jobs.allocated[j, CPUS]), free)
                most = min(most, int(jobs.n_workers[j]) + max(int(left / worker_cores + 1e-9), 0))
            known[job], n = self._next(
                known[job], snapshot.now_s, n_workers=int(jobs.n_workers[j]), speed=float(jobs.speed[j]), most=most,
                step=of_model.get(jobs.models[jobs.model[j]], self.step),
            )  # fmt: skip
            if n != jobs.n_workers[j]:
                wanted[job] = n
                free -= worker_cores * (n - int(jobs.n_workers[j]))
        self._memory.keep(known)
        if not wanted:
            return Placement.nothing()
        numbers = np.array(list(wanted), np.int32)
        n_ps = snapshot.allocations["n_ps"][numbers]
        gangs = Gangs.of(numbers, n_workers=list(wanted.values()), n_ps=n_ps, shrinks=True)
        return place(self.placer, snapshot, gangs)

    def _next(
        self, state: _Scaling, now_s: float, *, n_workers: int, speed: float, most: int, step: int
    ) -> tuple[_Scaling, int]:  # fmt: skip
        """Return the state of a job and its workers from now on."""
        if state.done or now_s < state.changed_s + self.interval_s or not speed > 0:
            return state, n_workers
        added = n_workers - state.n_workers
        if state.n_workers and added > 0 and state.speed > 0:
            efficiency = (speed - state.speed) / added / (state.speed / state.n_workers)
            if efficiency < self.threshold:
                return replace(state, changed_s=now_s, done=True), state.n_workers
        n = min(n_workers + step, most)
        if n <= n_workers:
            return state, n_workers
        return _Scaling(now_s, n_workers, speed), n

"""Whom the brain is compared with where the truth has another form: an oracle, and a hill climber of few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.resources import CPUS, Floats
from labkit.core.running import Running, TaskUse
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.carry import CarriedRoom
from labkit.schedulers.dlrover.plan import Plan, frontier, grid
from labkit.schedulers.dlrover.select import choose
from labkit.schedulers.dlrover.sight import Sight
from labkit.speed.bottleneck import WORK, Bottleneck

QUOTA: Final = 200.0


class Falling(Bottleneck):
    """Speed that falls with workers, as with contention: / (1 + (n / 20)^2)."""

    @staticmethod
    def bent(speed: Floats, n: Floats, p: Floats, model: str) -> Floats:  # noqa: ARG004 - as the others
        """Return what becomes of the speed of n workers and p servers."""
        return np.asarray(speed / (1 + (n / 20) ** 2))

    def _speeds_and_loads(self, running: Running) -> tuple[Floats, Floats, Floats]:
        speed, rates, loads = super()._speeds_and_loads(running)
        names = [str(self.jobs.models[m]) for m in self.jobs.model[running.job]]
        n, p = np.asarray(running.n_workers, np.float64), np.asarray(running.n_ps, np.float64)
        bent = [self.bent(v, a, b, name) for v, a, b, name in zip(speed, n, p, names, strict=True)]
        return np.array(bent, np.float64), rates, loads


class Incast(Falling):
    """Speed that falls beyond 64 pairs of a worker and a server."""

    @staticmethod
    def bent(speed: Floats, n: Floats, p: Floats, model: str) -> Floats:  # noqa: ARG004
        """Return what becomes of the speed of n workers and p servers."""
        return np.asarray(speed * np.minimum(1, 64 / np.maximum(n * p, 1)))


class Saturated(Falling):
    """A network that lets 60 steps/s of Wide&Deep through, 15 of xDeepFM."""

    @staticmethod
    def bent(speed: Floats, n: Floats, p: Floats, model: str) -> Floats:  # noqa: ARG004
        """Return what becomes of the speed of n workers and p servers."""
        return np.minimum(speed, 60.0 if model.startswith("wide") else 15.0)


class Spinning(Falling):
    """Servers that use all cores that they have, whatever they do."""

    @staticmethod
    def bent(speed: Floats, n: Floats, p: Floats, model: str) -> Floats:  # noqa: ARG004
        """Return the speed as it is."""
        return speed

    def use(self, running: Running) -> TaskUse:
        """Return tasks' use."""
        use = super().use(running)
        return replace(use, cores=np.where(running.role == Role.PS, 0.98 * self._cores(running), use.cores))


class Silent(Spinning):
    """Jobs of which no use of cores is measured."""

    def use(self, running: Running) -> TaskUse:
        """Return tasks' use."""
        use = super().use(running)
        return replace(use, cores=np.full(len(use.cores), np.nan))


class Plain(Spinning):
    """The bottleneck of the paper, as it is."""

    def use(self, running: Running) -> TaskUse:
        """Return tasks' use."""
        return Bottleneck.use(self, running)


SIMULATED: Final = (Plain, Falling, Incast, Saturated, Spinning, Silent)


@dataclass(eq=False)
class Oracle:
    """Divide cores as the brain does, by speeds as they are; only where jobs come and go."""

    truth: type[Falling]
    quantum_s: ClassVar[float] = 60.0
    _seen: frozenset[int] = frozenset()
    _known: dict[str, tuple[list[Plan], Floats, Floats]] = field(default_factory=dict)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return what starts, and which jobs get other tasks."""
        jobs, table = snapshot.jobs.number.tolist(), snapshot.table
        if frozenset(jobs) == self._seen:
            return Placement.nothing()
        self._seen = frozenset(jobs)
        room = CarriedRoom(snapshot, snapshot.running())
        fronts = [self._front(str(table.models[table.model[job]])) for job in jobs]
        at = choose([(cores, gain) for _, cores, gain in fronts], budget=float(snapshot.offered[:, CPUS].sum()))
        wanted = [(front[0][i], job) for front, i, job in zip(fronts, at, jobs, strict=True) if i >= 0]
        for plan, job in sorted(wanted, key=lambda each: each[0].cores - _held(room, each[1])):
            room.settle(job, plan)
        return room.placement()

    def _front(self, model: str) -> tuple[list[Plan], Floats, Floats]:
        if model not in self._known:
            truth, plans = _Truth(self.truth, model), grid(QUOTA, max_workers=60, max_ps=16)
            which, speed = frontier(truth, plans)
            self._known[model] = [plans.plan(i) for i in which], plans.cores[which], (speed / speed[-1]) ** 0.5
        return self._known[model]


@dataclass(frozen=True, slots=True)
class _Truth:
    kind: type[Falling]
    model: str

    def speed(self, n_workers: Floats, *, worker_cores: Floats, n_ps: Floats, ps_cores: Floats) -> Floats:
        told = WORK[self.model].speed(n_workers, worker_cores=worker_cores, n_ps=n_ps, ps_cores=ps_cores)
        return self.kind.bent(told, np.asarray(n_workers), np.asarray(n_ps), self.model)


def _held(room: CarriedRoom, job: int) -> float:
    tasks, amounts = room.rows(job)
    return float((tasks[:, 2] * amounts[:, 0]).sum())


Move = Callable[[Plan], Plan]
MOVES: Final[Sequence[Move]] = (
    lambda plan: replace(plan, n_workers=2 * plan.n_workers),
    lambda plan: replace(plan, n_ps=2 * plan.n_ps),
    lambda plan: replace(plan, n_workers=2 * plan.n_workers, worker_cores=max(plan.worker_cores // 2, 1)),
    lambda plan: replace(plan, n_ps=2 * plan.n_ps, ps_cores=max(plan.ps_cores // 2, 1)),
    lambda plan: replace(plan, n_workers=max(plan.n_workers // 2, 1)),
)


@dataclass(eq=False)
class Climber:
    """Start as asked; double or halve something every minute, and keep what makes a job a twentieth faster."""

    quantum_s: ClassVar[float] = 60.0
    measure_every_s: ClassVar[float] = 30.0
    _best: dict[int, tuple[Plan, float, int, float]] = field(default_factory=dict)
    """By job: the best plan, its steps/s, moves that were tried since, and when it was changed last."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return what starts, and which jobs get other tasks."""
        sight = Sight.of(snapshot, snapshot.jobs.number[snapshot.holds(snapshot.jobs.number)])
        room = CarriedRoom(snapshot, sight.running)
        for i, job in enumerate(sight.running.job.tolist()):
            now, speed = sight.plan(i), float(sight.speed[i])
            best, fastest, tried, changed_s = self._best.setdefault(job, (now, 0.0, -1, snapshot.now_s))
            if snapshot.now_s < changed_s + 60 or not sight.measured_s[i] > changed_s or tried > len(MOVES):
                continue
            better = speed > 1.05 * fastest
            best, fastest, tried = (now, speed, 0) if better else (best, fastest, tried + 1)
            wanted = MOVES[tried](best) if tried < len(MOVES) else best
            table = snapshot.table
            fits = (
                wanted.cores <= QUOTA
                and wanted.n_workers <= table.max_workers[job]
                and wanted.n_ps <= table.max_ps[job]
            )
            room.settle(job, wanted if fits else best, whole=True)
            self._best[job] = best, fastest, tried, snapshot.now_s
        for job in snapshot.waiting.tolist():
            table, demand = snapshot.table, snapshot.demand
            cores = [float(demand[role, job, CPUS]) for role in (Role.WORKER, Role.PS)]
            room.settle(job, Plan(int(table.n_workers[job]), cores[0], int(table.n_ps[job]), cores[1]), whole=True)
        return room.placement()

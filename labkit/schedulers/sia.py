"""Sia: a device type and a number of workers for each job, by goodput on each type, restarts counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.life import Context
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import place
from labkit.schedulers.pollux.search import MOST_WORKERS, PastGangs
from labkit.schedulers.recall import Recall
from labkit.solvers.market import by_price

HIGHEST_COST: Final = 3000.0
UNKNOWN_GOODPUT: Final = 1e-4
NEARLY: Final = 1e-6


@dataclass(eq=False)
class Sia:
    """Give each job a configuration, a device type with a number of workers, by which a sum over jobs is least [1]_.

    Goodput of a job is counted in that of its slowest configuration, and a configuration costs goodput^`power`, in
    hundredths; a job without workers costs `unplaced`. Numbers of workers are powers of two within a machine, then
    whole machines; rigid jobs have what they asked for, and choose the type alone. Of a job that runs, all but its
    present configuration are multiplied by max(age - restarts x `penalty_s`, 0) / (age + `penalty_s`), so that young
    and restless jobs stay; a job may have twice as many workers as it ever had. Goodput is measured before the run on
    each type, packed and without error, which makes it an oracle (Sia profiles one worker on each type, and fits the
    rest), and anew where speeds change as a job progresses, when they do.

    Sia solves an integer program in each round. This finds configurations by one price for GPUs of each type, in the
    median within 1% of that program's sum on random jobs; largest gangs are placed first, by a placer.

    Attributes
    ----------
    power : float
        Less than 0; the nearer to 0, the more a job counts that has much already.
    unplaced : float
        What a job without workers costs; a job in its slowest configuration costs 1.
    penalty_s : float
        What a restart is believed to take; as published 15 to 250 s, by model.
    grow : float
        Times the most workers that a job ever had that it may have; inf: any number.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.

    Notes
    -----
    Read in github.com/siasosp23/artifacts (no licence), aaf7a0d; nothing is copied. There a job that waits loses
    goodput by its restarts, too; here that would leave GPUs idle.

    References
    ----------
    .. [1] Jayaram Subramanya et al., "Sia: heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
    """

    oracle: ClassVar[bool] = True

    power: float = -0.5
    unplaced: float = 1.1
    penalty_s: float = 30.0
    grow: float = 2.0
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 60.0
    _context: Context | None = field(default=None, init=False, repr=False)
    _sizes: Sizes | None = field(default=None, init=False, repr=False)
    _goodput: dict[int, tuple[float, Floats]] = field(default_factory=dict, init=False, repr=False)
    _history: Recall[PastGangs] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.power < 0 and self.unplaced > 0 and self.penalty_s >= 0 and self.grow >= 1):
            raise InputError(
                f"sia: power is {self.power}, unplaced {self.unplaced}, penalty_s {self.penalty_s}, grow {self.grow}; "
                "expected a number < 0, a cost > 0, seconds >= 0 and a factor >= 1."
            )
        self._history = Recall(PastGangs())

    def begin(self, context: Context) -> None:
        """Forget another run."""
        self._context, self._sizes, self._goodput = context, None, {}
        self._history.forget()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed, the largest first."""
        jobs = snapshot.jobs
        if not len(jobs):
            return Placement.nothing()
        before = self._history.before(snapshot)
        sizes = self._sizes_of(snapshot)
        numbers, takes = sizes.numbers, _shares(snapshot, sizes.numbers)
        possible = sizes.possible(snapshot) & (takes <= 1)
        present = _present(snapshot, numbers)
        goodput = self._goodputs(snapshot, possible, present)
        restarts = jobs.running[:, None, None] & ~present
        goodput *= np.where(restarts, before.restarted(snapshot, penalty_s=self.penalty_s)[:, None, None], 1.0)
        most = before.most_workers(snapshot, grow=self.grow)[:, None, None]
        allowed = possible & (numbers <= most) | present & possible.any(axis=(1, 2), keepdims=True)
        cost = np.full(allowed.shape, np.inf)
        with np.errstate(divide="ignore"):  # a gang of no goodput, as of a job that only restarts, costs most
            cost[allowed] = np.minimum(np.round(goodput[allowed] ** self.power, 2), HIGHEST_COST)
        gangs = self._gangs(snapshot, numbers, self._chosen(cost, takes), present=present, possible=possible)
        answer = place(self.placer, snapshot, gangs)
        self._history.keep(before.with_answer(answer))
        return answer

    def _sizes_of(self, snapshot: Snapshot) -> Sizes:
        if self._sizes is None or self._sizes.table is not snapshot.table:
            self._sizes = Sizes.of(snapshot.table, snapshot.cluster)
        return self._sizes

    def _goodputs(self, snapshot: Snapshot, possible: Bools, present: Bools) -> Floats:
        """Return the goodput of each configuration in that of the job's slowest one, (J, T, S)."""
        jobs, numbers = snapshot.jobs, self._sizes_of(snapshot).numbers
        at = present.reshape(len(jobs), -1).argmax(axis=1)
        seen = zip(jobs.number.tolist(), jobs.speed.tolist(), at.tolist(), strict=True)
        measured = np.stack([self._measured(snapshot, numbers, *each) for each in seen])
        measured[~(possible & (measured > 0)).any(axis=(1, 2))] = numbers
        known = possible & (measured > 0)
        slowest = np.where(known, measured, np.inf).min(axis=(1, 2), keepdims=True)
        return np.where(known, measured / slowest, UNKNOWN_GOODPUT)

    def _measured(self, snapshot: Snapshot, numbers: Ints, job: int, speed: float, at: int) -> Floats:
        """Return steps/s of each configuration, (T, S).

        Where speeds change as a job progresses, it is measured again when the job is not as fast as expected.
        """
        before = self._goodput.get(job)
        if before is not None:
            known_speed, measured = before
            phased = self._context is not None and self._context.phased
            if not phased or not speed > 0 or speed == known_speed or abs(measured.flat[at] - speed) <= NEARLY * speed:
                return measured
        table = snapshot.table
        found = np.zeros((len(snapshot.cluster.device_types), len(numbers)))
        some = numbers <= table.max_workers[job] if table.malleable[job] else numbers == table.n_workers[job]
        if self._context is not None:
            steps = float(snapshot.steps_done(np.array([job], np.int32))[0])
            for kind in np.flatnonzero(snapshot.runs_on[job]).tolist():
                found[kind, some] = self._context.measure(job, int(table.n_ps[job]), numbers[some], steps, kind)
        self._goodput[job] = speed, found
        return found

    def _chosen(self, cost: Floats, takes: Floats) -> Ints:
        """Return the configuration of each job, type by type and number by number, counted from 1; 0: none, (J,)."""
        n, n_kinds, n_numbers = cost.shape
        flat = np.column_stack([np.full(n, self.unplaced), cost.reshape(n, -1)])
        shares = np.column_stack([np.zeros(n), np.where(cost < np.inf, takes, 0.0).reshape(n, -1)])
        pool = np.append(0, np.repeat(np.arange(n_kinds), n_numbers))
        return by_price(flat, shares, budget=1.0, pool=pool)

    def _gangs(self, snapshot: Snapshot, numbers: Ints, chosen: Ints, *, present: Bools, possible: Bools) -> Gangs:
        """Return the gangs of jobs that are to change, the largest first; what no type holds comes last, anywhere."""
        jobs, table = snapshot.jobs, snapshot.table
        rows, at = np.arange(len(jobs)), np.maximum(chosen - 1, 0)
        kind, n_workers = at // len(numbers), np.where(chosen > 0, numbers[at % len(numbers)], 0)
        stays = np.where(chosen > 0, present.reshape(len(jobs), -1)[rows, at], ~jobs.running)
        nowhere = ~possible.any(axis=(1, 2))
        kind, n_workers = np.where(nowhere, -1, kind), np.where(nowhere, jobs.requested_workers, n_workers)
        (named,) = np.nonzero(np.where(nowhere, ~jobs.running, ~stays))
        size = n_workers * jobs.worker_demand.sum(axis=1)
        named = named[np.lexsort((named, -size[named], kind[named] < 0))]
        job = jobs.number[named]
        n_ps = np.where(n_workers[named] > 0, table.n_ps[job], 0)
        return Gangs.of(job, n_workers=n_workers[named], n_ps=n_ps, device_type=kind[named])


@dataclass(frozen=True, eq=False, slots=True)
class Sizes:
    """Which numbers of workers the jobs of a run may have."""

    table: Jobs
    numbers: Ints
    """(S,) all that any job may have, ascending."""
    held: Ints
    """(N, T) workers of each job that the largest machine of a type holds."""

    @classmethod
    def of(cls, table: Jobs, cluster: Cluster) -> Self:
        """Return the sizes of the jobs of a run."""
        demands, demand = np.unique(table.worker_demand, axis=0, return_inverse=True)
        held = _held_by_one(demands, cluster)
        whole = [np.arange(n, MOST_WORKERS + 1, n) for n in np.unique(held[held > 0])]
        powers = 2 ** np.arange(MOST_WORKERS.bit_length())
        numbers = np.unique(np.concatenate([powers, *whole, table.n_workers[~table.malleable]]))
        return cls(table, numbers, held[demand.ravel()])

    def possible(self, snapshot: Snapshot) -> Bools:
        """Return which configurations each active job can have at all, (J, T, S)."""
        jobs, numbers = snapshot.jobs, self.numbers
        held = self.held[jobs.number][:, :, None]
        within = (numbers & (numbers - 1) == 0) & (numbers < held)
        whole = (held > 0) & (numbers % np.maximum(held, 1) == 0)
        elastic = (within | whole) & (numbers <= jobs.max_workers[:, None, None])
        rigid = numbers == jobs.requested_workers[:, None, None]
        possible = np.where(self.table.malleable[jobs.number][:, None, None], elastic, rigid)
        return np.asarray(possible & snapshot.runs_on[jobs.number][:, :, None], np.bool_)


def _held_by_one(demand: Floats, cluster: Cluster) -> Ints:
    """Return how many workers of some demands (J, R) the largest machine of each type holds, (J, T)."""
    first = np.searchsorted(cluster.group_machine, np.arange(cluster.n_machines))
    room, kind = np.add.reduceat(cluster.capacity, first, axis=0), cluster.group_type[first]
    found = np.zeros((len(demand), len(cluster.device_types)), np.int64)
    for t in range(found.shape[1]):
        rooms = np.unique(room[kind == t], axis=0)
        each = np.full((len(demand), *rooms.shape), np.inf)
        np.divide(rooms, demand[:, None, :], out=each, where=demand[:, None, :] > 0)
        held = np.floor(each.min(axis=2).max(axis=1, initial=0.0) + 1e-9)
        found[:, t] = np.where(np.isfinite(held), held, 0)
    return found


def _present(snapshot: Snapshot, numbers: Ints) -> Bools:
    """Return the configuration that each running job has, (J, T, S); a gang that was cut counts as the next smaller."""
    jobs = snapshot.jobs
    first, _, group, _ = snapshot.tasks
    present = np.zeros((len(jobs), len(snapshot.cluster.device_types), len(numbers)), np.bool_)
    rows = np.flatnonzero(np.diff(first) > 0)
    at = np.maximum(np.searchsorted(numbers, jobs.n_workers[rows], "right") - 1, 0)
    present[rows, snapshot.cluster.group_type[group[first[rows]]], at] = True
    return present


def _shares(snapshot: Snapshot, numbers: Ints) -> Floats:
    """Return the part of all that is up of a type that each configuration takes, (J, T, S); inf: there is none."""
    jobs, cluster = snapshot.jobs, snapshot.cluster
    total = np.zeros((len(cluster.device_types), cluster.capacity.shape[1]))
    there = snapshot.up[cluster.group_machine]
    np.add.at(total, cluster.group_type[there], cluster.capacity[there])
    servers = jobs.requested_ps[:, None] * jobs.ps_demand
    asked = numbers[:, None] * jobs.worker_demand[:, None, :] + servers[:, None, :]  # (J, S, R)
    shares = np.zeros((len(jobs), len(total), len(numbers)))
    for each, offered in zip(np.moveaxis(asked, 2, 0)[:, :, None], total.T[:, :, None], strict=True):
        share = np.broadcast_to(np.where(each > 0, np.inf, 0.0), shares.shape).copy()
        np.divide(each, offered, out=share, where=offered > 0)
        np.maximum(shares, share, out=shares)
    return shares

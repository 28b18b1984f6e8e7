"""Scenes: a small random cluster, jobs, and what happened so far. The same scene gives the same snapshot each time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core import Cluster, Events, Gangs, Jobs, Kind, Ledger, Placement, Placer, Running, Snapshot
from labkit.core.device_types import may_run_on
from labkit.core.events import events
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.experiment import Session
from labkit.placers import Even, FirstFit, Pack, Spread
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

PLACERS: Final[tuple[Placer, ...]] = (FirstFit(), Spread(), Pack(), Even())
SOCKETS: Final = (((2, 8, 64),), ((2, 8, 64), (2, 8, 64)), ((1, 4, 16), (2, 6, 32)), ((4, 16, 128),), ((0, 32, 64),))
TYPES: Final = ("v100", "p100", "k80")
SERVERS: Final = (
    Server("exclusive", ((2, 8, 64),), "p100", gpu_memory_gb=16, exclusive=True),
    Server("shared", ((4, 16, 128), (2, 8, 64)), "v100", gpu_memory_gb=32),
    Server("cut", ((2, 28, 140),), "k80", mig=("3g.20gb", "2g.10gb", "2g.10gb")),
    Server("cut alike", ((1, 14, 70),), "p100", exclusive=True, mig=("2g.20gb",) * 3),
)
"""Machines whose GPUs differ in memory and mode, some cut by MIG (as if it could cut these types)."""
DEMANDS: Final = ("", "", "", "v100", "p100", "3g.20gb", "2g.10gb", "2g.20gb", "2g.10gb|v100", "k80-2g.10gb", "!p100")


class SharedSpeeds(Recorded):
    """Recorded speeds; a job that shares its GPUs makes a part of them, and which one depends on its partner."""

    pairs = True

    def __init__(self, jobs: Jobs, cluster: Cluster, *, runs_on: Bools | None = None) -> None:
        super().__init__(jobs, cluster)
        self._runs_on = runs_on

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T): on all, unless it was told others."""
        return super().runs_on() if self._runs_on is None else self._runs_on

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        alone = super().speeds(running)
        if not len(running.partner):
            return alone
        part = 0.4 + 0.2 * ((running.job + 2 * running.partner) % 4)
        return np.where(running.partner >= 0, part * alone, alone)


@dataclass(frozen=True, eq=False)
class DecisionScene:
    """A run up to one of its decisions.

    Attributes
    ----------
    jobs, cluster : Jobs, Cluster
        What arrives, and where it runs.
    runs_on : array of bool
        (N, T) which jobs can run on which device types.
    rows : Events
        What happened so far.
    now_s, number : float, int
        The time, and how many decisions were made.
    """

    jobs: Jobs
    cluster: Cluster
    runs_on: Bools
    rows: Events
    now_s: float
    number: int

    def snapshot(self, *, jobs: Jobs | None = None) -> Snapshot:
        """Return a fresh snapshot of this moment; `jobs` stand in for the scene's own."""
        ledger = Ledger(self.jobs if jobs is None else jobs, self.cluster)
        ledger.fold(self.rows)
        return Snapshot(ledger, now_s=self.now_s, number=self.number, runs_on=self.runs_on)

    def simulator(self, **options: Any) -> Simulator:
        """Return a simulator of these jobs at time 0, at speeds in proportion to their workers; it knows pairs."""
        return Simulator(self.jobs, self.cluster, speed=SharedSpeeds(self.jobs, self.cluster), **options)

    def __repr__(self) -> str:
        return f"<Scene at {self.now_s:.0f} s, {len(self.jobs)} jobs, {self.cluster}>"


class Chaos:
    """A scheduler that starts, resizes, moves and stops jobs at random: it shows what others never ask for.

    A rigid job gets its whole gang or nothing here too, pairs apart.

    Parameters
    ----------
    rng : Generator
        Of its decisions.
    pairs : bool
        Let some jobs share their GPUs.
    amounts : bool
        Give some tasks fewer cores and less memory than declared.
    """

    def __init__(self, rng: np.random.Generator, *, pairs: bool = False, amounts: bool = False) -> None:
        self.rng, self.pairs, self.amounts = rng, pairs, amounts

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return a random valid placement; something runs after it wherever possible."""
        placement = self._anything(snapshot)
        if len(placement) or snapshot.n_running > snapshot.holds(placement.set_jobs).sum():
            return placement
        return FirstFit().place(snapshot, requested_gangs(snapshot.table, snapshot.jobs.number))

    def _anything(self, snapshot: Snapshot) -> Placement:
        rng, table, active = self.rng, snapshot.table, snapshot.jobs.number
        jobs = rng.permutation(active[rng.random(len(active)) < 0.6])
        if not len(jobs):
            return Placement.nothing()
        most_ps, grows = table.max_ps[jobs], table.malleable[jobs]
        gangs = Gangs.of(
            jobs,
            n_workers=np.where(grows, rng.integers(1, table.max_workers[jobs] + 1), table.n_workers[jobs]),
            n_ps=np.where(grows & (most_ps > 0), rng.integers(1, np.maximum(most_ps, 1) + 1), table.n_ps[jobs]),
            shrinks=grows & (rng.random(len(jobs)) < 0.5),
        )
        gangs = paired(rng, gangs, table) if self.pairs else gangs
        placement = PLACERS[rng.integers(len(PLACERS))].place(snapshot, gangs)
        stopped = placement.set_jobs[rng.random(len(placement.set_jobs)) < 0.15]
        kept = ~np.isin(placement.job, stopped)
        columns = (placement.job[kept], placement.role[kept], placement.group[kept], placement.count[kept])
        partner = placement.partner.copy()
        if len(partner):
            partner[np.isin(placement.set_jobs, stopped) | np.isin(partner, stopped)] = -1
        if not self.amounts:
            return Placement(placement.set_jobs, *columns, partner)
        cpus, memory_gb = (self._fewer(snapshot, *columns[:2], r) for r in (CPUS, MEMORY_GB))
        return Placement(placement.set_jobs, *columns, partner, cpus=cpus, memory_gb=memory_gb)

    def _fewer(self, snapshot: Snapshot, job: Ints, role: NDArray[np.int8], r: int) -> Amounts:
        """Return amounts of at most what was declared, NaN for some, (P,)."""
        part = self.rng.choice([np.nan, 0.25, 0.5, 1.0], len(job))
        declared = snapshot.demand[role, job, r]
        return np.where(declared > 0, part * declared, np.nan).astype(np.float32)


def paired(rng: np.random.Generator, gangs: Gangs, jobs: Jobs) -> Gangs:
    """Return the gangs with about half of those that can share their GPUs with another one in pairs."""
    gpus = jobs.worker_demand[gangs.job, GPUS]
    partner, workers = np.full(len(gangs), -1, np.int32), gangs.n_workers.copy()
    for i in range(len(gangs)):
        alike = np.flatnonzero((gpus == gpus[i]) & (partner == -1) & (np.arange(len(gangs)) > i))
        if partner[i] == -1 and gpus[i] > 0 and len(alike) and rng.random() < 0.5:
            j = int(rng.choice(alike))
            partner[i], partner[j] = gangs.job[j], -2  # has no row of its own
            workers[i] = min(workers[i], workers[j])
    rows = np.flatnonzero(partner > -2)
    kept = gangs.take(rows)
    return replace(kept, n_workers=workers[rows], partner=partner[rows])


def requested_gangs(jobs: Jobs, which: Any) -> Gangs:
    """Return the gangs that some jobs asked for."""
    return Gangs.of(which, n_workers=jobs.n_workers[which], n_ps=jobs.n_ps[which])


def random_cluster(rng: np.random.Generator, *, n_machines: int = 4, n_types: int = 2, kinds: bool = False) -> Cluster:
    """Return machines of several kinds and device types, the first of them with GPUs; `kinds`: of `SERVERS`."""
    servers = []
    if kinds:
        chosen = [rng.integers(len(SERVERS) if machine else 2) for machine in range(n_machines)]
        return no_network(n_machines, servers=[(1, SERVERS[i]) for i in chosen])
    for machine in range(n_machines):
        sockets = SOCKETS[rng.integers(len(SOCKETS) - (machine == 0))]
        servers.append((1, Server("any", sockets=sockets, device_type=TYPES[rng.integers(n_types)])))
    return no_network(n_machines, servers=servers)


def with_demands(rng: np.random.Generator, jobs: Jobs, *, cluster: Cluster) -> Jobs:
    """Return the jobs with demands for types, slices and memory of GPUs; those that none meets take any whole ones."""
    n = len(jobs)
    asking = jobs.with_columns(
        device_type=rng.choice(np.array(DEMANDS, object), n), gpu_memory_gb=rng.choice([0.0, 0, 4, 8, 16, 20], n)
    )
    met, whole = may_run_on(asking, cluster).any(axis=1), jobs.worker_demand.copy()
    whole[~met, GPUS] = np.ceil(whole[~met, GPUS])
    return asking.with_columns(
        device_type=np.where(met, asking.device_type, ""), gpu_memory_gb=np.where(met, asking.gpu_memory_gb, 0.0),
        worker_demand=whole,
    )  # fmt: skip


def random_runs_on(rng: np.random.Generator, *, cluster: Cluster, n_jobs: int) -> Bools:
    """Return which jobs run on which device types (N, T): on all for half of the jobs, never on none with GPUs."""
    has_gpus = cluster.gpus_of_type() > 0
    runs = (rng.random((n_jobs, len(has_gpus))) < 0.5) | (rng.random((n_jobs, 1)) < 0.5)
    runs[~(runs & has_gpus).any(axis=1)] = True
    return np.asarray(runs, dtype=np.bool_)


def random_jobs(rng: np.random.Generator, *, cluster: Cluster, runs_on: Bools, right: bool = False) -> Jobs:
    """Return jobs rigid and malleable, with PSs and all-reduce, some without GPUs, each of which fits when alone.

    `runs_on`: (N, T) which jobs can run on which device types; `right`: all declared steps are what the jobs really
    need; else they are wrong for some.
    """
    n = len(runs_on)
    workers = np.stack([rng.choice([0, 0.5, 1, 1, 2], n), rng.integers(1, 4, n), rng.choice([0, 4, 7.5], n)], axis=1)
    servers = np.stack([np.zeros(n), rng.integers(1, 3, n), rng.choice([0, 2.5], n)], axis=1)
    n_workers = rng.integers(1, 5, n)
    n_ps = rng.integers(1, 4, n) * rng.integers(0, 2, n)
    grows = rng.integers(0, 2, n)
    steps = rng.integers(1, 20, n) * 60.0
    jobs = Jobs.of(
        arrival_s=np.where(rng.random(n) < 0.4, 0.0, rng.integers(0, 20, n) * 45.0),
        total_steps=steps,
        true_steps=steps if right else steps * rng.choice([0.5, 1, 1, 2.5], n),
        duration_s=steps * rng.choice([0.5, 1, 2], n),
        model=[f"model{k}" for k in rng.integers(0, 3, n)],
        n_workers=n_workers,
        n_ps=n_ps,
        max_workers=n_workers + grows * rng.integers(0, 4, n),
        max_ps=n_ps + grows * (n_ps > 0) * rng.integers(0, 4, n),
        worker_demand=workers,
        ps_demand=servers,
        weight=rng.choice([1.0, 1.0, 2.0], n),
        name="random",
    )
    return _with_small_gangs(jobs, cluster, runs_on)


def _with_small_gangs(jobs: Jobs, cluster: Cluster, runs_on: Bools) -> Jobs:
    """Return the jobs with a gang of one small worker (and PS) where one does not fit the empty cluster."""
    unfit = np.array([not fits_empty(jobs, cluster, runs_on, number) for number in range(len(jobs))], dtype=np.bool_)
    gpus = jobs.worker_demand[:, GPUS]
    small = np.stack([np.minimum(gpus, 1), np.ones(len(jobs)), np.zeros(len(jobs))], axis=1)
    return jobs.with_columns(
        worker_demand=np.where(unfit[:, None], small, jobs.worker_demand),
        n_workers=np.where(unfit, 1, jobs.n_workers).astype(np.int32),
        n_ps=np.where(unfit, np.minimum(jobs.n_ps, 1), jobs.n_ps).astype(np.int32),
    )


def empty_snapshot(jobs: Jobs, *, cluster: Cluster, runs_on: Bools) -> Snapshot:
    """Return the moment at which all jobs have arrived and none runs."""
    return _arrived(jobs, cluster, runs_on).snapshot()


def _arrived(jobs: Jobs, cluster: Cluster, runs_on: Bools) -> DecisionScene:
    rows = events(len(jobs))
    rows["time_s"], rows["kind"], rows["job"] = jobs.arrival_s, Kind.ARRIVED, np.arange(len(jobs))
    return DecisionScene(jobs, cluster, runs_on, rows, float(jobs.arrival_s.max()), 0)


def fits_empty(jobs: Jobs, cluster: Cluster, runs_on: Bools, number: int) -> bool:
    """Return whether first fit finds a place for a job's gang on the empty cluster."""
    snapshot = empty_snapshot(jobs, cluster=cluster, runs_on=runs_on)
    return len(FirstFit().place(snapshot, requested_gangs(jobs, [number]))) > 0


def random_scene(
    rng: np.random.Generator,
    *,
    n_machines: int = 4,
    n_types: int = 2,
    n_jobs: int = 8,
    n_decisions: int = 5,
    pairs: bool = False,
    kinds: bool = False,
) -> DecisionScene:
    """Return a scene after some random decisions (fewer, if all jobs complete before); with `pairs` some jobs share.

    `kinds`: some GPUs are slices of MIG or belong to one task, and jobs ask for slices, types and memory.
    """
    cluster = random_cluster(rng, n_machines=n_machines, n_types=n_types, kinds=kinds)
    runs_on = random_runs_on(rng, cluster=cluster, n_jobs=n_jobs)
    jobs = random_jobs(rng, cluster=cluster, runs_on=np.ones_like(runs_on) if kinds else runs_on)
    if kinds:
        jobs = with_demands(rng, jobs, cluster=cluster)
        runs_on = may_run_on(jobs, cluster)
        jobs = _with_small_gangs(jobs, cluster, runs_on)
    simulator = Simulator(jobs, cluster, speed=SharedSpeeds(jobs, cluster))
    session, chaos = Session(simulator, runs_on=runs_on), Chaos(rng, pairs=pairs)
    for _ in range(n_decisions):
        before = len(session.log), session.now_s, session.n_decisions
        session.step(chaos.schedule(session.snapshot()))
        if session.done:
            n_rows, now_s, number = before
            return DecisionScene(jobs, cluster, runs_on, session.log.rows[:n_rows].copy(), now_s, number)
    return DecisionScene(jobs, cluster, runs_on, session.log.rows.copy(), session.now_s, session.n_decisions)


def random_scenes(*, n: int = 10, seed: int = 0, pairs: bool = False, kinds: bool = False) -> Iterator[DecisionScene]:
    """Return scenes of growing size, from one machine and one job on; `pairs`, `kinds`: as of `random_scene`."""
    for i in range(n):
        yield deepcopy(_nth_scene(seed, i, pairs, kinds))  # a scheduler may spoil the arrays of its own


@lru_cache(maxsize=256)  # all schedulers of a session of tests are shown the same ones
def _nth_scene(seed: int, i: int, pairs: bool, kinds: bool) -> DecisionScene:
    rng = np.random.default_rng([seed, i])
    sizes = {"n_machines": 1 + i % 5, "n_types": 1 + i % 3, "n_jobs": 1 + i, "n_decisions": int(rng.integers(8))}
    return random_scene(rng, **sizes, pairs=pairs, kinds=kinds)

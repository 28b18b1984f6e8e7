"""The session's side of `labkit.experiment.classic`: which runs are plain, and one stretch of one."""

from __future__ import annotations

import math
import time
from typing import Final, Protocol, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import EVENT, LARGE, Events, copied
from labkit.core.hosting import PREFER, SPLIT, HostRules
from labkit.core.ledger import Ledger
from labkit.core.protocols import Backend, Scheduler
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import ScratchBook, empty_book, fits_one_type
from labkit.experiment.cadence import Cadence
from labkit.experiment.classic.loop import stretch
from labkit.experiment.classic.nouns import (
    FULL,
    N_DECISIONS,
    N_ROWS,
    QUIET,
    STANDS,
    UNSURE,
    Belief,
    Scratch,
    Trace,
    Truth,
)
from labkit.experiment.classic.order import TIE, empty_order, empty_queue
from labkit.experiment.classic.room import empty_room
from labkit.kernels.arrays import distinct_rows
from labkit.placers.kernels import MANY_KINDS
from labkit.placers.rules import shares_of
from labkit.schedulers.rule import Rule, may_move, rule_of
from labkit.simulator import Simulator

MOST_KINDS: Final = MANY_KINDS
"""As many kinds of gangs without room as `labkit.placers.kernels` remembers."""
MOST_TASKS: Final = 1 << 20
STEADY: Final = 1e-12
"""A job whose speed times its declared seconds is nearer than this to its steps has a second less left each second."""
ROWS: Final = 1 << 15
"""Events after which a stretch ends, so that observers hear of it."""


class SteppedRun(Protocol):
    """What stretches need of a run in progress, as `labkit.experiment.session.Session` has it."""

    backend: Backend
    cadence: Cadence
    ledger: Ledger
    runs_on: Bools
    n_quiet: int
    patience: int

    def went(self, happened: Events, *, n_decisions: int, n_quiet: int, took_s: float, stands: bool) -> None:
        """Take note of a stretch that the ledger knows of already."""


class Stretches:
    """Stretches of one run under one scheduler in compiled code; `of` returns None where the run is not plain."""

    def __init__(self, session: SteppedRun, rule: Rule, trace: Trace, overheads: Floats) -> None:
        self._session, self._rule, self._trace, self._overheads = session, rule, trace, overheads
        self._moves = rule.preempts and may_move(session.backend.cluster, rule.moves)
        n_jobs, (n_sets, n_groups) = len(trace.kind), trace.hosts.shape
        n_parts, n_resources = trace.budget.shape
        self._space = empty_room(n_groups, n_resources, n_sets, session.ledger.book.n_devices)
        self._queue = empty_queue(trace.kind, len(trace.n_workers))
        most = _most_tasks(trace, session)
        ordered, at_once = (n_jobs, min(n_jobs, most)) if rule.preempts else (0, 0)
        self._order = empty_order(ordered, at_once, n_parts, n_resources)
        self._work = _work(
            n_jobs, n_tasks=most + 2 * n_groups, shape=trace.budget.shape, n_devices=session.ledger.book.n_devices
        )  # fmt: skip
        self._out = np.empty(ROWS + len(self._work.job) + 4 * n_jobs + 8, EVENT)

    @classmethod
    def of(cls, session: SteppedRun, scheduler: Scheduler) -> Self | None:
        """Return the runner of stretches of a session under a scheduler; None: it runs step by step."""
        rule = rule_of(scheduler, session.backend.cluster)
        backend, cadence = session.backend, session.cadence
        if rule is None or not cadence.events or cadence.gap_s or cadence.when_empty or type(backend) is not Simulator:
            return None
        trace = _trace(session)
        overheads = backend.plain_overheads()
        if trace is None or overheads is None or session.ledger.some_at_home or not session.ledger.up.all():
            return None
        if len(trace.budget) > 1:
            named = session.ledger.book.n_devices > 0 and rule.preempts and not may_move(backend.cluster, rule.moves)
            if named or getattr(scheduler, "over_partitions", False):
                return None
        return cls(session, rule, trace, overheads)

    def go(self, until_s: float) -> bool:
        """Run until `until_s`, or as far as it is plain; return False where the next decision is not."""
        session, ledger = self._session, self._session.ledger
        backend = session.backend
        assert isinstance(backend, Simulator)
        active = ledger.active()
        if not len(active) or _shared(session, active):
            return False
        began = time.perf_counter()
        rule, cadence, numbers = self._rule, session.cadence, self._work.numbers
        numbers[QUIET], numbers[N_DECISIONS] = session.n_quiet, 0
        truth = Truth(**backend.columns(n_tasks=2 * len(self._work.job)), overheads=self._overheads)
        mind = Belief(**ledger.columns(n_tasks=2 * len(self._work.job)))
        patience = 0 if math.isinf(cadence.slot_s) else session.patience
        code, now_s = stretch(
            truth, mind, self._trace, self._space, self._queue, self._order, self._work, rule.key, rule.threshold_gpu_s,
            rule.preempts, rule.backfill, self._moves, cadence.slot_s, patience, backend.now_s, float(until_s), ROWS,
            active, self._out,
        )  # fmt: skip
        backend.has_moved(now_s)
        n_decisions = int(numbers[N_DECISIONS])
        session.went(
            self._written(int(numbers[N_ROWS])), n_decisions=n_decisions, n_quiet=int(numbers[QUIET]),
            took_s=time.perf_counter() - began, stands=code == STANDS,
        )  # fmt: skip
        return bool(code != UNSURE and (n_decisions or code != FULL))

    def _written(self, n: int) -> Events:
        """Return the n events of a stretch: many of them with their memory, few as a copy."""
        out = self._out
        if n < LARGE:
            return copied(out[:n])
        self._out = np.empty(len(out), EVENT)
        out.resize(n, refcheck=False)  # in place: no view of it exists
        return out


def _shared(session: SteppedRun, active: Ints) -> bool:
    """Return whether a job shares its GPUs, or was given other amounts than it declared."""
    allocations = session.ledger.book.allocations
    return bool((allocations["partner"][active] >= 0).any() or allocations["n_sized"][active].any())


def _trace(session: SteppedRun) -> Trace | None:
    """Return the constants of a run, or None where its jobs are not plain."""
    jobs, cluster = session.backend.jobs, session.backend.cluster
    gang_speeds = getattr(getattr(session.backend, "speed", None), "gang_speeds", None)
    if gang_speeds is None or not _of_whole_workers(session):
        return None
    speed, duration_s = np.ascontiguousarray(gang_speeds()), np.ascontiguousarray(jobs.duration_s, np.float64)
    if not (np.isfinite(speed).all() and (speed > 0).all() and np.isfinite(duration_s).all()):
        return None
    demand, runs_on = np.ascontiguousarray(jobs.worker_demand, np.float64), np.ascontiguousarray(session.runs_on)
    hosting = session.ledger.hosting
    if not _plain(hosting, cluster):
        return None
    row, spread = (np.zeros(len(jobs), np.int32),) * 2 if hosting is None else (hosting.row, hosting.spread)
    first, kind = distinct_rows(jobs.n_workers, demand, runs_on, row, spread)
    if len(first) > MOST_KINDS:
        return None
    of, worker, lies, n_workers = jobs.declared, demand[first], spread[first], jobs.n_workers[first].astype(np.int64)
    book = empty_book(cluster, n_devices=session.ledger.book.n_devices)
    open_to = np.ones((1, cluster.n_groups), np.bool_) if hosting is None else hosting.open
    hosts, tries = _tries(cluster, book, open_to[row[first]], runs_on[first], worker, n_workers)
    parts = _parts(hosting, cluster)
    return Trace(
        arrival_s=np.ascontiguousarray(jobs.arrival_s, np.float64).copy(),
        duration_s=duration_s.copy(),
        total_steps=np.array(of.total_steps, np.float64),
        true_steps=np.array(jobs.true_steps, np.float64),
        speed=speed,
        kind=kind,
        n_workers=n_workers,
        worker=worker,
        gang=np.array(of.gang_demand[first], np.float64),
        hosts=hosts,
        tries=tries,
        shares=_shares(cluster, book.capacity, hosts, tries, worker, n_workers, lies),
        splits=np.isin(lies, (SPLIT, PREFER)),
        part=hosting.part_of(row[first]) if hosting is not None else np.zeros(len(first), np.int32),
        groups=parts,
        budget=np.array([cluster.capacity[part].sum(axis=0) for part in parts]),
        whole=_whole(worker) and _whole(cluster.capacity),
        tie=TIE if np.allclose(duration_s * speed, of.total_steps, rtol=STEADY, atol=0.0) else math.inf,
    )


def _of_whole_workers(session: SteppedRun) -> bool:
    """Return whether all jobs are workers with GPUs."""
    jobs = session.backend.jobs
    return len(jobs) > 0 and not jobs.n_ps.any() and bool((jobs.worker_demand[:, GPUS] > 0).all())


def _parts(hosting: HostRules | None, cluster: Cluster) -> Bools:
    """Return the device groups of each part of the cluster that is asked by itself, (parts, G)."""
    divided = hosting is not None and len(hosting.parts) > 1
    return np.array(hosting.parts) if hosting is not None and divided else np.ones((1, cluster.n_groups), np.bool_)


def _plain(hosting: HostRules | None, cluster: Cluster) -> bool:
    """Return whether kernels know the rules about machines."""
    if hosting is None:
        return True
    several_groups = cluster.n_groups > cluster.n_machines
    return math.isinf(hosting.wait_s) and not (hosting.spread.any() and several_groups) and not hosting.zone.any()


def _tries(
    cluster: Cluster, book: ScratchBook, open_to: Bools, runs_on: Bools, worker: Floats, n_workers: Ints
) -> tuple[Bools, Ints]:  # fmt: skip
    """Return the sets of groups on which gangs are tried, (C, G), and those of each kind in order, (K, T + 1)."""
    n_types = len(cluster.device_types)
    sets: dict[bytes, Bools] = {}
    tries = np.full((len(worker), n_types + 1), -1, np.int32)
    for k in range(len(worker)):
        book.open[:] = open_to[k]
        mine = [open_to[k] & (cluster.group_type == t) for t in np.flatnonzero(runs_on[k])]
        if n_types > 1 and not fits_one_type(book, runs_on[k], worker[k], n_workers[k]):
            mine.append(open_to[k] & runs_on[k][cluster.group_type])
        for s, groups in enumerate(mine):
            sets.setdefault(groups.tobytes(), groups)
            tries[k, s] = list(sets).index(groups.tobytes())
    return np.array(list(sets.values())), tries


def _shares(
    cluster: Cluster, capacity: Floats, hosts: Bools, tries: Ints, worker: Floats, n_workers: Ints, spread: Ints
) -> Ints:  # fmt: skip
    """Return how many workers gangs have on each machine of each set where they lie on few, (K, S, W)."""
    each: dict[tuple[int, int], Ints] = {}
    of_group = cluster.group_machine.astype(np.int32)
    for k, s in np.argwhere(tries >= 0).tolist():
        n, on = int(n_workers[k]), int(spread[k])
        if on > 0:
            each[k, s] = np.array([n // on + (i < n % on) for i in range(on)], np.int32)
        elif on < 0:
            each[k, s] = shares_of(capacity, hosts[tries[k, s]], of_group, cluster.n_machines, worker[k], n)
    shares = np.zeros((*tries.shape, max(map(len, each.values()), default=0)), np.int32)
    for (k, s), mine in each.items():
        shares[k, s, : len(mine)] = mine
    return shares


def _whole(amounts: Floats) -> bool:
    return bool((amounts == np.floor(amounts)).all() and amounts.max(initial=0.0) < 2**40)


def _most_tasks(trace: Trace, session: SteppedRun) -> int:
    """Return how many tasks the cluster holds at most: each has some part of a GPU."""
    offered = session.backend.cluster.capacity[:, GPUS] / trace.worker[:, GPUS].min()
    return int(min(offered.sum() + len(offered), MOST_TASKS))


def _work(n_jobs: int, *, n_tasks: int, shape: tuple[int, int], n_devices: int) -> Scratch:
    by_gpu, n_resources = int(n_devices > 0), shape[1]
    return Scratch(
        numbers=np.zeros(9, np.int64),
        requested=np.zeros(shape),
        ends_s=np.empty(n_jobs + 1),
        ends=np.empty(n_jobs + 1, np.int32),
        set_jobs=np.empty(n_jobs, np.int32),
        job=np.empty(n_tasks, np.int32),
        role=np.empty(n_tasks, np.int8),
        group=np.empty(n_tasks, np.int32),
        count=np.empty(n_tasks, np.int32),
        start=np.empty(n_jobs, np.int32),
        stop=np.empty(n_jobs, np.int32),
        changed=np.empty(n_jobs, np.int32),
        speeds=np.empty(n_jobs),
        left=np.empty(n_resources),
        missing=np.empty(n_resources),
        nothing=np.empty(0, np.float32),
        devices=np.empty(by_gpu * n_tasks, np.int32),
        taken=np.zeros((by_gpu * n_tasks, n_devices), np.int32),
        done=np.zeros(by_gpu * n_tasks, np.bool_),
        mate=np.full(by_gpu * n_jobs, -1, np.int32),
        rows=np.arange(by_gpu * n_tasks, dtype=np.int32),
    )

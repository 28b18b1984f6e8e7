"""Synergy: GPUs as asked; cores and memory by what they do for each job, and never less than the share of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.later_snapshot import SizedSnapshot
from labkit.core.life import Context
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import kernel
from labkit.placers import ByNetwork, Pack
from labkit.schedulers.base import capacity, choose, place, run_in_order
from labkit.schedulers.recall import Recall

ORDERS: Final = ("fifo", "srtf", "las", "ftf")
SIZED: Final = (CPUS, MEMORY_GB)
CORES: Final = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, 56, 64.0])
"""Cores of a worker with which its speed is measured, beside the share of its GPUs."""
MEMORY: Final = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
"""Memory of a worker with which its speed is measured, in shares of its GPUs."""
NEAR: Final = 1e-6
GRAIN: Final = 64.0
"""Amounts are multiples of 1/64 of a core or GB, which single precision holds exactly."""


@dataclass(eq=False)
class Synergy:
    """Run the first jobs of an order; divide cores and memory by what they gain, none below the share of its GPUs [1]_.

    A job's fair share on a machine is that of its GPUs in the machine's cores and memory; its best demand is the least
    with which it is as fast as it can be. Jobs that run have at least what is less of the two, so that none is slower
    than with fair shares. What is left goes to those that gain from more, most GPUs first. A job that starts goes,
    most GPUs first, where its best demand fits, else where its fair share fits, else where it fits once others have no
    more than theirs. Speeds over cores and memory are measured alone, before a job starts, on each device type, at no
    cost in time. Where they do not depend on cores or memory, jobs have what they declared; so have jobs without GPUs,
    and parameter servers.

    Attributes
    ----------
    order : str
        "fifo" (arrival), "srtf" (least declared time left), "las" (least time run), or "ftf": largest (age + time left)
        / duration, as Themis has it.
    tune : bool
        False: each job has its fair share and no more: the baseline.
    squeeze : bool
        False: a job starts with its best demand or not at all, and keeps it: Synergy-GREEDY.
    saturated : float
        Part of its highest speed at which a job counts as being as fast as it can be.
    round_s : float
        Seconds between two moments at which jobs are preempted; in between, jobs start on what becomes free.
    placer : Placer
        Where gangs go.

    Notes
    -----
    Jobs that continue keep their machines: they are resized, which costs nothing. The published simulator packs all
    anew in each round, at no cost; tried here, that gained 1% at most, and lost 4% and more where a restart takes 30 s.
    There a squeezed job has its fair share exactly, here a part of what is left, too. A job that does not fit beside
    tasks without GPUs has what it declared, if that is less.

    Read in github.com/msr-fiddle/synergy (MIT), 1bb2bed; nothing is copied.

    References
    ----------
    .. [1] Mohan et al., "Looking beyond GPUs for DNN scheduling on multi-tenant clusters", OSDI 2022, sec. 4.
    """

    knows_types: ClassVar[bool] = False

    order: str = "fifo"
    tune: bool = True
    squeeze: bool = True
    saturated: float = 0.95
    round_s: float = 300.0
    placer: Placer = ByNetwork(otherwise=Pack())
    _context: Context | None = field(default=None, init=False, repr=False)
    _demands: Demands | None = field(default=None, init=False, repr=False)
    _round: Recall[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown("order of synergy", str(self.order), ORDERS)
        if not (0 < self.saturated <= 1 and 0 < self.round_s < np.inf):
            raise InputError(
                f"synergy: saturated is {self.saturated} and round_s {self.round_s}; expected a part, more than 0 and "
                "at most 1, and seconds > 0."
            )
        if not (self.tune or self.squeeze):
            raise InputError("synergy: tune=False and squeeze=False are given; expected one of them at most.")
        self._round = Recall(-1)

    @property
    def quantum_s(self) -> float:
        """A session decides at least this often."""
        return self.round_s

    @property
    def needs_durations(self) -> bool:
        """Whether the order is by declared durations."""
        return self.order in ("srtf", "ftf")

    def begin(self, context: Context) -> None:
        """Forget another run."""
        self._context, self._demands = context, None
        self._round.forget()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and stop, and which are resized."""
        number = int(snapshot.now_s / self.round_s + 1e-9)
        new_round = number > self._round.before(snapshot)
        self._round.keep(number)
        if not len(snapshot.jobs):
            return Placement.nothing()
        demands = self._measured(snapshot)
        order = self._in_order(snapshot, new_round=new_round)
        chosen = choose(order, demands.least.gang_demand, capacity(snapshot), True)
        first = order[chosen]
        largest_first = np.lexsort((-demands.most.worker_demand[first, CPUS], -snapshot.table.gpus[first]))
        order = np.concatenate([first[largest_first], order[~chosen]])
        placer = BestFirst(snapshot, demands, self.placer)
        answer = run_in_order(SizedSnapshot(snapshot, demands.least), order, placer, moves=False)
        return resized(snapshot, answer, demands)

    def _in_order(self, snapshot: Snapshot, *, new_round: bool) -> Ints:
        """Return the active jobs, the most urgent first; within a round, those that run come before the others."""
        jobs = snapshot.jobs
        key = np.zeros(len(jobs))
        if self.order == "srtf":
            key = jobs.remaining_s
        elif self.order == "las":
            key = jobs.attained_gpu_s / np.maximum(snapshot.table.gpus[jobs.number], 1e-9)
        elif self.order == "ftf":
            key = -(snapshot.now_s - jobs.arrival_s + jobs.remaining_s) / jobs.duration_s
        behind = ~jobs.running & (not new_round)
        return jobs.number[np.lexsort((np.nan_to_num(key, nan=np.inf), behind))]

    def _measured(self, snapshot: Snapshot) -> Demands:
        """Return what jobs demand, after those that are new have been measured."""
        demands, table, number = self._demands, snapshot.table, snapshot.jobs.number
        if demands is None or demands.table is not table:
            best = np.full((len(table), len(snapshot.cluster.device_types), len(SIZED)), np.nan)
            demands = Demands(snapshot, best, np.zeros(len(table), np.bool_), tune=self.tune, squeeze=self.squeeze)
        new = number[~demands.known[number]]
        if len(new) and self._context is not None:
            best, known = demands.best.copy(), demands.known.copy()
            known[new] = True
            for job in new[table.worker_demand[new, GPUS] > 0].tolist():
                for kind in np.flatnonzero(snapshot.runs_on[job]).tolist():
                    best[job, kind] = self._best_demand(self._context, demands, job, kind)
            demands = Demands(snapshot, best, known, tune=self.tune, squeeze=self.squeeze)
        self._demands = demands
        return demands

    def _best_demand(self, context: Context, demands: Demands, job: int, kind: int) -> Floats:
        """Return cores and GB of a worker with which a job is as fast as it can be on a type, (2,); NaN: not known."""
        table, of_type = demands.table, context.cluster.group_type == kind
        most = context.cluster.capacity[of_type].max(axis=0, initial=0.0)
        share = floored(table.worker_demand[job, GPUS] * demands.share[of_type].max(axis=0, initial=0.0))
        declared = table.worker_demand[job, MEMORY_GB]
        cores = np.unique(np.append(CORES[most[CPUS] >= CORES], share[0]))
        memory = MEMORY[most[MEMORY_GB] >= MEMORY * share[1]] * share[1]
        memory = np.unique(np.append(memory[memory > declared], declared))

        def speeds(cpus: Floats, memory_gb: Floats) -> Floats:
            n_ps, n = int(table.n_ps[job]), np.full(max(len(cpus), len(memory_gb)), table.n_workers[job])
            return context.measure(job, n_ps, n, 0.0, kind, cpus=cpus, memory_gb=memory_gb)

        fits = np.flatnonzero(speeds(share[:1], memory) > 0)
        if not (share[0] > 0 and len(fits)):
            return np.full(len(SIZED), np.nan)
        best = self._enough(cores, speeds(cores, memory[fits[-1:]]), share[0])
        return np.append(best, self._enough(memory, speeds(best, memory), share[1]))

    def _enough(self, amounts: Floats, speed: Floats, share: float) -> Floats:
        """Return the least of ascending amounts with which a job is as fast as it can be, and as by its share, (1,)."""
        enough = max(self.saturated * speed.max(), speed[amounts <= share].max(initial=0.0))
        return amounts[[int((speed >= enough).argmax())]]


class Demands:
    """What a worker of each job of a run takes of cores and memory: at least, by its share, and at best.

    Parameters
    ----------
    snapshot : Snapshot
        Jobs and machines.
    best : array
        (N, T, 2) best demands on each device type; NaN: not known, or speed does not depend on it.
    known : array of bool
        (N,) jobs that were measured.
    tune, squeeze : bool
        As of `Synergy`.

    Attributes
    ----------
    share : array
        (G, 2) cores and memory of a group for each of its GPUs; 0 where it has none.
    sized : array of bool
        (N,) jobs whose cores are decided; the others have what they declared.
    least, fair, most : Jobs
        The jobs, had each declared what it has at least wherever it runs; its fair share on the machines that have most
        for each GPU, or its best demand if that is less; its best demand.
    """

    def __init__(self, snapshot: Snapshot, best: Floats, known: Bools, *, tune: bool, squeeze: bool) -> None:
        self.table, self.best, self.known, self.tune, self.squeeze = snapshot.table, best, known, tune, squeeze
        offered, self._type = snapshot.cluster.capacity, snapshot.cluster.group_type
        gpus = offered[:, [GPUS]]
        self.share = np.divide(offered[:, SIZED], gpus, out=np.zeros((len(gpus), len(SIZED))), where=gpus > 0)
        self.sized: Bools = np.any(np.isfinite(best).all(axis=2), axis=1)
        declared, of_each = self.table.worker_demand[:, SIZED], self.table.worker_demand[:, [GPUS]]
        with_gpus = self.share[gpus[:, 0] > 0] if gpus.any() else self.share
        poor, rich = floored(of_each * with_gpus.min(axis=0)), floored(of_each * with_gpus.max(axis=0))
        least, fair, most = np.minimum(declared, poor), rich, rich
        if tune:
            most = np.nan_to_num(best, nan=0.0).max(axis=1, initial=0.0)
            least = np.minimum(least, np.nan_to_num(best, nan=np.inf).min(axis=1, initial=np.inf))
            least, fair = (least, np.minimum(rich, most)) if squeeze else (most, most)
        self.least, self.fair, self.most = map(self._with, (least, fair, most))

    def _with(self, amounts: Floats) -> Jobs:
        """Return the jobs, had each that is sized declared these amounts, (N, 2): cores > 0, and no less memory."""
        declared = self.table.worker_demand
        demand = declared.copy()
        demand[:, CPUS] = np.where(self.sized & (amounts[:, 0] > 0), amounts[:, 0], declared[:, CPUS])
        demand[:, MEMORY_GB] = np.where(
            self.sized, np.maximum(amounts[:, 1], declared[:, MEMORY_GB]), declared[:, MEMORY_GB]
        )
        return self.table.with_workers_of(demand)

    def least_of(self, job: Ints, role: Ints) -> Floats:
        """Return the least cores and memory of each task of some rows, (P, 2)."""
        return np.asarray(demand_of(self.least, job, role)[:, SIZED])

    def given(self, amounts: Floats, job: Ints, role: Ints) -> Amounts:
        """Return amounts of rows, (P, 2), as a placement has them: NaN where they are what was declared.

        Each column lies in one piece, as kernels expect it.
        """
        declared = demand_of(self.table, job, role)[:, SIZED]
        return np.where(amounts == declared, np.nan, floored(amounts)).astype(np.float32, order="F")

    def raised(self, left: Floats, job: Ints, role: Ints, group: Ints, count: Ints) -> Floats:
        """Return cores and memory of each task of some rows, (P, 2), the rows of a job next to each other.

        Each gets its least, then up to its fair share or best demand, then up to its best demand, most GPUs first.
        `left` (G, R + D) is what is free beside them if each has its least; what they have more is taken out of it.
        """
        has = self.least_of(job, role)
        sized = (self.sized[job] & (role == Role.WORKER))[:, None]
        begins = np.flatnonzero(np.diff(job, prepend=-1))
        order = np.lexsort((self.most.worker_demand[job[begins], CPUS], -self.table.gpus[job[begins]]))
        fair = floored(self.table.worker_demand[job][:, [GPUS]] * self.share[group])
        best = self.best[job, self._type[group]]
        most = np.where(np.isnan(best), fair, best) if self.tune else fair
        for target, together in ((np.minimum(fair, most), False), (most, True)):
            more = np.where(sized, np.maximum(target - has, 0.0), 0.0)
            has = has + raise_in_order(order, np.append(begins, len(job)), group, count, more, left, together)
        return has


def floored(amounts: Floats) -> Floats:
    """Return amounts rounded down to what single precision holds exactly."""
    return np.asarray(np.floor(amounts * GRAIN + NEAR) / GRAIN)


@kernel
def raise_in_order(
    order: Ints, ends: Ints, group: Ints, count: Ints, more: Floats, left: Floats, together: bool
) -> Floats:
    """Return how much more each task of some rows is given, (P, 2), at most `more`, as far as there is some left.

    Rows of job i are `ends[i]` to `ends[i + 1]`; the first jobs of the order come first. `together`: tasks of a job
    are given the same.
    """
    given = np.zeros_like(more)
    for i in order:
        for r in range(more.shape[1]):
            least = np.inf
            for turn in range(2):
                for p in range(ends[i], ends[i + 1]):
                    if more[p, r] <= 0:
                        continue
                    n = 0
                    for q in range(ends[i], ends[i + 1]):
                        n += count[q] if group[q] == group[p] and more[q, r] > 0 and given[q, r] == 0 else 0
                    room = min(more[p, r], max(left[group[p], r + 1], 0.0) / max(n, 1))
                    room = np.floor(room * GRAIN + NEAR) / GRAIN
                    if turn == 0:
                        least = min(least, room)
                    else:
                        given[p, r] = least if together else room
                        left[group[p], r + 1] -= count[p] * given[p, r]
    return given


@dataclass(frozen=True, eq=False, slots=True)
class BestFirst:
    """Place gangs where their best demand fits, then where their fair share does, then where others are squeezed.

    Where more gangs find room if all have the least from the beginning, they are placed so.
    """

    now: Snapshot
    demands: Demands
    placer: Placer

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go, with the least for each; those that run come after the others."""
        answer = self._placed(snapshot, gangs, strict)
        given = self.demands.given(self.demands.least_of(answer.job, answer.role), answer.job, answer.role)
        return replace(answer, cpus=given[:, 0], memory_gb=given[:, 1])

    def _placed(self, snapshot: Snapshot, gangs: Gangs, strict: bool) -> Placement:
        demands, left, runs = self.demands, snapshot.left_without(gangs.named), snapshot.holds(gangs.job)
        least = SizedSnapshot(snapshot, demands.least, left=left)
        chooses = demands.tune and demands.squeeze and demands.sized[gangs.job].any()
        # gangs that run and have to move come first, and parts of GPUs have books of their own: no choice then
        if not chooses or runs[0] or left.shape[1] > demands.least.worker_demand.shape[1]:
            return place(self.placer, least, gangs, strict=strict)
        beside, used = left.copy(), left.copy()
        demands.raised(used, *rows_of(self.now, without=gangs.named))
        parts, todo = [], gangs.take(np.flatnonzero(~runs))
        for jobs, free in ((demands.most, used), (demands.fair, used), (demands.least, beside)):
            if len(todo):
                answer = place(self.placer, SizedSnapshot(snapshot, jobs, left=free), todo)
                parts.append(answer)
                take_out(used, answer, jobs)
                take_out(beside, answer, demands.least)
                todo = todo.take(np.flatnonzero(~np.isin(todo.job, answer.job)))
        if len(todo):
            other = place(self.placer, least, gangs)
            if np.isin(gangs.job[~runs], other.job).sum() > (~runs).sum() - len(todo):
                return other
        running = gangs.take(np.flatnonzero(runs))
        parts.append(place(self.placer, SizedSnapshot(snapshot, demands.least, left=beside), running))
        return Placement.joined(parts)


def demand_of(jobs: Jobs, job: Ints, role: Ints) -> Floats:
    """Return what each task of some rows takes, (P, R), if it has what was declared."""
    return np.where((role == Role.WORKER)[:, None], jobs.worker_demand[job], jobs.ps_demand[job])


def rows_of(snapshot: Snapshot, *, without: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return job, role, group and count, (P,) each, of the tasks of all running jobs but some."""
    jobs = snapshot.jobs.number[snapshot.jobs.running]
    jobs = jobs[~np.isin(jobs, without)]
    first, role, group, count = snapshot.tasks_of(jobs)
    return np.repeat(jobs, np.diff(first)), role, group, count


def take_out(left: Floats, placement: Placement, jobs: Jobs) -> None:
    """Take the tasks of a placement, with the demands of some jobs, out of what is left (G, R)."""
    np.subtract.at(left, placement.group, placement.count[:, None] * demand_of(jobs, placement.job, placement.role))


def resized(snapshot: Snapshot, answer: Placement, demands: Demands) -> Placement:
    """Return a placement with cores and memory for its tasks, and for those of other running jobs where they change."""
    if not (demands.squeeze and demands.sized[snapshot.jobs.number].any()):
        return answer
    stay = rows_of(snapshot, without=answer.set_jobs)
    n, rows = len(stay[0]), (answer.job, answer.role, answer.group, answer.count)
    job, role, group, count = (np.concatenate(two) for two in zip(stay, rows, strict=True))
    left = snapshot.free_without(snapshot.jobs.number[snapshot.jobs.running])
    np.subtract.at(left, group, count[:, None] * demand_of(demands.least, job, role))
    has = demands.raised(left, job, role, group, count)
    given = demands.given(has, job, role)
    answer = replace(answer, cpus=given[n:, 0], memory_gb=given[n:, 1])
    running = snapshot.running(stay[0][np.flatnonzero(np.diff(stay[0], prepend=-1))])
    declared = demand_of(demands.table, *stay[:2])[:, SIZED]
    now = np.column_stack([running.cpus, running.memory_gb]) if len(running.cpus) else declared
    alone = snapshot.allocations["partner"][stay[0]] < 0
    other = np.isin(stay[0], stay[0][alone & (np.abs(has[:n] - now) > NEAR).any(axis=1)])
    if not other.any():
        return answer
    mine = [column[other] for column in stay]
    amounts = Placement.of(
        np.unique(mine[0]), job=mine[0], role=mine[1], group=mine[2], count=mine[3], cpus=given[:n][other, 0],
        memory_gb=given[:n][other, 1],
    )  # fmt: skip
    return Placement.joined([answer, replace(amounts, devices=snapshot.devices_of(running.job)[other])])

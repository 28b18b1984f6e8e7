"""From plans to tasks in device groups: what is free while a decision is built, and the placement that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.resources import CPUS, MEMORY_GB, Floats, Ints
from labkit.core.running import Running
from labkit.core.scratch_book import MANY, SLACK, ScratchBook, allocate, restore, room, usable_rooms
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import fill_with
from labkit.schedulers.dlrover.plan import Plan

Rows = tuple[Ints, Floats]
"""Tasks of a job: role, group and count, (P, 3), and cores and GB of each task, (P, 2)."""

_NOTHING: Final[Rows] = (np.empty((0, 3), np.int32), np.empty((0, 2)))
_WORKER: Final = int(Role.WORKER)
_PS: Final = int(Role.PS)


@dataclass(eq=False)
class CarriedRoom:
    """The jobs that are given other tasks while a decision is built; what is free, repairs and reasons are a trial's.

    `snapshot`: what is known now; it stays as it is; `running`: tasks of the jobs that may be changed, as
    `snapshot.running` has them.
    """

    snapshot: Snapshot
    running: Running
    trial: Trial = field(init=False)
    """What is free; its own tasks stay as they are."""
    _at: dict[int, int] = field(init=False)
    _changed: dict[int, Rows] = field(default_factory=dict, init=False)
    _others: list[Placement] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.trial = Trial(self.snapshot)
        self._demand = self.snapshot.demand
        running = self.running
        self._at = {job: i for i, job in enumerate(running.job.tolist())}
        self._first: list[int] = running.first.tolist()
        self._tasks: Ints = np.column_stack([running.role, running.group, running.count]).astype(np.int32)
        if len(running.cpus):
            self._amounts: Floats = np.column_stack([running.cpus, running.memory_gb]).astype(np.float64)
        else:
            declared = self._demand[running.role, running.job[running.row_job()]]
            self._amounts = np.column_stack([declared[:, CPUS], declared[:, MEMORY_GB]])

    def take(self, placement: Placement) -> None:
        """Let other jobs, which wait, have the tasks of a placement, as they declare them."""
        demand = self._demand[placement.role, placement.job]
        for group, count, each in zip(placement.group.tolist(), placement.count.tolist(), demand, strict=True):
            allocate(self.trial.book, each, group, count)
        self._others.append(placement)

    def rows(self, job: int) -> Rows:
        """Return the tasks that a job has, with what each takes; none for one that waits."""
        return self._changed.get(job) or self._tasks_before(job)

    def _tasks_before(self, job: int) -> Rows:
        """Return the tasks that a job has before this decision."""
        i = self._at.get(job)
        if i is None:
            return _NOTHING
        mine = slice(self._first[i], self._first[i + 1])
        return self._tasks[mine], self._amounts[mine]

    def settle(self, job: int, plan: Plan, *, whole: bool = False) -> Plan | None:
        """Give a job the tasks of a plan and return what it got; None: nothing, and all is as it was.

        Tasks that stay as large stay where they are; groups with the most room come first for others, servers before
        workers, or the other way round where that does not do. Where not all workers fit it gets fewer, unless the plan
        must be given as a whole.
        """
        kinds, amounts = self._wanted(job, plan)
        declared = np.ascontiguousarray(self._demand[:, job])
        given = _carry(self.trial.book, *self.rows(job), kinds, amounts, declared, whole)
        if not len(given[0]):
            return None
        self._changed[job] = given[:2]
        return plan if given[2] == plan.n_workers else replace(plan, n_workers=given[2])

    def holds_one_more(self, job: int, cores: float) -> bool:
        """Return whether there is room for one more worker of a job, with so many cores."""
        demand = self._demand[Role.WORKER, job].copy()
        demand[CPUS] = cores
        return bool(usable_rooms(self.trial.book, demand, self.trial.runs_on(job)).any())

    def resize(self, job: int, role: Role, cores: Mapping[int, float]) -> bool:
        """Give some tasks of a job, by number, other cores where they are, and return whether these were there."""
        rows, amounts = self.rows(job)
        first = np.cumsum(np.where(rows[:, 0] == role, rows[:, 2], 0)) - rows[:, 2]
        new: list[tuple[int, int, int]] = []
        sized: list[tuple[float, float]] = []
        more = np.zeros(len(self.trial.free))
        for (its_role, group, count), (has, gb), start in zip(
            rows.tolist(), amounts.tolist(), first.tolist(), strict=True
        ):
            each = [cores.get(start + k, has) if its_role == role else has for k in range(count)]
            more[group] += sum(each) - count * has
            for given, alike in groupby(each):
                new.append((its_role, group, len(list(alike))))
                sized.append((given, gb))
        if not self._take_more(CPUS, more):
            return False
        self._changed[job] = np.array(new, np.int32), np.array(sized)
        return True

    def remember(self, job: int, gb: float) -> bool:
        """Give each server of a job other memory where it is, and return whether it was there."""
        rows, amounts = self.rows(job)
        amounts = amounts.copy()
        mine = rows[:, 0] == Role.PS
        more = np.zeros(len(self.trial.free))
        np.add.at(more, rows[mine, 1], rows[mine, 2] * (gb - amounts[mine, 1]))
        if not self._take_more(MEMORY_GB, more):
            return False
        amounts[mine, 1] = gb
        self._changed[job] = rows, amounts
        return True

    def _take_more(self, resource: int, more: Floats) -> bool:
        """Take more of a resource in each group, (G,), or less; return whether it was there."""
        if (self.trial.free[:, resource] - more < -SLACK)[more > 0].any():
            return False
        for group in np.flatnonzero(more).tolist():
            amounts = np.zeros(self.trial.free.shape[1])
            amounts[resource] = more[group]
            allocate(self.trial.book, amounts, group, 1)
        return True

    def placement(self) -> Placement:
        """Return the decision that makes it so."""
        changed = [job for job, rows in self._changed.items() if not self._as_before(job, rows)]
        own = self.trial.placement()
        if changed:
            own = self._of(changed, own)
        return Placement.joined([*self._others, own])

    def _of(self, changed: list[int], answer: Placement) -> Placement:
        """Return the placement of jobs that are given other tasks, with the repairs and reasons of another."""
        rows = np.concatenate([self._changed[job][0] for job in changed])
        owner = np.repeat(np.array(changed, np.int32), [len(self._changed[job][0]) for job in changed])
        amounts = np.concatenate([self._changed[job][1] for job in changed])
        declared = self._demand[rows[:, 0], owner][:, [CPUS, MEMORY_GB]]
        other = np.where(np.abs(amounts - declared) < 1e-6, np.nan, amounts)
        cpus, memory_gb = (None, None) if np.isnan(other).all() else other.T
        return Placement.of(
            changed, job=owner, role=rows[:, 0], group=rows[:, 1], count=rows[:, 2], cpus=cpus, memory_gb=memory_gb,
            repairs=answer.repairs, reasons=answer.reasons,
        )  # fmt: skip

    def _wanted(self, job: int, plan: Plan) -> tuple[Ints, Floats]:
        """Return the tasks of a plan: role and number, (K, 2), cores and GB of each, (K, 2).

        Workers come first; servers are in their order.
        """
        gb = plan.ps_memory_gb or self._demand[Role.PS, job, MEMORY_GB]
        kinds = [(_WORKER, plan.n_workers)]
        amounts = [(plan.worker_cores, self._demand[Role.WORKER, job, MEMORY_GB])]
        done = 0
        for task, cores in plan.extra:
            if task > done:
                kinds.append((_PS, task - done))
                amounts.append((plan.ps_cores, gb))
            kinds.append((_PS, 1))
            amounts.append((cores, gb))
            done = task + 1
        if plan.n_ps > done:
            kinds.append((_PS, plan.n_ps - done))
            amounts.append((plan.ps_cores, gb))
        return np.array(kinds, np.int32), np.array(amounts, np.float64)

    def _as_before(self, job: int, tasks: Rows) -> bool:
        """Return whether a job would have what it has."""
        rows, amounts = self._tasks_before(job)
        if len(rows) != len(tasks[0]) or rows.tobytes() != tasks[0].tobytes():
            return False
        return bool((np.abs(amounts - tasks[1]) < 1e-5).all())


@kernel
def _carry(
    book: ScratchBook, old: Ints, taken: Floats, kinds: Ints, amounts: Floats, declared: Floats, whole: bool
) -> tuple[Ints, Floats, int]:  # fmt: skip
    """Take a job's old tasks away, put new ones in, and return these; none: all is as it was.

    Parameters
    ----------
    old, taken : array
        (P, 3) role, group and count of what it has, and the cores and GB of each such task (P, 2).
    kinds, amounts : array
        (K, 2) role and number of tasks that are wanted, and the cores and GB of each (K, 2).
    declared : array
        (2, R) what a worker and a server take of all else.
    whole : bool
        Whether fewer workers than wanted will not do.

    Returns
    -------
    tuple
        Role, group and count of the new tasks (N, 3), their cores and GB (N, 2), and how many are workers.
    """
    demand, had = _takes(declared, kinds[:, 0], amounts), _takes(declared, old[:, 0], taken)
    held = book.free[old[:, 1]]  # by row: a group that comes twice has the same amounts in both
    for p in range(len(old)):
        allocate(book, had[p], old[p, 1], -old[p, 2])
    put = np.empty((len(old) + kinds[:, 1].sum(), 3), np.int64)  # kind, group and count
    before = np.empty((len(put), book.free.shape[1]))
    left = kinds[:, 1].copy()
    n_stay = _stay(book, old, had, kinds, demand, put, left)
    still, usable = left.copy(), _usable(book, amounts[:, 0].min())
    for backward in (True, False):
        n = n_stay
        fill_with(left, still)
        for i in range(len(kinds)):
            k = len(kinds) - 1 - i if backward else i
            left[k], n = _spread(book, usable, demand[k], k, left[k], put, before, n)
        if _enough(kinds, left, whole):
            return _merged_rows(put[:n], kinds, amounts)
        for i in range(n - 1, n_stay - 1, -1):
            restore(book, put[i, 1], before[i])
    for p in range(len(old)):
        restore(book, old[p, 1], held[p])
    return np.empty((0, 3), np.int32), np.empty((0, 2)), 0


@inner
def _takes(declared: Floats, role: Ints, amounts: Floats) -> Floats:
    """Return what tasks of some roles (K,) take with some cores and GB (K, 2), and else as declared, (K, R)."""
    takes = np.empty((len(role), declared.shape[1]))
    for k in range(len(role)):
        for r in range(declared.shape[1]):
            takes[k, r] = declared[role[k], r]
        takes[k, CPUS], takes[k, MEMORY_GB] = amounts[k, 0], amounts[k, 1]
    return takes


@inner
def _stay(
    book: ScratchBook, old: Ints, had: Floats, kinds: Ints, demand: Floats, put: Ints, left: Ints
) -> int:  # fmt: skip
    """Let tasks that stay as large stay where they are, and return how many rows of `put` that takes."""
    rows = 0
    for p in range(len(old)):
        g = old[p, 1]
        for k in range(len(kinds)):
            if book.up[g] and kinds[k, 0] == old[p, 0] and np.abs(demand[k] - had[p]).max() < 1e-5:
                n = min(left[k], old[p, 2])
                if n > 0:
                    put[rows, 0], put[rows, 1], put[rows, 2] = k, g, n
                    rows += 1
                    left[k] -= n
                    allocate(book, demand[k], g, n)
                break
    return rows


@inner
def _enough(kinds: Ints, left: Ints, whole: bool) -> bool:
    """Return whether all servers found room, and all workers, or one at least where not all are needed."""
    n_workers, missing = 0, 0
    for k in range(len(kinds)):
        if kinds[k, 0] == 0:
            n_workers += kinds[k, 1] - left[k]
            missing += left[k]
        elif left[k]:
            return False
    return n_workers > 0 and not (whole and missing > 0)


@inner
def _spread(
    book: ScratchBook, usable: Ints, demand: Floats, kind: int, n: int, put: Ints, before: Floats, rows: int
) -> tuple[int, int]:
    """Put up to n tasks where there is the most room; return how many found none, and the rows of `put` in use.

    `before` has what was free of a row's group until then. No group has more room than the one before it had, and those
    ahead of that one have less: one with as much may come next, without a search.
    """
    i, most = -1, MANY
    while n > 0:
        i = _as_roomy(book.free, usable, demand, i + 1, most) if most < MANY else -1
        if i < 0:
            i, most = _roomiest(book.free, usable, demand)
        if i < 0:
            break
        at, some = usable[i], min(n, most)
        put[rows, 0], put[rows, 1], put[rows, 2] = kind, at, some
        before[rows] = book.free[at]
        rows += 1
        allocate(book, demand, at, some)
        n -= some
    return n, rows


@inner
def _usable(book: ScratchBook, cores: float) -> Ints:
    """Return the groups that are up and have so many cores free."""
    groups, n = np.empty(len(book.free), np.int32), 0
    for g in range(len(book.free)):
        groups[n] = g
        n += book.up[g] and book.free[g, CPUS] + SLACK >= cores
    return groups[:n]


@inner
def _as_roomy(free: Floats, usable: Ints, demand: Floats, start: int, n: int) -> int:
    """Return the first of some groups from `start` on that holds n tasks; -1: none."""
    for i in range(start, len(usable)):
        g = usable[i]
        if free[g, CPUS] + SLACK >= n * demand[CPUS] and room(free[g], demand, MANY) >= n:
            return i
    return -1


@inner
def _roomiest(free: Floats, usable: Ints, demand: Floats) -> tuple[int, int]:
    """Return which of some groups holds the most tasks, and how many; -1: none holds any."""
    most, at = 0, -1
    for i in range(len(usable)):
        g = usable[i]
        if free[g, CPUS] + SLACK >= (most + 1) * demand[CPUS]:
            here = room(free[g], demand, MANY)
            if here > most:
                most, at = here, i
    return at, most


@inner
def _comes_before(put: Ints, i: int, j: int) -> bool:
    """Return whether a row comes before another one: by kind, and then by group."""
    before: bool = put[i, 0] < put[j, 0] or (put[i, 0] == put[j, 0] and put[i, 1] < put[j, 1])
    return before


@inner
def _merged_rows(put: Ints, kinds: Ints, amounts: Floats) -> tuple[Ints, Floats, int]:
    """Return what was put as rows by kind and group, each group once, their cores and GB, and the number of workers."""
    order = np.arange(len(put))
    for i in range(1, len(put)):  # few, and nearly in order
        j = i
        while j and _comes_before(put, i, order[j - 1]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    rows, sized = np.empty((len(put), 3), np.int32), np.empty((len(put), 2))
    n, n_workers, kind = 0, 0, -1
    for at in order:
        k, g, count = put[at, 0], put[at, 1], put[at, 2]
        if n and k == kind and rows[n - 1, 1] == g:
            rows[n - 1, 2] += count
        else:
            rows[n, 0], rows[n, 1], rows[n, 2] = kinds[k, 0], g, count
            sized[n] = amounts[k]
            n, kind = n + 1, k
        n_workers += count if kinds[k, 0] == 0 else 0
    return rows[:n], sized[:n], n_workers

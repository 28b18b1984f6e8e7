"""From plans to tasks in device groups: what is free while a decision is built, and the placement that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numba import njit

from labkit.core.capacity import MANY, SLACK, room
from labkit.core.events import Role
from labkit.core.placement import Placement, Reason, Repair, repairs_of
from labkit.core.resources import CPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.plan import Plan

Rows = tuple[Ints, Floats]
"""Tasks of a job: role, group and count, (P, 3), and cores and GB of each task, (P, 2)."""


@dataclass(eq=False)
class Room:
    """Free amounts of device groups while a decision is built, and the jobs that are given other tasks by it.

    Parameters
    ----------
    snapshot : Snapshot
        What is known now; it stays as it is.
    running : Running
        Tasks of the jobs that may be changed, as `snapshot.running` has them.
    """

    snapshot: Snapshot
    running: Running
    free: Floats = field(init=False)
    _at: dict[int, int] = field(init=False)
    _given: dict[int, Rows] = field(default_factory=dict, init=False)
    _others: list[Placement] = field(default_factory=list, init=False)
    _repairs: list[tuple[int, int, int, int]] = field(default_factory=list, init=False)
    _reasons: list[Reason] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.free = self.snapshot.free.copy()
        self._up: Bools = self.snapshot.up[self.snapshot.cluster.group_machine]
        self._demand = self.snapshot.demand
        self._at = {job: i for i, job in enumerate(self.running.job.tolist())}

    def take(self, placement: Placement) -> None:
        """Let other jobs, which wait, have the tasks of a placement, as they declare them."""
        demand = self._demand[placement.role, placement.job] * placement.count[:, None]
        np.subtract.at(self.free, placement.group, demand)
        self._others.append(placement)

    def rows(self, job: int) -> Rows:
        """Return the tasks that a job has, with what each takes; none for one that waits."""
        return self._given.get(job) or self._held(job)

    def _held(self, job: int) -> Rows:
        """Return the tasks that a job has before this decision."""
        if job not in self._at:
            return np.empty((0, 3), np.int32), np.empty((0, 2))
        i, running = self._at[job], self.running
        mine = slice(int(running.first[i]), int(running.first[i + 1]))
        rows = np.column_stack([running.role[mine], running.group[mine], running.count[mine]]).astype(np.int32)
        if len(running.cpus):
            return rows, np.column_stack([running.cpus[mine], running.memory_gb[mine]])
        return rows, self._demand[rows[:, 0], job][:, [CPUS, MEMORY_GB]]

    def settle(self, job: int, plan: Plan, *, whole: bool = False) -> Plan | None:
        """Give a job the tasks of a plan and return what it got; None: nothing, and all is as it was.

        Tasks that stay as large stay where they are; groups with the most room come first for others, servers before
        workers, or the other way round where that does not do. Where not all workers fit it gets fewer, unless the plan
        must be given as a whole.
        """
        wanted = self._wanted(job, plan)
        kinds = np.array([(role, n) for role, n, _, _ in wanted], np.int32)
        amounts = np.array([(cores, gb) for _, _, cores, gb in wanted])
        demand = self._demand[kinds[:, 0], job].copy()
        demand[:, [CPUS, MEMORY_GB]] = amounts
        old, old_amounts = self.rows(job)
        taken = self._demand[old[:, 0], job].copy()
        taken[:, [CPUS, MEMORY_GB]] = old_amounts
        counts = _carry(self.free, self._up, old, taken, kinds, demand, whole)
        if not len(counts):
            return None
        kind, group = np.nonzero(counts)
        given = np.column_stack([kinds[kind, 0], group, counts[kind, group]]).astype(np.int32), amounts[kind]
        self._note(job, given)
        return replace(plan, n_workers=int(given[0][given[0][:, 0] == Role.WORKER, 2].sum()))

    def resize(self, job: int, role: Role, cores: Mapping[int, float]) -> bool:
        """Give some tasks of a job, by number, other cores where they are, and tell whether these were there."""
        rows, amounts = self.rows(job)
        first = np.cumsum(np.where(rows[:, 0] == role, rows[:, 2], 0)) - rows[:, 2]
        new: list[tuple[int, int, int]] = []
        sized: list[tuple[float, float]] = []
        more = np.zeros(len(self.free))
        for (its_role, group, count), (has, gb), start in zip(
            rows.tolist(), amounts.tolist(), first.tolist(), strict=True
        ):
            each = [cores.get(start + k, has) if its_role == role else has for k in range(count)]
            more[group] += sum(each) - count * has
            for given, alike in groupby(each):
                new.append((its_role, group, len(list(alike))))
                sized.append((given, gb))
        if (self.free[:, CPUS] - more < -SLACK)[more > 0].any():
            return False
        self.free[:, CPUS] -= more
        self._note(job, (np.array(new, np.int32), np.array(sized)))
        return True

    def remember(self, job: int, gb: float) -> bool:
        """Give each server of a job other memory where it is, and tell whether it was there."""
        rows, amounts = self.rows(job)
        amounts = amounts.copy()
        mine = rows[:, 0] == Role.PS
        more = np.zeros(len(self.free))
        np.add.at(more, rows[mine, 1], rows[mine, 2] * (gb - amounts[mine, 1]))
        if (self.free[:, MEMORY_GB] - more < -SLACK)[more > 0].any():
            return False
        self.free[:, MEMORY_GB] -= more
        amounts[mine, 1] = gb
        self._note(job, (rows, amounts))
        return True

    def replace(self, job: int, role: Role, task: int) -> None:
        """Let another process take the place of a task."""
        self._repairs.append((job, role, task, Repair.REPLACE))

    def balance(self, job: int) -> None:
        """Let the blocks of a job's servers be spread anew by their load."""
        self._repairs.append((job, Role.PS, -1, Repair.BALANCE))

    def explain(self, job: int, text: str) -> None:
        """Say why a job is changed, or why it is not."""
        self._reasons.append(Reason(job, text))

    def placement(self) -> Placement:
        """Return the decision that makes it so."""
        changed = [job for job, rows in self._given.items() if not self._as_before(job, rows)]
        return Placement.joined([*self._others, self._of(changed)])

    def _of(self, changed: list[int]) -> Placement:
        """Return the placement of the brain's own jobs."""
        repairs = repairs_of(self._repairs)
        if not changed:
            return Placement.of((), repairs=repairs, reasons=self._reasons)
        rows = np.concatenate([self._given[job][0] for job in changed])
        owner = np.repeat(np.array(changed, np.int32), [len(self._given[job][0]) for job in changed])
        given = np.concatenate([self._given[job][1] for job in changed])
        declared = self._demand[rows[:, 0], owner][:, [CPUS, MEMORY_GB]]
        other = np.where(np.abs(given - declared) < 1e-6, np.nan, given)
        cpus, memory_gb = (None, None) if np.isnan(other).all() else other.T
        return Placement.of(
            changed, job=owner, role=rows[:, 0], group=rows[:, 1], count=rows[:, 2], cpus=cpus, memory_gb=memory_gb,
            repairs=repairs, reasons=self._reasons,
        )  # fmt: skip

    def _wanted(self, job: int, plan: Plan) -> list[tuple[int, int, float, float]]:
        """Return the tasks of a plan: role, number, cores and GB of each, workers first; servers in their order."""
        declared = self._demand[:, job, MEMORY_GB]
        gb = plan.ps_memory_gb or float(declared[Role.PS])
        tasks = [(int(Role.WORKER), plan.n_workers, plan.worker_cores, float(declared[Role.WORKER]))]
        done = 0
        for task, cores in plan.extra:
            tasks += [(int(Role.PS), task - done, plan.ps_cores, gb), (int(Role.PS), 1, cores, gb)]
            done = task + 1
        tasks.append((int(Role.PS), plan.n_ps - done, plan.ps_cores, gb))
        return [each for each in tasks if each[1]]

    def _note(self, job: int, rows: Rows) -> None:
        self._given[job] = rows

    def _as_before(self, job: int, given: Rows) -> bool:
        """Tell whether a job would have what it has."""
        if job not in self._at:
            return False
        rows, amounts = self._held(job)
        return bool(np.array_equal(rows, given[0]) and (np.abs(amounts - given[1]) < 1e-5).all())


@njit(cache=True)
def _carry(
    free: Floats, up: Bools, old: Ints, taken: Floats, kinds: Ints, demand: Floats, whole: bool
) -> Ints:  # fmt: skip
    """Take a job's old tasks out of `free` (G, R) and put new ones in; return how many are where, (K, G); empty: no.

    Parameters
    ----------
    old : array
        (P, 3) role, group and count of what it has, each of which takes `taken` (P, R).
    kinds : array
        (K, 2) role and number of tasks that are wanted, each of which takes `demand` (K, R).
    whole : bool
        Whether fewer workers than wanted will not do.
    """
    before = free.copy()
    for p in range(len(old)):
        free[old[p, 1]] += old[p, 2] * taken[p]
    counts = np.zeros((len(kinds), len(free)), np.int64)
    left = kinds[:, 1].copy()
    _stay(free, up, old, taken, kinds, demand, counts, left)
    staying, still, rest = free.copy(), counts.copy(), left.copy()
    for backward in (True, False):
        free[:], counts[:], left[:] = staying, still, rest
        for i in range(len(kinds)):
            k = len(kinds) - 1 - i if backward else i
            left[k] = _spread(free, up, demand[k], left[k], counts[k])
        if _enough(kinds, left, whole):
            return counts
    free[:] = before
    return np.zeros((0, 0), np.int64)


@njit(cache=True)
def _stay(
    free: Floats, up: Bools, old: Ints, taken: Floats, kinds: Ints, demand: Floats, counts: Ints, left: Ints
) -> None:  # fmt: skip
    """Let tasks that stay as large stay where they are."""
    for p in range(len(old)):
        g = old[p, 1]
        for k in range(len(kinds)):
            if up[g] and kinds[k, 0] == old[p, 0] and np.abs(demand[k] - taken[p]).max() < 1e-5:
                n = min(left[k], old[p, 2])
                counts[k, g] += n
                left[k] -= n
                free[g] -= n * demand[k]
                break


@njit(cache=True)
def _enough(kinds: Ints, left: Ints, whole: bool) -> bool:
    """Tell whether all servers found room, and all workers, or one at least where not all are needed."""
    n_workers, missing = 0, 0
    for k in range(len(kinds)):
        if kinds[k, 0] == 0:
            n_workers += kinds[k, 1] - left[k]
            missing += left[k]
        elif left[k]:
            return False
    return n_workers > 0 and not (whole and missing > 0)


@njit(cache=True)
def _spread(free: Floats, up: Bools, demand: Floats, n: int, counts: Ints) -> int:
    """Put up to n tasks where there is the most room, and return how many found none."""
    while n > 0:
        most, at = 0, -1
        for g in range(len(free)):
            if up[g] and free[g, CPUS] + SLACK >= (most + 1) * demand[CPUS]:
                here = room(free[g], demand, MANY)
                if here > most:
                    most, at = here, g
        if at < 0:
            return n
        some = min(n, most)
        counts[at] += some
        free[at] -= some * demand
        n -= some
    return 0

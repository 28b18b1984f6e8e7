"""Placers that give each device group a score for a gang, as schedulers of pods do, and take the best that holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.devices import best_device, charge_device, is_part, use_devices
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, ScratchBook, restore, room, scratch_book, usable
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.placers.base import place_by, settled
from labkit.placers.fragments import GangKinds, TaskMix, fragments, one_by_one
from labkit.placers.kernels import PACK

FGD, BEST, DOT, PACKING, CLUSTERING, RANDOM = range(6)


@dataclass(frozen=True, slots=True)
class Fgd:
    """Put each gang where the fragments of idle GPUs grow least: fragmentation gradient descent [1]_.

    A gang goes to one device group, and a task that takes a part of a GPU to the GPU there, such that
    F = sum_m p_m F(m) over the kinds of gangs m (`labkit.placers.fragments`) grows least. As in its authors' simulator
    growth counts in steps of some 0.04 GPUs, and ties go to the first: that allocates a point more of their trace than
    the exact least. A gang that no empty group holds is placed task by task; one that some empty group holds waits for
    one. Gangs that may shrink or share their GPUs are packed (`Pack`).

    Attributes
    ----------
    mix : TaskMix, optional
        What gangs come and how often; by default those of the jobs that have arrived so far.

    References
    ----------
    .. [1] Weng et al., "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent",
       USENIX ATC 2023.
    """

    mix: TaskMix | None = None

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(FGD, snapshot, gangs, strict=strict, mix=self.mix or _mix_so_far(snapshot))


@dataclass(frozen=True, slots=True)
class BestFit:
    """Put each gang on the device group where the least is left: argmin_g sum_r (free_gr - asked_r) / max capacity_r.

    r is GPUs and cores, the most is over all groups. Within the group tasks take the fullest GPUs with room. Gangs as
    in `Fgd`.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(BEST, snapshot, gangs, strict=strict)


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Put each gang on the device group with the least dot product of what is free and what is asked for.

    Each is divided by the most that a group offers, over GPUs and cores; FGD's authors compare with it. Gangs as in
    `Fgd`.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(DOT, snapshot, gangs, strict=strict)


@dataclass(frozen=True, slots=True)
class GpuPacking:
    """Take GPUs that are shared already, then free GPUs of a group in use, then groups of which all GPUs are free [1]_.

    Among shared GPUs those with least left, among free ones where fewest of them are needed, among empty groups the
    smallest. Gangs as in `Fgd`.

    References
    ----------
    .. [1] Weng et al., "MLaaS in the wild: workload analysis and scheduling in large-scale heterogeneous GPU clusters",
       NSDI 2022.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(PACKING, snapshot, gangs, strict=strict)


@dataclass(frozen=True, slots=True)
class GpuClustering:
    """Put gangs with as many GPUs together [1]_: where there are only such, then among others, then on empty groups.

    Those that take parts of GPUs are one kind. Within each step the group with fewest GPUs left. Gangs as in `Fgd`.

    References
    ----------
    .. [1] Xiao et al., "Gandiva: introspective cluster scheduling for deep learning", OSDI 2018, as FGD's authors took
       it.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(CLUSTERING, snapshot, gangs, strict=strict)


@dataclass(frozen=True, slots=True)
class Random:
    """Put each gang on a device group that holds it, and a part of a GPU on a GPU with room, drawn at random.

    Attributes
    ----------
    seed : int
        Of the draws, which are the same for the same decision of a run.
    """

    seed: int = 0

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_scored(RANDOM, snapshot, gangs, strict=strict, seed=self.seed)


_latest: list[GangKinds] = []
"""Of the run that was asked for last; a run asks at each decision."""


def _kinds(snapshot: Snapshot) -> GangKinds:
    """Return the kinds of gangs of a run."""
    table, runs_on = snapshot.table, snapshot.runs_on
    if not _latest or _latest[0].jobs is not table or _latest[0].runs_on is not runs_on:
        _latest[:] = [GangKinds(table, runs_on)]
    return _latest[0]


def _mix_so_far(snapshot: Snapshot) -> TaskMix:
    """Return the mix of the gangs of the jobs that have arrived."""
    n = int(np.searchsorted(snapshot.table.arrival_s, snapshot.now_s, side="right"))
    return TaskMix(*_kinds(snapshot).mix(max(n, 1)))


def _alike(snapshot: Snapshot, gangs: Gangs) -> Ints:
    """Return numbers below C that gangs of one kind share, (C,); -1 for gangs that are not what their jobs ask for."""
    table, jobs = snapshot.table, gangs.job
    asked = (gangs.n_workers == table.n_workers[jobs]) & (gangs.n_ps == table.n_ps[jobs]) & (gangs.device_type < 0)
    _, same = np.unique(_kinds(snapshot).exact[jobs], return_inverse=True)
    return np.where(asked, same.ravel(), -1)


_NO_MIX: Final = TaskMix(
    np.empty(0), np.empty(0), np.empty(0, np.int64), np.empty(0), np.empty((0, 0), np.bool_)
)  # fmt: skip


def place_scored(
    rule: int, snapshot: Snapshot, gangs: Gangs, *, strict: bool, mix: TaskMix = _NO_MIX, seed: int = 0
) -> Placement:
    """Return where gangs go, each on the device group with the best score of those that hold it."""
    if not len(gangs):
        return Placement.nothing()
    if gangs.may_shrink().any() or (gangs.partner >= 0).any():
        return place_by(PACK, snapshot, gangs, strict=strict)
    table, cluster = snapshot.table, snapshot.cluster
    left = one_by_one(snapshot.left_without(gangs.named), cluster)
    book = scratch_book(cluster, left, snapshot.up, capacity=np.ascontiguousarray(snapshot.offered))
    draws = (
        np.random.default_rng([seed, snapshot.number]).random((len(gangs), 2)) if rule == RANDOM else np.empty((0, 2))
    )
    kinds = _kinds_there(snapshot, gangs.named) if rule == CLUSTERING else np.empty(0, np.int64)
    placed, job, role, group, count, devices = _place(
        rule, strict, book, _alike(snapshot, gangs), gangs.job, gangs.n_workers, gangs.n_ps, gangs.device_type,
        table.worker_demand, table.ps_demand, snapshot.runs_on, mix, kinds, draws,
    )  # fmt: skip
    answer = settled(snapshot, gangs, placed, (job, role, group, count))
    return replace(answer, devices=devices) if snapshot.left.shape[1] > cluster.capacity.shape[1] else answer


def _kinds_there(snapshot: Snapshot, without: Ints) -> Ints:
    """Return the kinds of jobs that have tasks in each group, as bits, (G,)."""
    running = snapshot.running(np.setdiff1d(snapshot.jobs.number, without))
    job, table, there = running.job[running.row_job()], snapshot.table, np.zeros(snapshot.cluster.n_groups, np.int64)
    _note_kinds(running.group, table.worker_demand[job, GPUS], table.n_workers[job], there)
    return there


@kernel
def _note_kinds(group: Ints, gpus: Floats, n_workers: Ints, there: Ints) -> None:
    for p in range(len(group)):
        there[group[p]] |= (1 << _kind(gpus[p], n_workers[p])) & ~1


@inner
def _kind(gpus: float, n: int) -> int:
    """Return the kind of a gang: 0 without GPUs, 1 with parts, 1 + its GPUs."""
    if not gpus > 0:
        return 0
    return 1 if is_part(gpus) else min(1 + int(n * gpus + 0.5), 62)


@inner
def _holds(book: ScratchBook, runs_on: Bools, g: int, worker: Floats, ps: Floats, w: int, p: int, row: Floats) -> bool:
    """Return whether a group holds some workers and PSs; `row` (R + D,) is what is left of it then."""
    if (w > 0 and not usable(book, runs_on, worker, g)) or not book.up[g]:
        return False
    for r in range(len(worker)):
        if w * worker[r] + p * ps[r] > book.free[g, r] + SLACK:
            return False
    for r in range(len(row)):
        row[r] = book.free[g, r]
    return _used(row, worker, w) and _used(row, ps, p)


@inner
def _used(row: Floats, demand: Floats, n: int) -> bool:
    """Take n tasks out of a row, if they fit."""
    if n > 0 and room(row, demand, n) < n:
        return False
    for r in range(len(demand)):
        row[r] -= n * demand[r]
    return n == 0 or not demand[GPUS] > 0 or use_devices(row, len(demand), demand[GPUS], n)


@inner
def _steps(grown: float) -> float:
    """Return by how much fragments grow in the steps of FGD's simulator, trunc(100 sigmoid(-F)), the least is best."""
    return float(-np.floor(100 / (1 + np.exp(grown))))


@inner
def _score(  # noqa: C901 - a branch for each rule
    rule: int, book: ScratchBook, g: int, row: Floats, worker: Floats, w: int, most: Floats, mix: TaskMix, kinds: Ints,
    tried: Floats,
) -> tuple[float, int]:  # fmt: skip
    """Return the score of a group for a gang, the least is best, and the GPU that goes with it (-1: that fits best)."""
    first, device, kind = len(worker), -1, book.group_type[g]
    if rule == FGD:
        before = fragments(book.free[g], first, mix, kind)
        if not (w == 1 and is_part(worker[GPUS])):
            return _steps(fragments(row, first, mix, kind) - before), device
        least = np.inf
        for d in range(first, len(row)):
            if book.free[g, d] < worker[GPUS] - 1e-9:
                continue
            for r in range(len(tried)):
                tried[r] = row[r] if r < first else book.free[g, r]
            charge_device(tried, d, worker[GPUS])
            grown = _steps(fragments(tried, first, mix, kind) - before)
            if grown < least:
                least, device = grown, d
        return least, device
    if rule == BEST:
        return row[GPUS] / most[GPUS] + row[CPUS] / most[CPUS], device
    if rule == DOT:
        total = 0.0
        for r in (GPUS, CPUS):
            total += book.free[g, r] / most[r] * (book.free[g, r] - row[r]) / most[r]
        return total, device
    if not worker[GPUS] > 0:
        return 0.0, device
    if rule == PACKING:
        n_whole, n_gpus, shared, n_taken = 0, 0, 0.0, 0
        for d in range(first, len(row)):
            n_gpus += book.capacity[g, d] > 0
            n_whole += book.free[g, d] > 1 - 1e-9
            if row[d] < book.free[g, d]:
                n_taken += book.free[g, d] > 1 - 1e-9
                shared += book.free[g, d]
        if n_whole == n_gpus:
            return 200.0 + n_gpus, device
        return (100.0 + n_taken if n_taken else shared), device
    left = row[GPUS] / most[GPUS]
    mine = 1 << _kind(worker[GPUS], w)
    if kinds[g] & mine:
        return (0.0 if kinds[g] == mine else 1.0) + left, device
    return (2.0 if kinds[g] == 0 else 3.0) + left, device


@inner
def _drawn(
    book: ScratchBook, runs_on: Bools, worker: Floats, ps: Floats, w: int, p: int, draws: Floats, row: Floats
) -> tuple[int, int]:
    """Return a group that holds a gang, drawn, and for a part of a GPU a GPU there (its column); -1: none."""
    n = 0
    for g in range(len(book.free)):
        n += _holds(book, runs_on, g, worker, ps, w, p, row)
    at = int(draws[0] * n) if n else -1
    for g in range(len(book.free)):
        if n and _holds(book, runs_on, g, worker, ps, w, p, row):
            if at == 0:
                return g, _drawn_device(book.free[g], len(worker), worker[GPUS], draws[1]) if w == 1 else -1
            at -= 1
    return -1, -1


@inner
def _drawn_device(row: Floats, first: int, gpus: float, draw: float) -> int:
    n = 0
    if not is_part(gpus):
        return -1
    for d in range(first, len(row)):
        n += row[d] >= gpus - 1e-9
    at = int(draw * n)
    for d in range(first, len(row)):
        if row[d] >= gpus - 1e-9:
            if at == 0:
                return d
            at -= 1
    return -1


@inner
def _best(
    rule: int, book: ScratchBook, runs_on: Bools, worker: Floats, ps: Floats, w: int, p: int, most: Floats,
    mix: TaskMix, kinds: Ints, draws: Floats, row: Floats, tried: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Return the group for some workers and PSs, and the column of the GPU if the rule names one; -1: none."""
    if rule == RANDOM:
        return _drawn(book, runs_on, worker, ps, w, p, draws, row)
    best, device, least = -1, -1, np.inf
    for g in range(len(book.free)):
        if _holds(book, runs_on, g, worker, ps, w, p, row):
            score, on = _score(rule, book, g, row, worker, w, most, mix, kinds, tried)
            if score < least - 1e-12:
                best, device, least = g, on, score
    return best, device


@inner
def _take(
    book: ScratchBook, g: int, demand: Floats, n: int, device: int, j: int, role: int, rows: Ints, at: int
) -> int:  # fmt: skip
    """Take n tasks out of a group, on a GPU or those that fit best; note rows: job, role, group, count, GPUs."""
    first, gpus = len(demand), demand[GPUS]
    for r in range(first):
        book.free[g, r] -= n * demand[r]
    if not gpus > 0:
        rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3], rows[at, 4] = j, role, g, n, -1
        return at + 1
    whole = 0
    for _ in range(n if is_part(gpus) else int(n * gpus + 0.5)):
        d = device if device >= 0 else best_device(book.free[g], first, gpus)
        charge_device(book.free[g], d, min(gpus, 1.0))
        bit = 1 << (d - first)
        if is_part(gpus):
            rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3], rows[at, 4] = j, role, g, 1, bit
            at += 1
        whole |= bit
    if not is_part(gpus):
        rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3], rows[at, 4] = j, role, g, n, whole
        at += 1
    return at


@inner
def _ever_whole(book: ScratchBook, runs_on: Bools, worker: Floats, ps: Floats, w: int, p: int, row: Floats) -> bool:
    """Return whether some group holds a gang when it is empty."""
    for g in range(len(book.capacity)):
        if w == 0 or not worker[GPUS] > 0 or runs_on[book.group_type[g]]:
            for r in range(len(row)):
                row[r] = book.capacity[g, r]
            if _used(row, worker, w) and _used(row, ps, p):
                return True
    return False


@kernel
def _place(  # noqa: C901 - one pass over the gangs
    rule: int, strict: bool, book: ScratchBook, same: Ints, jobs: Ints, n_workers: Ints, n_ps: Ints, device_type: Ints,
    worker_demand: Floats, ps_demand: Floats, runs_on: Bools, mix: TaskMix, kinds: Ints, draws: Floats,
) -> tuple[Bools, Ints, NDArray[np.int8], Ints, Ints, Ints]:  # fmt: skip
    placed, size = np.zeros(len(jobs), np.bool_), int(n_workers.sum() + n_ps.sum())
    rows, n = np.empty((size, 5), np.int32), 0
    row, tried, no_draw = np.empty(book.free.shape[1]), np.empty(book.free.shape[1]), np.zeros(2)
    most = np.empty(worker_demand.shape[1])
    for r in range(len(most)):
        most[r] = max(book.capacity[:, r].max(), 1e-12)
    roomless = np.zeros(len(same), np.bool_)
    for i in range(len(jobs)):
        j, begun = jobs[i], n
        worker, ps, mine = worker_demand[j], ps_demand[j], runs_on[j].copy()
        for t in range(len(mine)):
            mine[t] = mine[t] and (device_type[i] < 0 or device_type[i] == t)
        if same[i] >= 0 and roomless[same[i]]:  # since then there is only less
            continue
        draw, before = (
            draws[i] if len(draws) else no_draw,
            book.free.copy() if n_ps[i] or n_workers[i] > 1 else book.free[:0],
        )
        w, p, whole = 0 + n_workers[i], 0 + n_ps[i], True
        if w + p > 1:
            whole = _ever_whole(book, mine, worker, ps, w, p, row)
        left_w, left_p, found = w, p, True
        while found and left_w + left_p > 0:
            some_w = left_w if whole else min(left_w, 1)
            some_p = left_p if whole else (1 if some_w == 0 else 0)
            g, device = _best(rule, book, mine, worker, ps, some_w, some_p, most, mix, kinds, draw, row, tried)
            found = g >= 0
            if found:
                if some_w:
                    n = _take(book, g, worker, some_w, device, j, 0, rows, n)
                if some_p:
                    n = _take(book, g, ps, some_p, -1, j, 1, rows, n)
                if len(kinds):
                    kinds[g] |= (1 << _kind(worker[GPUS], w)) & ~1
                left_w, left_p = left_w - some_w, left_p - some_p
        placed[i] = found
        if not found:
            for q in range(begun, n):
                restore(book, rows[q, 2], before[rows[q, 2]])
            n = begun
            if strict:
                break
            if same[i] >= 0:
                roomless[same[i]] = True
    return (
        placed, rows[:n, 0].copy(), rows[:n, 1].astype(np.int8), rows[:n, 2].copy(), rows[:n, 3].copy(),
        rows[:n, 4].copy(),
    )  # fmt: skip

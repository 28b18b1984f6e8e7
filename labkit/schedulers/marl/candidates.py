"""Which gangs' placements are weighed: all ways onto one machine, and even splits over several."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, ScratchBook, allocate, room, share_out, usable
from labkit.kernels import by_reference, inner

MOST: Final = 4096
"""Placements of a gang that are weighed at most."""
MOST_SPLIT: Final = 8
"""Machines over which a gang is split at most."""


class GangRequest(NamedTuple):
    """What a job asks for: (R,) of a worker and of a PS, how many, and (T,) device types on which it runs."""

    worker: Floats
    ps: Floats
    n_workers: int
    n_ps: int
    runs_on: Bools


@by_reference
class Candidates(NamedTuple):
    """Placements: (C, K) device groups, workers first; (C,) pods; (1,) how many."""

    group: Ints
    pod: Ints
    n: Ints


def candidate_buffer(most_tasks: int) -> Candidates:
    """Return room for placements of gangs of at most so many tasks."""
    return Candidates(np.zeros((MOST, most_tasks), np.int64), np.zeros(MOST, np.int64), np.zeros(1, np.int64))


@inner
def fits(book: ScratchBook, gang: GangRequest, g: int, n_workers: int, n_ps: int) -> bool:
    """Return whether a group has room for some workers and PSs of a gang."""
    if not (usable(book, gang.runs_on, gang.worker, g) if n_workers else book.up[g]):
        return False
    for r in range(book.free.shape[1]):
        if n_workers * gang.worker[r] + n_ps * gang.ps[r] > book.free[g, r] + SLACK:
            return False
    return True


@inner
def hold(book: ScratchBook, gang: GangRequest, groups: Ints, sign: int) -> None:
    """Take a gang's tasks out of what is free, or give them back (sign -1)."""
    for t in range(len(groups)):
        allocate(book, gang.worker if t < gang.n_workers else gang.ps, groups[t], sign)


@inner
def _as_new(book: ScratchBook, empty: Bools, m: int, other: int) -> bool:
    """Return whether two machines without tasks are alike."""
    a, b = book.first_group[m], book.first_group[other]
    if book.first_group[m + 1] - a != book.first_group[other + 1] - b:
        return False
    for i in range(book.first_group[m + 1] - a):
        if book.group_type[a + i] != book.group_type[b + i] or book.up[a + i] != book.up[b + i]:
            return False
        for r in range(book.free.shape[1]):
            if book.free[a + i, r] != book.free[b + i, r]:
                return False
    return bool(empty[m] and empty[other])


@inner
def _whole(  # noqa: C901 - all pairs of groups, all numbers of tasks on the first
    book: ScratchBook, gang: GangRequest, m: int, pod: int, alike: bool, out: Candidates
) -> None:
    """Note all ways to put a gang on one machine: over one group, or over two."""
    first, last = book.first_group[m], book.first_group[m + 1]
    w, p = gang.n_workers, gang.n_ps
    for a in range(first, last):
        for b in range(a + 1, max(last, a + 2)):
            alone = b >= last
            if alone and last - first > 1:
                continue
            for i in range(w + 1):
                for k in range(p + 1):
                    if alone and (i < w or k < p):
                        continue
                    if alike and (2 * i < w or (2 * i == w and 2 * k < p)):
                        continue  # the mirror image
                    if not alone and b > a + 1 and i == w and k == p:
                        continue  # all on a, which was noted with the group behind it
                    if not fits(book, gang, a, i, k) or (not alone and not fits(book, gang, b, w - i, p - k)):
                        continue
                    c = out.n[0]
                    if c >= len(out.pod):
                        return
                    for t in range(w):
                        out.group[c, t] = a if t < i else b
                    for t in range(p):
                        out.group[c, w + t] = a if t < k else b
                    out.pod[c] = pod
                    out.n[0] += 1


@inner
def _share(
    book: ScratchBook, gang: GangRequest, m: int, n_workers: int, n_ps: int, groups: Ints, w0: int, p0: int
) -> bool:
    """Put so many workers and PSs on a machine, spread over its groups; note them in `groups`."""
    first, last, at = book.first_group[m], book.first_group[m + 1], np.empty(n_workers + n_ps, np.int64)
    for_workers = np.zeros(last - first, np.bool_)
    for g in range(first, last):
        for_workers[g - first] = usable(book, gang.runs_on, gang.worker, g)
    if not share_out(
        book.free[first:last], for_workers, book.up[first:last], gang.worker, gang.ps, n_workers, n_ps, at
    ):  # fmt: skip
        return False
    for t in range(n_workers + n_ps):
        if t < n_workers:
            groups[w0 + t] = first + at[t]
        else:
            groups[gang.n_workers + p0 + t - n_workers] = first + at[t]
    return True


@inner
def _split(book: ScratchBook, gang: GangRequest, pod: int, k: int, order: Ints, out: Candidates) -> None:
    """Note the split over k machines, the first ones of an order that hold their shares."""
    c = out.n[0]
    if c >= len(out.pod):
        return
    groups, at, w0, p0 = out.group[c], 0, 0, 0
    for i in range(k):
        w = gang.n_workers // k + (1 if i < gang.n_workers % k else 0)
        p = gang.n_ps // k + (1 if k - 1 - i < gang.n_ps % k else 0)
        while at < len(order) and not _share(book, gang, order[at], w, p, groups, w0, p0):
            at += 1
        if at >= len(order):
            return
        at, w0, p0 = at + 1, w0 + w, p0 + p
    out.pod[c] = pod
    out.n[0] += 1


@inner
def _fill(book: ScratchBook, gang: GangRequest, pod: int, order: Ints, out: Candidates) -> None:
    """Note the placement that fills machines in an order, for gangs that no even split holds."""
    c = out.n[0]
    if c >= len(out.pod):
        return
    groups, w, p = out.group[c], 0, 0
    for m in order:
        for g in range(book.first_group[m], book.first_group[m + 1]):
            mine = (
                room(book.free[g], gang.worker, gang.n_workers - w) if usable(book, gang.runs_on, gang.worker, g) else 0
            )
            groups[w : w + mine] = g
            w += mine
            k = 0
            while p + k < gang.n_ps and fits(book, gang, g, mine, k + 1):
                groups[gang.n_workers + p + k] = g
                k += 1
            p += k
    if w == gang.n_workers and p == gang.n_ps:
        out.pod[c] = pod
        out.n[0] += 1


@inner
def candidates(
    book: ScratchBook, gang: GangRequest, pod: int, empty: Bools, order: Ints, looked_at: int, out: Candidates
) -> None:
    """Note placements of a gang in a pod; of machines without tasks that are alike, one is looked at.

    Parameters
    ----------
    empty : array of bool
        (M,) machines without tasks.
    order : array
        (O, m) orders of the pod's machines in which splits take them.
    looked_at : int
        Machines, the first ones of `order[0]`, on which the whole gang is tried.
    """
    seen, n, before = -1, 0, out.n[0]
    for m in order[0]:
        if n >= looked_at:
            break
        if empty[m]:
            if seen >= 0 and _as_new(book, empty, m, seen):
                continue
            seen = m
        a, b, at = book.first_group[m], book.first_group[m + 1] - 1, out.n[0]
        alike = bool(empty[m]) and b == a + 1 and np.all(book.free[a] == book.free[b])
        _whole(book, gang, m, pod, alike, out)
        n += out.n[0] > at
    for o in range(len(order)):
        for k in range(2, min(MOST_SPLIT, max(gang.n_workers, gang.n_ps)) + 1):
            _split(book, gang, pod, k, order[o], out)
    if out.n[0] == before:
        _fill(book, gang, pod, order[0], out)

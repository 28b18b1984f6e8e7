"""One gang after the other: the loop that the placers share.

A gang is placed whole or not at all. All its workers get one device type, the first that has room, unless the gang is
larger than any one type of the cluster: then they may be mixed.

Kernels are compiled for each combination of types, so numbers of tasks are of one type everywhere. `Conditions` are
None where gangs ask for nothing of the kind: the code for them is left out then, a third of all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.hosting import FEW, SPLIT
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import (
    ScratchBook,
    begin_gang,
    clear,
    fits_one_type,
    limit,
    sum_machines,
    usable_groups,
)
from labkit.kernels import by_reference, inner, kernel
from labkit.placers.rules import (
    EVEN,
    FIRST,
    LEAST_ALLOCATED,
    PACK,
    SPREAD,
    WHOLE,
    even,
    even_within,
    first_fit,
    pack,
    release,
    shares_of,
    spread,
    whole,
    whole_machines,
)

MANY_KINDS = 256
"""Kinds of gangs without room that are remembered while gangs are placed."""


@by_reference
class Conditions(NamedTuple):
    """What C gangs ask for beside room, and what is asked of N jobs.

    Attributes
    ----------
    partner : array
        (C,) the job on the same GPUs, or -1; or of no length.
    requested_ps : array
        (N,) PSs of jobs, for partners.
    machines, zone : array
        (C,) on how many machines gangs are to lie, or within one zone of which kind, as `labkit.core.hosting` has it.
    zones : array
        (2, G) the zone of each group, by kind.
    hosts, host_row : array
        (R, G) sets of groups, and (N,) the set that a job is kept to where some are, or within a zone; or of no length.
    """

    partner: Ints
    requested_ps: Ints
    machines: Ints
    zone: Ints
    zones: Ints
    hosts: Bools
    host_row: Ints


@inner
def _never_even(
    empty: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, workers: Ints,
    servers: Ints,
) -> bool:  # fmt: skip
    """Return whether not even the empty cluster holds an even split of this gang."""
    clear(empty)
    if not even(empty, usable, worker, ps, n_workers, n_ps, workers, servers):
        return True
    workers[:] = 0
    servers[:] = 0
    return False


@inner
def _tasks(
    rule: int, book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints, mine: Bools
) -> int:  # fmt: skip
    """Place n tasks of a gang by a rule for tasks; return how many are left over."""
    if rule in (SPREAD, LEAST_ALLOCATED):
        return spread(rule, book, usable, demand, n, taken)
    if rule == FIRST:
        return first_fit(book, usable, demand, n, taken)
    return pack(book, usable, demand, n, taken, mine)


@inner
def _task_by_task(
    rule: int, book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints,
) -> bool:  # fmt: skip
    """Place the workers of a gang and then its PSs by a rule for tasks; return whether some are left over."""
    mine = np.zeros(len(book.load), np.bool_)
    rest = _tasks(rule, book, usable, worker, n_workers, workers, mine)
    return rest > 0 or (n_ps > 0 and _tasks(rule, book, book.up, ps, n_ps, servers, mine) > 0)


@inner
def _on_few(
    rule: int, book: ScratchBook, empty: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, machines: int,
) -> int:  # fmt: skip
    """Place one gang on exactly so many machines (> 0), or on as few as it needs: those of the empty cluster.

    Workers alone have whole machines and one for the rest, but by `EVEN`. Other gangs are split evenly. Return on how
    many machines it is, 0: it has to wait, -1: no empty cluster holds it so.
    """
    if machines <= 0 and n_ps == 0 and rule != EVEN:
        return whole_machines(rule, book, usable, worker, n_workers, workers, servers)
    k = machines + 0 * n_workers
    if machines <= 0:
        k = _fewest_even(empty, usable, worker, ps, n_workers, n_ps, workers, servers)
        if k == 0:
            return -1
    return even_within(rule, book, usable, worker, ps, n_workers, n_ps, workers, servers, k, k)


@inner
def _fewest_even(
    empty: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, workers: Ints,
    servers: Ints,
) -> int:  # fmt: skip
    """Return over how many machines of the empty cluster a gang can be split evenly at least, 0: over none."""
    clear(empty)
    least, most = 1 + 0 * n_workers, min(len(empty.load), max(n_workers, n_ps))
    k = even_within(EVEN, empty, usable, worker, ps, n_workers, n_ps, workers, servers, least, most)
    workers[:] = 0
    servers[:] = 0
    return k


@kernel
def fewest_machines(
    empty: ScratchBook, hosts: Bools, runs_on: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int
) -> int:  # fmt: skip
    """Return on how many machines a gang lies at most where it waits for as few as it needs; M: on any number.

    `empty` is a book to be written to, `hosts` (G,) the groups that the gang may have.
    """
    limit(empty, np.ones_like(hosts), hosts)
    workers, servers = np.zeros(len(hosts), np.int32), np.zeros(len(hosts), np.int32)
    n_types, most = len(runs_on), 0
    for kind in range(-1, n_types):
        if kind >= 0 and not runs_on[kind]:
            continue
        if kind < 0 and (n_types == 1 or fits_one_type(empty, runs_on, worker, n_workers)):
            continue
        usable = usable_groups(empty, runs_on, kind, worker)
        most = max(most, _fewest_even(empty, usable, worker, ps, n_workers, n_ps, workers, servers))
        if n_ps == 0:
            shares = shares_of(empty.capacity, usable, empty.group_machine, len(empty.load), worker, n_workers)
            most = max(most, len(shares))
    return most if most > 0 else len(empty.load)


@inner
def _place_on(
    rule: int, book: ScratchBook, empty: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, shrinks: bool, machines: int | None,
) -> bool:  # fmt: skip
    """Place one gang on usable groups; what was taken is noted in `workers` and `servers` (G,)."""
    if machines is not None and machines != SPLIT:
        n = _on_few(rule, book, empty, usable, worker, ps, n_workers, n_ps, workers, servers, machines)
        if n > 0 or (n == 0 and machines >= FEW):
            return n > 0
    return _place_split(rule, book, empty, usable, worker, ps, n_workers, n_ps, workers, servers, shrinks)


@inner
def _place_split(
    rule: int, book: ScratchBook, empty: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, shrinks: bool,
) -> bool:  # fmt: skip
    """Place one gang over any number of machines."""
    if rule == WHOLE and whole(book, usable, worker, ps, n_workers, n_ps, workers, servers):
        return True
    if rule in (EVEN, WHOLE):
        if even(book, usable, worker, ps, n_workers, n_ps, workers, servers):
            return True
        if shrinks or not _never_even(empty, usable, worker, ps, n_workers, n_ps, workers, servers):
            return False
    if _task_by_task(rule, book, usable, worker, ps, n_workers, n_ps, workers, servers):
        release(book, worker, workers)
        release(book, ps, servers)
        return False
    return True


@inner
def _place_one(
    rule: int, book: ScratchBook, empty: ScratchBook, runs_on: Bools, device_type: int, worker: Floats, ps: Floats,
    n_workers: int, n_ps: int, workers: Ints, servers: Ints, shrinks: bool, machines: int | None,
) -> bool:  # fmt: skip
    """Place one gang on one device type, or on a mixture if it is larger than any."""
    n_types = len(runs_on)
    for kind in range(n_types + 1):
        mixed = kind == n_types
        if mixed and (n_types == 1 or device_type >= 0 or fits_one_type(book, runs_on, worker, n_workers)):
            break
        if not mixed and (not runs_on[kind] or (device_type >= 0 and kind != device_type)):
            continue
        usable = usable_groups(book, runs_on, -1 if mixed else kind, worker)
        if _place_on(rule, book, empty, usable, worker, ps, n_workers, n_ps, workers, servers, shrinks, machines):
            return True
    return False


@inner
def _place_or_shrink(
    rule: int, book: ScratchBook, empty: ScratchBook, runs_on: Bools, device_type: int, worker: Floats, ps: Floats,
    n_workers: int, n_ps: int, workers: Ints, servers: Ints, shrinks: bool, machines: int | None,
) -> tuple[int, int]:  # fmt: skip
    """Place one gang, or the largest smaller one if it shrinks; return its workers and PSs, 0 workers if none fits.

    Where no smaller gang can be split evenly either, the largest is packed.
    """
    for by in (rule, PACK):
        w, p = n_workers, n_ps
        while w > 0:
            if _place_one(by, book, empty, runs_on, device_type, worker, ps, w, p, workers, servers, shrinks, machines):
                return w, p
            if not shrinks:
                break
            w -= 1
            p = min(p, max(1, (n_ps * w + n_workers - 1) // n_workers))
        if not (shrinks and rule in (EVEN, WHOLE)):
            break
    return 0, 0


@inner
def _place_pair(
    rule: int, book: ScratchBook, empty: ScratchBook, runs_on: Bools, device_type: int, worker: Floats, ps: Floats,
    n_workers: int, n_ps: int, other_worker: Floats, other_ps: Floats, n_other_ps: int, workers: Ints, servers: Ints,
    other_servers: Ints, machines: int,
) -> bool:  # fmt: skip
    """Place two jobs on the same GPUs: their workers together, then the PSs of the one and of the other."""
    both = worker + other_worker
    both[GPUS] = worker[GPUS]
    none, never = 0 * n_workers, n_workers < 0
    if not _place_one(
        rule, book, empty, runs_on, device_type, both, ps, n_workers, n_ps, workers, servers, never, machines
    ):  # fmt: skip
        return False
    no_other, nothing = np.zeros_like(workers), np.zeros_like(worker)
    if n_other_ps == 0 or _place_on(
        rule, book, empty, book.up, nothing, other_ps, none, n_other_ps, no_other, other_servers, never, SPLIT + none
    ):
        return True
    release(book, both, workers)
    release(book, ps, servers)
    return False


@inner
def _lies_on(asked: Conditions | None, i: int) -> int | None:
    """Return on how many machines a gang is to lie; None where nothing is asked for."""
    if asked is None:
        return None
    machines: int = 0 + asked.machines[i]
    return machines


@inner
def _n_zones(asked: Conditions, i: int) -> int:
    """Return in how many zones a gang may be placed, one after the other; 1: it is kept to none."""
    most = 0
    if asked.zone[i]:
        zones = asked.zones[asked.zone[i] - 1]
        most = 0 + zones[0]
        for z in zones:
            most = max(most, z)
    return 1 + most


@inner
def _limit_to(asked: Conditions, book: ScratchBook, up: Bools, i: int, job: int, other: int, z: int) -> None:
    """Keep what is placed next, gang i of one job or of two, to the groups (G,) where they may be; in one zone."""
    if len(asked.host_row):
        limit(book, up, asked.hosts[asked.host_row[job]] & asked.hosts[asked.host_row[other if other >= 0 else job]])
    if asked.zone[i]:
        zones = asked.zones[asked.zone[i] - 1]
        for g in range(len(zones)):
            inside = zones[g] == z
            book.open[g] = book.open[g] and inside
            book.up[g] = book.up[g] and inside


@kernel
def place_gangs(  # noqa: C901 - one pass over the gangs, with the output buffer that it fills
    rule: int, strict: bool, shrinks: Bools, book: ScratchBook, empty: ScratchBook, jobs: Ints,
    n_workers: Ints, n_ps: Ints, device_type: Ints, worker_demand: Floats, ps_demand: Floats, runs_on: Bools,
    asked: Conditions | None,
) -> tuple[Bools, Ints, NDArray[np.int8], Ints, Ints]:  # fmt: skip
    """Place gangs in order; return which were placed, and the rows of the placement.

    `empty` is another book of the cluster, to be written to, where a rule splits gangs evenly or `asked` is not None.
    """
    n_groups, up = len(book.free), book.up.copy()
    if rule != FIRST:
        sum_machines(book)
    workers, servers = np.zeros(n_groups, np.int32), np.zeros(n_groups, np.int32)
    other_servers = np.zeros(n_groups, np.int32)
    placed = np.zeros(len(jobs), np.bool_)
    size = 16
    job, role = np.empty(size, np.int32), np.empty(size, np.int8)
    group, count = np.empty(size, np.int32), np.empty(size, np.int32)
    n = 0
    roomless, n_roomless = np.empty(MANY_KINDS, np.int32), 0
    for i in range(len(jobs)):
        j = jobs[i]
        plain = n_ps[i] == 0 and not shrinks[i]
        other, n_zones, lies_on = -1, 1, _lies_on(asked, i)
        if asked is not None:
            if len(asked.partner):
                other = 0 + asked.partner[i]
            n_zones = _n_zones(asked, i)
            plain = plain and other < 0 and asked.zone[i] == 0
        if plain and not strict and _like_one_of(
            i, roomless[:n_roomless], jobs, n_workers, device_type, worker_demand, runs_on, asked
        ):  # fmt: skip
            continue
        most_w, most_p = 0 + n_workers[i], 0 + n_ps[i]  # 64 bits
        w, p = 0 * most_w, 0 * most_p
        for z in range(n_zones):
            if asked is not None:
                _limit_to(asked, book, up, i, j, other, z)
            begin_gang(book)
            if asked is not None and other >= 0:
                w, p = most_w, most_p
                if not _place_pair(
                    rule, book, empty, runs_on[j] & runs_on[other], device_type[i], worker_demand[j], ps_demand[j], w,
                    p, worker_demand[other], ps_demand[other], 0 + asked.requested_ps[other], workers, servers,
                    other_servers, 0 + asked.machines[i],
                ):  # fmt: skip
                    w, p = 0, 0
            else:
                w, p = _place_or_shrink(
                    rule, book, empty, runs_on[j], device_type[i], worker_demand[j], ps_demand[j], most_w, most_p,
                    workers, servers, shrinks[i], lies_on,
                )  # fmt: skip
            if w > 0:
                break
        placed[i] = w > 0
        if not placed[i]:
            if strict:
                break
            if plain and n_roomless < MANY_KINDS:
                roomless[n_roomless] = i
                n_roomless += 1
            continue
        needed = n + w + p
        if asked is not None and other >= 0:
            needed += w + asked.requested_ps[other]
        if needed > size:
            size = 2 * needed
            job, role = _grown(job, n, size), _grown(role, n, size)
            group, count = _grown(group, n, size), _grown(count, n, size)
        if asked is not None and other >= 0:
            n = _note(other, 0, workers, n, job, role, group, count)
            n = _note(other, 1, other_servers, n, job, role, group, count)
            other_servers[:] = 0
        n = _note(j, 0, workers, n, job, role, group, count)
        n = _note(j, 1, servers, n, job, role, group, count)
        workers[:] = 0
        servers[:] = 0
    return placed, job[:n], role[:n], group[:n], count[:n]


@inner
def _like_one_of(
    i: int, others: Ints, jobs: Ints, n_workers: Ints, device_type: Ints, worker_demand: Floats, runs_on: Bools,
    asked: Conditions | None,
) -> bool:  # fmt: skip
    """Return whether a gang without PSs is of the kind of one that found no room: since then there is only less."""
    for o in others:
        alike = n_workers[o] == n_workers[i] and device_type[o] == device_type[i]
        if asked is not None:
            alike = alike and asked.machines[o] == asked.machines[i]
            if len(asked.host_row):
                alike = alike and asked.host_row[jobs[o]] == asked.host_row[jobs[i]]
        for r in range(worker_demand.shape[1]):
            alike = alike and worker_demand[jobs[o], r] == worker_demand[jobs[i], r]
        for t in range(runs_on.shape[1]):
            alike = alike and runs_on[jobs[o], t] == runs_on[jobs[i], t]
        if alike:
            return True
    return False


@inner
def _note(
    j: int, kind: int, taken: Ints, n: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints
) -> int:  # fmt: skip
    """Write a row for each group in which a job takes tasks of a role; return the number of rows."""
    for g in range(len(taken)):
        if taken[g]:
            job[n], role[n], group[n], count[n] = j, kind, g, taken[g]
            n += 1
    return n


@inner
def _grown(values: NDArray[Any], n: int, size: int) -> NDArray[Any]:
    grown = np.empty(size, values.dtype)
    for i in range(n):  # a slice would bring the text of an error about shapes, which takes seconds to compile
        grown[i] = values[i]
    return grown

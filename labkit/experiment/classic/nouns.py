"""What the kernels of this package work on: columns of the simulator, of the ledger, of the jobs, and their own."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.resources import Amounts, Bools, Floats, Ints
from labkit.kernels import by_reference

DONE, PAUSED, FULL, STANDS, UNSURE = range(5)
"""Why a stretch ended: no job is left; `until_s`; its events fill the buffer; nothing may ever happen again; the next
decision is not plain."""

QUIET, N_DECISIONS, N_ROWS, N_SET, N_TASKS, N_ENDS, N_TOUCHED, N_DEAD, N_NAMED = range(9)
"""Numbers that a stretch counts: decisions on end without an event, decisions, events written; jobs that the decision
sets and rows of their tasks; moments in the heap of ends, touched groups, jobs over that are still in the list of those
that run; rows at the beginning that name their GPUs."""

N_NEAR, N_TAIL, N_TURNS, N_NEW, REACHED = range(2, 7)
"""Behind how many of both lists a `RunOrder` has yet to look at: jobs that were looked at together, jobs of the tail,
moments in the heap of turns, jobs that are in no list yet; how many numbers these are."""


@by_reference
class Truth(NamedTuple):
    """The simulator's columns, as `labkit.simulator.kernels` has them."""

    truth: Records
    running: Ints
    counts: Ints
    allocations: Records
    tasks: Records
    spare: Ints
    free: Floats
    demand: Floats
    first_row: Ints
    mate: Ints
    others: Ints
    overheads: Floats


@by_reference
class Belief(NamedTuple):
    """The ledger's columns, as `labkit.core.ledger` has them."""

    belief: Records
    counts: Ints
    active: Ints
    waiting: Ints
    up: Bools
    group_machine: Ints
    capacity: Floats
    allocations: Records
    tasks: Records
    spare: Ints
    free: Floats
    demand: Floats
    steps_then: Floats


@by_reference
class Trace(NamedTuple):
    """What never changes in a run.

    Attributes
    ----------
    arrival_s, duration_s, total_steps, true_steps : array
        (N,) of each job.
    speed : array
        (N,) steps/s with the gang that was asked for.
    kind : array
        (N,) jobs of one kind have the same gang, which may lie on the same groups in the same manner.
    n_workers : array
        (K,) workers of a gang.
    worker, gang : array
        (K, R) what one worker and the whole gang take.
    hosts : array of bool
        (C, G) distinct sets of groups: those of a device type, or of all for gangs that are larger than any one type,
        that a partition has.
    tries : array
        (K, S) the sets on which a gang is tried, one after the other; -1: no more.
    shares : array
        (K, S, W) where a gang lies on so many machines, its workers on each of them, the most first, then 0; W = 0
        where none does. Machines have one group each then.
    splits : array of bool
        (K,) gangs that may lie on any number of machines, at least if there is no room otherwise.
    part : array
        (K,) the part of the cluster that a kind is in; no two parts share a job.
    groups : array of bool
        (parts, G) the device groups of each part.
    budget : array
        (parts, R) what the machines of each part offer in all.
    whole : bool
        All amounts are whole numbers, so that sums are exact in any order.
    tie : float
        Moments at which jobs that run are to end, declared, that are nearer than this part of them may be in another
        order than what is left is; infinite where what is left does not fall by a second each second.
    """

    arrival_s: Floats
    duration_s: Floats
    total_steps: Floats
    true_steps: Floats
    speed: Floats
    kind: Ints
    n_workers: NDArray[np.int64]
    worker: Floats
    gang: Floats
    hosts: Bools
    tries: Ints
    shares: Ints
    splits: Bools
    part: Ints
    groups: Bools
    budget: Floats
    whole: bool
    tie: float


@by_reference
class FreeTree(NamedTuple):
    """What is free while a decision is made, and a tree of maxima over it for each set of groups that gangs may have.

    Attributes
    ----------
    free : array
        (G, R + D) as the ledger has it, less what this decision took so far.
    before : array
        (G, R + D) where GPUs count one by one: what was free in the groups of a gang before it was tried.
    tree : array
        (C, 2 S, R) maxima: node i has children 2 i and 2 i + 1, group g is leaf S + g; -inf: it is not in this set.
        Where GPUs count one by one, two columns more: what is free of the emptiest GPU, and GPUs that are all free.
    sums : array
        (C, R) what is free in all groups of each set.
    touched : array
        (G,) groups that may differ from the ledger's, N_TOUCHED of them.
    is_touched : array of bool
        (G,)
    """

    free: Floats
    before: Floats
    tree: Floats
    sums: Floats
    touched: Ints
    is_touched: Bools


@by_reference
class Queue(NamedTuple):
    """The jobs that wait, of each kind by key and number.

    Attributes
    ----------
    jobs : array
        (N,) those of kind k are `jobs[lo[k]:hi[k]]`, within `base[k]:base[k + 1]`.
    key : array
        (N,) of each job that waits, by number.
    base, lo, hi : array
        (K + 1,), (K,), (K,)
    at : array
        (K,) where a decision is in each of them.
    out : array of bool
        (K,) kinds of which this decision tries no more.
    stuck : array of bool
        (K,) kinds that found no room, and nothing was given back since.
    """

    jobs: Ints
    key: Floats
    base: Ints
    lo: Ints
    hi: Ints
    at: Ints
    out: Bools
    stuck: Bools


@by_reference
class RunOrder(NamedTuple):
    """The jobs that run under a rule that preempts: see `labkit.experiment.classic.order`.

    Attributes
    ----------
    jobs : array
        (2 parts, M) by `at` and number, of each part of the cluster those whose keys go on, and those that have turned;
        `size` (2 parts,) of each.
    reached : array
        (6,) how many of both lists are yet to be looked at, and the counters `N_NEAR`, `N_TAIL`, `N_TURNS`, `N_NEW`.
    at : array
        (N,) what a list is sorted by: the declared end of a job, or its key.
    part : array
        (N,) the list of its part that a job is in, 2 where it has yet to be put into one, or -1.
    new : array
        (2 M,) the jobs that have yet to be put into a list, and others that had to be and run no more.
    in_use : array
        (parts, R) what the gangs of all of them take.
    turn_s : array
        (N,) when a job of the first list turns.
    turns_s, turns : array
        A heap of these moments, and the jobs; those of jobs that run no more are among them.
    key : array
        (N,) keys of the jobs that were looked at, by number.
    near : array
        (M,) jobs of the first list that were looked at and are not in the tail, in order.
    tail : array
        (M,) the last jobs of the order, the very last first; `sums` (M + 1, R): what the gangs of the first m take.
    """

    jobs: Ints
    size: Ints
    reached: Ints
    at: Floats
    part: NDArray[np.int8]
    new: Ints
    in_use: Floats
    turn_s: Floats
    turns_s: Floats
    turns: Ints
    key: Floats
    near: Ints
    tail: Ints
    sums: Floats


@by_reference
class Scratch(NamedTuple):
    """What else the kernels need room for.

    Attributes
    ----------
    numbers : array
        Counters: `QUIET`, ...
    requested : array
        (parts, R) what the gangs of all active jobs need.
    ends_s, ends : array
        A heap of the moments at which jobs end, and their numbers.
    set_jobs, job, role, group, count : array
        The decision, as a `Placement` has it.
    start, stop : array
        Jobs that are to start, and to stop.
    changed, speeds : array
        (N,) jobs that begin anew, and their steps/s.
    left : array
        (R,) what jobs that come first leave of what the machines offer.
    missing : array
        (R,) what the jobs that run and those chosen to start need beyond what the machines offer.
    nothing : array
        (0,) amounts: as declared.
    devices : array
        The GPUs of the decision's rows as bits, -1: not told yet; of no length where they do not count one by one.
    taken, done, mate, rows : array
        For `labkit.core.binding.bind`, where they do: (P, D), (P,), (N,) -1, and 0 to P - 1.
    """

    numbers: Ints
    requested: Floats
    ends_s: Floats
    ends: Ints
    set_jobs: Ints
    job: Ints
    role: NDArray[np.int8]
    group: Ints
    count: Ints  # type: ignore[assignment]  # a tuple has a method of this name, which nobody needs
    start: Ints
    stop: Ints
    changed: Ints
    speeds: Floats
    left: Floats
    missing: Floats
    nothing: Amounts
    devices: Ints
    taken: Ints
    done: Bools
    mate: Ints
    rows: Ints


MARGIN: Final = 1e-6
"""Sums of fractions that are nearer than this are compared by the readable path."""

"""What the kernels of this package work on: columns of the simulator, of the ledger, of the jobs, and their own."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.resources import Amounts, Bools, Floats, Ints

DONE, PAUSED, FULL, STANDS, UNSURE = range(5)
"""Why a stretch ended: no job is left; `until_s`; its events fill the buffer; nothing may ever happen again; the next
decision is not plain."""

QUIET, N_DECISIONS, N_ROWS, N_SET, N_TASKS, N_ENDS, N_ORDERED, N_TOUCHED, N_DEAD = range(9)
"""Numbers that a stretch counts: decisions on end without an event, decisions, events written; jobs that the decision
sets and rows of their tasks; moments in the heap of ends, jobs in the order of those that run, touched groups, jobs
over that are still in the list of those that run."""


class Truth(NamedTuple):
    """The simulator's columns, as `labkit.simulator.state` has them."""

    truth: Records
    running: Ints
    counts: Ints
    held: Records
    tasks: Records
    spare: Ints
    free: Floats
    demand: Floats
    first_row: Ints
    mate: Ints
    others: Ints
    overheads: Floats


class Belief(NamedTuple):
    """The ledger's columns, as `labkit.core.ledger` has them."""

    belief: Records
    counts: Ints
    active: Ints
    waiting: Ints
    up: Bools
    group_machine: Ints
    capacity: Floats
    held: Records
    tasks: Records
    spare: Ints
    free: Floats
    demand: Floats
    steps_then: Floats


class Trace(NamedTuple):
    """What never changes in a run.

    Attributes
    ----------
    arrival_s, duration_s, total_steps, true_steps : array
        (N,) of each job.
    speed : array
        (N,) steps/s with the gang that was asked for.
    kind : array
        (N,) jobs of one kind have the same gang and run on the same device types.
    n_workers : array
        (K,) workers of a gang.
    worker, gang : array
        (K, R) what one worker and the whole gang take.
    runs_on : array of bool
        (K, T)
    mixes : array of bool
        (K,) gangs that are larger than any one type.
    group_type : array
        (G,)
    budget : array
        (R,) what the machines offer in all.
    whole : bool
        All amounts are whole numbers, so that sums are exact in any order.
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
    runs_on: Bools
    mixes: Bools
    group_type: Ints
    budget: Floats
    whole: bool


class FreeTree(NamedTuple):
    """What is free while a decision is made, and a tree of maxima over it for each device type.

    Attributes
    ----------
    free : array
        (G, R) as the ledger has it, less what this decision took so far.
    tree : array
        (T + 1, 2 S, R) maxima: node i has children 2 i and 2 i + 1, group g is leaf S + g; the last is of all.
    sums : array
        (T + 1, R) what is free in all groups of each device type, and of all; the last only where there are several.
    touched : array
        (G,) groups that may differ from the ledger's, N_TOUCHED of them.
    is_touched : array of bool
        (G,)
    """

    free: Floats
    tree: Floats
    sums: Floats
    touched: Ints
    is_touched: Bools


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


class Scratch(NamedTuple):
    """What else the kernels need room for.

    Attributes
    ----------
    numbers : array
        Counters: `QUIET`, ...
    asked : array
        (R,) what the gangs of all active jobs need.
    ends_s, ends : array
        A heap of the moments at which jobs end, and their numbers.
    ordered, in_order : array
        (N,) the jobs that run, by key, N_ORDERED of them, and whether a job is among them.
    run_key : array
        (N,) their keys by number.
    set_jobs, job, role, group, count : array
        The decision, as a `Placement` has it.
    start, stop : array
        Jobs that are to start, and to stop.
    changed, speeds : array
        (N,) jobs that begin anew, and their steps/s.
    left : array
        (R,) what jobs that come first leave of what the machines offer.
    nothing : array
        (0,) amounts: as declared.
    """

    numbers: Ints
    asked: Floats
    ends_s: Floats
    ends: Ints
    ordered: Ints
    in_order: Bools
    run_key: Floats
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
    nothing: Amounts


MARGIN: Final = 1e-6
"""Sums of fractions that are nearer than this are compared by the readable path."""

"""Warm-up: what some scheduler does, slot by slot, as actions of DL2's network to learn from (sec. 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.draft import BOTH, PS, WORKER, Batch
from labkit.core.errors import InputError, LabkitError
from labkit.core.life import Traits
from labkit.core.placement import Placement
from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_rows, fill_with
from labkit.schedulers import make
from labkit.schedulers.dl2.drafts import draft_of
from reproductions.dl2.policy import (
    N_SHARES,
    Form,
    Numbers,
    SlotSamples,
    allow,
    look,
    observe,
    open_slot,
    room,
    show_held,
    take,
)
from reproductions.dl2.scheduler import refuse_other_jobs

MOST_ACTIONS: Final = 4096
"""Of a slot that are learned from."""


@by_reference
class ActionModes(NamedTuple):
    """How a decision becomes actions: switches `apart`, `voids` and `shuffled` of `Published`."""

    apart: bool
    voids: bool
    shuffled: bool


class Lessons(NamedTuple):
    """What a teacher did: states (N, J, F), what was allowed (N, A), and actions (N,); tasks that found no room."""

    state: Numbers
    mask: NDArray[np.bool_]
    action: NDArray[np.int64]
    n_left_out: int


def lessons(
    teacher: str,
    experiments: Sequence[Experiment],
    form: Form,
    models: Sequence[str],
    slot_s: float,
    ways: ActionModes,
    rng: np.random.Generator,
) -> Lessons:
    """Return what a scheduler does on some experiments.

    Raise InputError if it cannot run one of them, or decides about something else than numbers of tasks.
    """
    kept, left_out = room(MOST_ACTIONS, form), 0
    parts: list[tuple[Any, ...]] = []
    for experiment in experiments:
        try:
            left_out += _watch(teacher, experiment, form, models, slot_s, ways, kept, parts, rng)
        except InputError:
            raise
        except LabkitError as error:
            raise InputError(
                f"teacher {teacher} cannot run {experiment.jobs.name} on {experiment.cluster.name}: {error} "
                "Take another one, such as drf."
            ) from None
    if not parts:
        raise InputError(f"teacher {teacher} gave no job a task; expected decisions to learn from. Take another one.")
    state, mask, action = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Lessons(state, mask, action, left_out)


def _watch(
    teacher: str,
    experiment: Experiment,
    form: Form,
    models: Sequence[str],
    slot_s: float,
    ways: ActionModes,
    kept: SlotSamples,
    parts: list[tuple[Any, ...]],
    rng: np.random.Generator,
) -> int:
    """Append what a teacher does in each slot of an experiment; return how many of its tasks found no room."""
    scheduler = make(teacher)
    traits = Traits.of(scheduler)
    if traits.ideal or traits.lease_s is not None:
        raise InputError(
            f"teacher {teacher} shares time among jobs; expected a scheduler that gives them numbers of workers and "
            "parameter servers, such as drf."
        )
    refuse_other_jobs(form, experiment.jobs.declared)
    session = replace(experiment, cadence=every_slot(slot_s)).session(scheduler)
    shares, left_out = np.zeros(len(experiment.jobs), np.float32), 0
    while not session.done:
        snapshot = session.snapshot()
        placement = scheduler.schedule(snapshot)
        if len(snapshot.jobs):
            batch, kept.n[0] = draft_of(snapshot, models), 0
            if not form.released:
                open_slot(batch, 0, form)
            number = snapshot.jobs.number
            mine = shares[number]
            left_out += teach(batch, 0, form, slot_s, wanted(snapshot, placement), ways, mine, kept, rng)
            shares[number] = mine
            n = int(kept.n[0])
            if n:
                parts.append((kept.state[:n].copy(), kept.mask[:n].copy(), kept.action[:n].astype(np.int64)))
        session.step(placement, source=f"{type(scheduler).__name__}.schedule()")
    return left_out


def wanted(snapshot: Snapshot, placement: Placement) -> Ints:
    """Return how many workers and parameter servers each active job has after a decision, (J, 2).

    Raise InputError if jobs are to share GPUs.
    """
    if len(placement.partner) and (placement.partner >= 0).any():
        raise InputError("the teacher lets jobs share GPUs; expected one that gives each job tasks of its own.")
    jobs = snapshot.jobs
    held = np.zeros((len(snapshot.table), 2), np.int32)
    held[jobs.number] = np.column_stack([jobs.n_workers, jobs.n_ps])
    held[placement.set_jobs] = 0
    np.add.at(held, (placement.job, placement.role), placement.count)
    return held[jobs.number]


@kernel
def teach(
    batch: Batch,
    b: int,
    form: Form,
    slot_s: float,
    wanted: Ints,
    ways: ActionModes,
    shares: Numbers,
    kept: SlotSamples,
    rng: np.random.Generator,
) -> int:
    """Write the actions that give jobs what they are to have; return how many tasks found no room.

    The job with the smallest dominant share is always next, as in DRF, ties going to the earlier one.

    Parameters
    ----------
    wanted : array
        (J, 2) workers and parameter servers of each active job.
    shares : array
        (J,) dominant share that each job had when it last got tasks, which the released code's states show until it
        gets some; brought up to date.
    """
    window, order = np.empty(form.n_jobs, np.int32), np.arange(form.n_jobs)
    allowed = np.empty(kept.mask.shape[1] - 1, np.bool_)
    state = np.empty((form.n_jobs, kept.state.shape[2]), np.float32)
    left_out = 0
    for start in range(0, max(batch.episode[b].n_observed, 1), form.n_jobs):
        last = -1
        while True:
            look(batch, b, form, 0 if form.released else start, window)
            observe(batch, b, form, slot_s, window, state)
            if form.released:
                _show_old(batch, b, window, shares, state)
            any_allowed = allow(batch, b, form, window, allowed)
            k, what = _next(batch, b, form, window, wanted, ways.apart, last)
            if k < 0:
                if ways.voids and any_allowed:
                    _keep(kept, state, allowed, len(allowed), order, ways.shuffled, rng)
                break
            last = window[k]
            if not allowed[_action(form, k, what)] or not _fits(batch, b, form, last, what):
                left_out += _drop(batch, b, last, wanted)
                continue
            _give(batch, b, form, slot_s, window, k, what, ways, shares, state, allowed, order, kept, rng)
            shares[last] = batch.observation[b, last, batch.observation.shape[2] - N_SHARES]
        if form.released:
            break
    return int(left_out)


@inner
def _action(form: Form, k: int, what: int) -> int:
    """Return the number of an action."""
    return k if form.all_reduce else 3 * k + what


@inner
def _give(
    batch: Batch,
    b: int,
    form: Form,
    slot_s: float,
    window: Ints,
    k: int,
    what: int,
    ways: ActionModes,
    shares: Numbers,
    state: Numbers,
    allowed: NDArray[np.bool_],
    order: NDArray[np.int64],
    kept: SlotSamples,
    rng: np.random.Generator,
) -> None:
    """Give tasks and keep that; a bundle that the released code places whole is kept as a worker, then a server."""
    i = window[k]
    halves = form.released and ways.apart and what == BOTH
    _keep(kept, state, allowed, _action(form, k, WORKER if halves else what), order, ways.shuffled, rng)
    take(batch, b, form, i, what)
    if halves:
        j = batch.active[b, i]
        batch.n[b, j, PS] -= 1
        show_held(batch, b, i)
        observe(batch, b, form, slot_s, window, state)
        _show_old(batch, b, window, shares, state)
        allow(batch, b, form, window, allowed)
        _keep(kept, state, allowed, 3 * k + PS, order, ways.shuffled, rng)
        batch.n[b, j, PS] += 1
        show_held(batch, b, i)


@inner
def _show_old(batch: Batch, b: int, window: Ints, shares: Numbers, state: Numbers) -> None:
    """Show the dominant share of an earlier slot where a job has none yet: the released heuristics do not clear it."""
    for k in range(len(window)):
        if window[k] >= 0 and batch.n[b, batch.active[b, window[k]]].sum() == 0:
            state[k, 3] = shares[window[k]]


@inner
def _next(batch: Batch, b: int, form: Form, window: Ints, wanted: Ints, apart: bool, last: int) -> tuple[int, int]:
    """Return the row of the window whose job is next, -1: none, and what it gets."""
    best, least, at = -1, np.inf, batch.observation.shape[2] - N_SHARES
    for k in range(len(window)):
        i = window[k]
        if i < 0:
            continue
        n = batch.n[b, batch.active[b, i]]
        if n[WORKER] >= wanted[i, WORKER] and (form.all_reduce or n[PS] >= wanted[i, PS]):
            continue
        if apart and i == last and n[PS] < min(n[WORKER], wanted[i, PS]):
            best = k  # the parameter server of a bundle whose worker was given
            break
        if batch.observation[b, i, at] < least:
            best, least = k, batch.observation[b, i, at]
    one_by_one = apart and not form.released  # its heuristics place a bundle whole, and learn it in halves
    return best, _task(batch, b, form, window[best], wanted, one_by_one) if best >= 0 else WORKER


@inner
def _task(batch: Batch, b: int, form: Form, i: int, wanted: Ints, apart: bool) -> int:
    """Return what a job that is to have more gets next."""
    n = batch.n[b, batch.active[b, i]]
    worker, ps = n[WORKER] < wanted[i, WORKER], n[PS] < wanted[i, PS]
    if form.all_reduce:
        return WORKER
    if not batch.malleable[b, batch.active[b, i]] or (worker and ps and not apart):
        return BOTH
    return WORKER if worker and not (ps and n[PS] < n[WORKER]) else PS


@inner
def _fits(batch: Batch, b: int, form: Form, i: int, what: int) -> bool:
    """Return whether an action finds room; by the paper's rules all that is allowed does."""
    if not form.released:
        return True
    free, given, n, seen = batch.free[b].copy(), batch.placed[b].copy(), batch.n[b].copy(), batch.observation[b].copy()
    fits = take(batch, b, form, i, what)
    fill_rows(batch.free[b], free)
    fill_with(batch.placed[b].reshape(-1), given.reshape(-1))
    fill_rows(batch.n[b], n)
    fill_rows(batch.observation[b], seen)
    return fits


@inner
def _drop(batch: Batch, b: int, i: int, wanted: Ints) -> int:
    """Give up what a job was to have more; return how many tasks that were."""
    n = batch.n[b, batch.active[b, i]]
    left_out = max(wanted[i, WORKER] - n[WORKER], 0) + max(wanted[i, PS] - n[PS], 0)
    wanted[i, WORKER], wanted[i, PS] = n[WORKER], n[PS]
    return int(left_out)


@inner
def _keep(
    kept: SlotSamples,
    state: Numbers,
    allowed: NDArray[np.bool_],
    action: int,
    order: NDArray[np.int64],
    shuffled: bool,
    rng: np.random.Generator,
) -> None:
    """Keep an action; with its rows in any order if they are to be shuffled."""
    t, kinds = kept.n[0], len(allowed) // len(order)
    if t >= len(kept.action):
        return
    if shuffled:
        for k in range(len(order) - 1, 0, -1):
            other = rng.integers(0, k + 1)
            order[k], order[other] = order[other], order[k]
    for k in range(len(order)):
        fill_with(kept.state[t, order[k]], state[k])
        fill_with(kept.mask[t, kinds * order[k] : kinds * order[k] + kinds], allowed[kinds * k : kinds * k + kinds])
    kept.mask[t, -1] = True
    kept.action[t] = kinds * order[action // kinds] + action % kinds if action < len(allowed) else action
    kept.n[0] = t + 1

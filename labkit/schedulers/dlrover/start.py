"""How jobs start: as they were, as their like ended, or small and with many cores, to be sampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.history import History, Likeness
from labkit.schedulers.dlrover.memory import after_out_of_memory
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.stages import JobState
from labkit.schedulers.dlrover.turn import Turn

COLD_CORES: Final = (32, 16, 8, 4, 2, 1)
"""Units of cores of the worker and the server of a job that is sampled: the most that the text allows, fewer where that
does not fit."""


def requested_plan(turn: Turn, job: int) -> Plan:
    """Return the plan that a job's user requested."""
    table, declared = turn.snapshot.table, turn.declared(job)
    return Plan(int(table.n_workers[job]), declared[0], int(table.n_ps[job]), declared[1])


def likeness(snapshot: Snapshot, job: int) -> Likeness:
    """Return by what a job is like others; traces name no dataset, so that of a user's jobs counts as one."""
    table = snapshot.table
    batch = float(table.samples_per_step[job])
    return Likeness(table.models[table.model[job]], batch if batch == batch else 0.0, table.users[table.user[job]])


def cut(plan: Plan, got: Plan) -> str:
    """Return the note for a plan of which not all workers found room."""
    return "" if got is plan else f"; room for {got.n_workers} of {plan.n_workers} workers"


def start(turn: Turn, history: History, job: int, *, most_cores: float, unit: float, n_lost: int) -> bool:
    """Start a job that waits with the first plan that finds room, and return whether one did."""
    for plan, why in _tries(turn, history, job, most_cores=most_cores, unit=unit, n_lost=n_lost):
        got = turn.room.settle(job, plan)
        if got is not None:
            turn.change(job, got, why + cut(plan, got))
            turn.states[job] = turn.states[job]._replace(n_lost=n_lost)
            return True
    return False


def give_requested_plan(turn: Turn, job: int) -> None:
    """Give a job of which nothing can be measured what the user asked for, if there is room."""
    got = turn.room.settle(job, requested_plan(turn, job), whole=True)
    if got is not None and got != turn.states[job].plan:
        turn.change(job, got, f"no speed was measured in {turn.rules.patience_s:g} s: as asked")


def _tries(
    turn: Turn, history: History, job: int, *, most_cores: float, unit: float, n_lost: int
) -> Iterable[tuple[Plan, str]]:  # fmt: skip
    """Return the plans to start a job with, and why, the best first."""
    state = turn.states.get(job)
    tries = _usual_tries(turn, history, job, most_cores=most_cores, unit=unit)
    if state is not None and n_lost > state.n_lost and turn.rules.watch_memory:
        return chain([_after_out_of_memory(turn, job, state)], _roomier(turn, job, state, tries))
    if state is not None:
        return chain([(state.plan, "continues with the plan that it had")], tries)
    return tries


def _usual_tries(
    turn: Turn, history: History, job: int, *, most_cores: float, unit: float
) -> Iterator[tuple[Plan, str]]:  # fmt: skip
    """Make the plans to start a job with that has not run, one by one, as the first ones mostly do."""
    past = history.start(likeness(turn.snapshot, job))
    if past is not None:
        yield _within(turn, job, past[0]), past[1]
    for units in COLD_CORES:
        c = round(units * unit, 9)
        if c <= most_cores:
            yield Plan(1, c, 1, c), f"cold start: sampled with {c:g} cores each"
    yield requested_plan(turn, job), "as asked: no room to sample it"
    declared = turn.declared(job)
    yield Plan(1, declared[0], 1, declared[1]), "as small as possible"


def _within(turn: Turn, job: int, plan: Plan) -> Plan:
    """Return another job's plan within what is useful to a job, and no less memory than it declares."""
    table, gb = turn.snapshot.table, plan.ps_memory_gb
    n_workers, n_ps = min(plan.n_workers, int(table.max_workers[job])), min(plan.n_ps, int(table.max_ps[job]))
    if gb and not gb > turn.ps_gb(job, replace(plan, ps_memory_gb=0.0)):
        gb = 0.0
    return replace(plan, n_workers=n_workers, n_ps=n_ps, ps_memory_gb=gb)


def _after_out_of_memory(turn: Turn, job: int, state: JobState) -> tuple[Plan, str]:
    """Return the plan after an out-of-memory: more memory, or more servers."""
    plan, gb = state.plan, turn.ps_gb(job, state.plan)
    part = state.points[-1].part if state.points else 1 / plan.n_ps
    more_gb, n_ps = after_out_of_memory(gb, plan.n_ps, part=min(part, 1.0))
    n_ps = min(n_ps, int(turn.snapshot.table.max_ps[job]))
    if n_ps == plan.n_ps and more_gb == gb:
        more_gb = 2 * gb  # no more servers are useful
    more = replace(plan, n_ps=n_ps, ps_memory_gb=more_gb if more_gb > gb else plan.ps_memory_gb)
    more = turn.with_memory(job, more if n_ps == plan.n_ps else replace(more, extra=()))
    what = f"{n_ps} PSs with {turn.ps_gb(job, more):.3g} GB each"
    return more, f"a PS ran out of its {gb:.3g} GB, the fullest had {part * plan.n_ps:.2f} x the mean: {what}"


def _roomier(
    turn: Turn, job: int, state: JobState, tries: Iterable[tuple[Plan, str]]
) -> Iterable[tuple[Plan, str]]:  # fmt: skip
    """Return other plans for a job that ran out of memory: servers that hold in all at least twice what they had."""
    least = 2 * turn.ps_gb(job, state.plan) * state.plan.n_ps
    told = "; a PS ran out of memory"
    return (
        (replace(plan, ps_memory_gb=max(turn.ps_gb(job, plan), least / plan.n_ps)), why + told) for plan, why in tries
    )

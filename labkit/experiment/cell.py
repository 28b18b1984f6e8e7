"""One cell of a sweep: from its keys to a row of numbers, in whatever process it runs."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.protocols import Scheduler
from labkit.core.quotas import Quotas
from labkit.core.raised import raised_at
from labkit.experiment.experiment import Experiment
from labkit.experiment.grid import ORDER, Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.prices import prices_of
from labkit.experiment.reservations import Reservations
from labkit.experiment.scenario import FORMER, OPTIONS, Scenario, current
from labkit.results.comparison import FASTER, bound_of
from labkit.results.notes import reservation_effects
from labkit.results.record import RunRecord
from labkit.schedulers import open_options, options_of


@dataclass(frozen=True)
class CellOutcome:
    """What came out of a cell."""

    cell: Cell
    """Which one."""
    metrics: Mapping[str, float]
    """As `RunRecord.summary`; empty where it failed."""
    error: str = ""
    trace: str = ""
    """`error` and `trace`: why it failed, in one line and in full; "" where it did not."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    """`cpu_s` and `wall_s`: seconds that the processor worked on it, and that it took."""
    notes: tuple[str, ...] = ()
    """Warnings."""
    record: RunRecord | None = None
    """The whole run, if it is to be kept."""
    speeds: str = ""
    """Its speed model in words."""
    bound_jct_s: float = float("nan")
    """Mean JCT in seconds that no scheduler can go below there; NaN: it is not known."""
    bound_faster: bool = False
    """Whether that rests on gangs faster than those that jobs ask for."""
    reserved: tuple[tuple[str, str, int], ...] = ()
    """What reservations did to its jobs: `labkit.results.notes.held_up`."""


def run_cell(cell: Cell, *, inputs: Inputs, keep: bool = False) -> CellOutcome:
    """Run one cell; what goes wrong in it becomes its outcome."""
    began_s, worked_s = time.perf_counter(), time.thread_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            experiment, scheduler = _experiment_of(cell, inputs)
            record = experiment.run(scheduler, name=str(cell.keys["scheduler"]))
            kept = _portable(record) if keep else None
            told = record.info.config
            rules = experiment.rules
            outcome = CellOutcome(
                cell, _plain(record.summary), record=kept, speeds=told["speeds"],
                bound_jct_s=bound_of(record), bound_faster=told.get(FASTER, False),
                reserved=tuple(reservation_effects(record)),
            )  # fmt: skip
        except Exception as error:
            outcome, rules = failed(cell, error), []
    return replace(
        outcome,
        cpu_s=time.thread_time() - worked_s,
        wall_s=time.perf_counter() - began_s,
        notes=tuple(dict.fromkeys([*rules, *(str(each.message) for each in caught)])),
    )


def failed(cell: Cell, error: BaseException) -> CellOutcome:
    """Return the outcome of a cell that raised."""
    said = " ".join(f"{type(error).__name__}: {error}{raised_at(error)}".split())
    return CellOutcome(cell, {}, error=said, trace="".join(traceback.format_exception(error)))


def _experiment_of(cell: Cell, inputs: Inputs) -> tuple[Experiment, Scheduler]:
    """Return the experiment of a cell, and its scheduler."""
    mine, theirs = split(cell.keys)
    label = str(cell.keys["scheduler"])
    scheduler = inputs.scheduler(label, **theirs, **_seed_of(label, inputs, theirs, cell.seed))
    with inputs.local_fields(mine) as fields:
        jobs, cluster = inputs.jobs(str(cell.keys["trace"]), seed=cell.seed), cell.keys["cluster"]
        there = None if cluster is None else inputs.cluster(str(cluster))
        experiment = Experiment.of(jobs, cluster=there, seed=cell.seed, **fields)
    return experiment, scheduler


def split(keys: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the parameters of a cell that are fields of a scenario, and those of its scheduler."""
    of_all = {name: value for name, value in keys.items() if name not in ORDER}
    mine = {name: value for name, value in of_all.items() if FORMER.get(name, name) in OPTIONS}
    fields = current({name: value for name, value in mine.items() if value is not None})
    return fields, {name: value for name, value in of_all.items() if name not in mine}


def _seed_of(label: str, inputs: Inputs, options: Mapping[str, Any], seed: int) -> dict[str, int]:
    """Return the seed for a scheduler that takes one and was not given it."""
    return {"seed": seed} if "seed" not in options and inputs.takes_seed(label) else {}


def _plain(summary: Mapping[str, float]) -> dict[str, float]:
    """Return numbers of Python's own."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in summary.items()}


def _portable(record: RunRecord) -> RunRecord:
    """Return a record that can go to another process: routers of networks are functions."""
    return replace(record, cluster=replace(record.cluster, network=None))


def check(grid: Grid, inputs: Inputs) -> None:
    """Refuse what cannot run, or has seeds that change nothing, before anything runs.

    Raises
    ------
    InputError
        It names the parameter, the scheduler or the seeds.
    """
    combinations = _combinations(grid)
    for label in grid.schedulers:
        for combination in combinations:
            _check_scheduler(label, inputs, split(combination)[1])
    for combination in combinations:
        mine = split(combination)[0]
        with inputs.local_fields(mine) as fields:
            for label in grid.traces:
                asked = Scenario.of(inputs.jobs(label, seed=grid.cells[0].seed), **fields)
                asked.parts, asked.jobs()
            _check_rules(fields)
    _refuse_idle_seeds(grid, inputs)


def _check_rules(fields: Mapping[str, Any]) -> None:
    """Raise if quotas, reservations or prices cannot be read."""
    rules: dict[str, Callable[[Any], Any]] = {"quotas": Quotas.of, "reservations": Reservations.of, "prices": prices_of}
    for name, read in rules.items():
        if fields.get(name) is not None:
            read(fields[name])


def _combinations(grid: Grid) -> list[dict[str, Any]]:
    """Return each combination of parameters once."""
    return [dict(zip(grid.parameters, values, strict=True)) for values in product(*grid.parameters.values())]


def _check_scheduler(label: str, inputs: Inputs, options: dict[str, Any]) -> None:
    what = inputs.schedulers[label]
    known = open_options(what) if isinstance(what, str) else _own_options(inputs, label)
    for option in options:
        if option not in known:
            hint = unknown("parameter", option, [*OPTIONS, *known])
            raise InputError(
                f"{hint} It is no option of a run, and {label} does not take it; what only some schedulers take, or a "
                f"name gives already, stands in their names: las(quantum_s=60)."
            )
    inputs.scheduler(label, **options)


def _own_options(inputs: Inputs, label: str) -> dict[str, Any]:
    import cloudpickle

    made = cloudpickle.loads(inputs.schedulers[label])
    return options_of(made) if isinstance(made, type) else {}


def _refuse_idle_seeds(grid: Grid, inputs: Inputs) -> None:
    if len(grid.axes["seed"]) == 1 or any(isinstance(what, str) for what in inputs.traces.values()):
        return
    random = {name: option.random for name, option in OPTIONS.items() if option.random}
    if any(value for name in random for value in grid.axes.get(name, ())):
        return
    if any(isinstance(what, bytes) or "seed" in open_options(what) for what in inputs.schedulers.values()):
        return
    raise InputError(
        f"the {len(grid.axes['seed'])} seeds have no effect: {' and '.join(grid.traces)} has the same jobs for "
        "every seed, and the simulation is deterministic. Give a generated trace such as 'poisson(80, "
        "per_hour=12)', or "
        f"something random ({', '.join(f'{name}: {what}' for name, what in random.items())}), or a single seed."
    )

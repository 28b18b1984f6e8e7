"""One cell of a sweep: from its keys to a row of numbers, in whatever process it runs."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.core.quotas import Quotas
from labkit.core.raised import raised_at
from labkit.experiment.asked import refuse_no_flag
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.experiment.grid import Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.reservations import Reservations
from labkit.experiment.run import experiment_of
from labkit.results.bound import BOUND, FASTER
from labkit.results.notes import held_up
from labkit.results.record import RunRecord
from labkit.schedulers import open_options, options_of
from labkit.simulator import Faults, Overheads, Variation
from labkit.workloads import scaled, with_epoch_error

PARTS: Final[dict[str, tuple[Callable[..., Any], dict[str, str]]]] = {
    "overheads": (Overheads, {name: name for name in ("start_s", "restart_s", "rescale_s")}),
    "faults": (Faults, {name: name for name in ("mtbf_s", "mttr_s", "checkpoint_s")}),
    "variation": (
        Variation,
        {
            "period_s": "period_s",
            "speed_error": "error",
            "straggler_probability": "straggler_probability",
            "straggler_factor": "straggler_factor",
        },
    ),
}
"""What makes a run less than ideal: option of a cell -> attribute."""

OF_SPEED: Final = ("speed", "throughputs", "strict", "interference", "sharding", "troubles", "quotas", "reservations")
FILES: Final = ("throughputs", "interference", "troubles", "quotas", "reservations")
"""Those that may name a file."""
OF_JOBS: Final = ("first", "load", "epoch_error", "drop_too_large", "any_type")
OPTIONS: Final = (*OF_JOBS, "slot_s", "overheads", *OF_SPEED, *(name for _, names in PARTS.values() for name in names))
"""Parameters that belong to the run; every other one is an option of the schedulers."""

RANDOM: Final = {
    "mtbf_s": "machines fail", "speed_error": "speeds vary", "straggler_probability": "jobs are slowed",
    "troubles": "tasks are slow or hot", "epoch_error": "jobs are longer or shorter than declared",
}  # fmt: skip
EPOCH_STREAM: Final = 3
"""The simulator has streams 0, 1 and 2 of a seed."""


@dataclass(frozen=True)
class CellOutcome:
    """What came out of a cell.

    Attributes
    ----------
    cell : Cell
        Which one.
    metrics : mapping
        As `RunRecord.summary`; empty where it failed.
    error, trace : str
        Why it failed, in one line and in full; "" where it did not.
    cpu_s, wall_s : float
        Seconds that the processor worked on it, and that it took.
    notes : tuple of str
        Warnings.
    record : RunRecord or None
        The whole run, if it is to be kept.
    speeds : str
        Its speed model in words.
    bound_jct_s : float
        Mean JCT in seconds that no scheduler can go below there; NaN: it is not known.
    bound_faster : bool
        Whether that rests on gangs faster than those that jobs ask for.
    reserved : tuple
        What reservations did to its jobs: `labkit.results.notes.held_up`.
    """

    cell: Cell
    metrics: Mapping[str, float]
    error: str = ""
    trace: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    record: RunRecord | None = None
    speeds: str = ""
    bound_jct_s: float = float("nan")
    bound_faster: bool = False
    reserved: tuple[tuple[str, str, int], ...] = ()


def run_cell(cell: Cell, *, inputs: Inputs, keep: bool = False) -> CellOutcome:
    """Run one cell; what goes wrong in it becomes its outcome."""
    began_s, worked_s = time.perf_counter(), time.thread_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            experiment, scheduler = _asked(cell, inputs)
            record = experiment.run(scheduler, name=str(cell.keys["scheduler"]))
            kept = _portable(record) if keep else None
            told = record.info.config
            rules = experiment.rules
            outcome = CellOutcome(
                cell, _plain(record.summary), record=kept, speeds=told["speeds"],
                bound_jct_s=told.get(BOUND, float("nan")), bound_faster=told.get(FASTER, False),
                reserved=tuple(held_up(record)),
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


def _asked(cell: Cell, inputs: Inputs) -> tuple[Experiment, Scheduler]:
    """Return the experiment of a cell, and its scheduler."""
    mine, theirs = split(cell.keys)
    label = str(cell.keys["scheduler"])
    scheduler = inputs.scheduler(label, **theirs, **_seed_of(label, inputs, theirs, cell.seed))
    with ExitStack() as stack:
        for name in FILES:
            if mine.get(name) is not None and str(mine[name]) in inputs.files:
                mine[name] = stack.enter_context(inputs.file(str(mine[name])))
        load = mine.pop("load", None) or 1.0  # the experiment does it, and its record tells so
        jobs = jobs_of(inputs.jobs(str(cell.keys["trace"]), seed=cell.seed), mine, seed=cell.seed)
        cluster = inputs.cluster(str(cell.keys["cluster"]))
        of_speed = {name: mine[name] for name in OF_SPEED if name in mine}
        experiment = experiment_of(
            jobs, cluster=cluster, seed=cell.seed, load=load, drop_too_large=mine.get("drop_too_large", False),
            any_type=mine.get("any_type", False), **of_speed, **disturbances(mine),
        )  # fmt: skip
    return experiment, scheduler


def split(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a cell that belong to the run, and those of its scheduler."""
    of_all = {name: value for name, value in keys.items() if name not in ("trace", "cluster", "scheduler", "seed")}
    mine = {name: value for name, value in of_all.items() if name in OPTIONS}
    return mine, {name: value for name, value in of_all.items() if name not in OPTIONS}


def jobs_of(jobs: Jobs, options: Mapping[str, Any], *, seed: int) -> Jobs:
    """Return the jobs with `first`, `load` and `epoch_error` applied."""
    if options.get("first") is not None:
        jobs = jobs.take(np.arange(_count("first", options["first"], most=len(jobs))))
    if options.get("load", 1) != 1:
        _number("load", options["load"])
        jobs = scaled(jobs, load=options["load"])
    if options.get("epoch_error", 0):
        _number("epoch_error", options["epoch_error"])
        stream = np.random.SeedSequence(seed, spawn_key=(EPOCH_STREAM,))
        jobs = with_epoch_error(jobs, error=options["epoch_error"], rng=np.random.default_rng(stream))
    return jobs


def disturbances(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Experiment.of` takes beside jobs, cluster and speeds.

    Raises
    ------
    InputError
        If a value cannot be, or one is missing that another needs.
    """
    made: dict[str, Any] = {}
    if options.get("slot_s") is not None:
        _number("slot_s", options["slot_s"])
        made["cadence"] = every_slot(options["slot_s"])
    if options.get("overheads") is not None:
        made["overheads"] = Overheads.published(str(options["overheads"]))
    if options.get("checkpoint_s") is not None and options.get("mtbf_s") is None:  # for jobs out of memory alone
        options = dict(options)
        made["checkpoint_s"] = options.pop("checkpoint_s")
        _number("checkpoint_s", made["checkpoint_s"])
    for part, (build, names) in PARTS.items():
        given = {names[name]: value for name, value in options.items() if name in names and value is not None}
        if not given:
            continue
        if part in made:
            raise InputError(f"overheads and {next(iter(given))} are given; expected one of them.")
        try:
            made[part] = build(**given)
        except TypeError as error:
            told = ", ".join(f"{name}={options[name]!r}" for name in names if name in options)
            raise InputError(f"{told}: {error}; these go together: {', '.join(names)}.") from None
    return made


def _count(name: str, value: Any, *, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; expected a whole number >= 1.")
    return min(value, most)


def _number(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; expected a number.")


def _seed_of(label: str, inputs: Inputs, given: Mapping[str, Any], seed: int) -> dict[str, int]:
    """Return the seed for a scheduler that takes one and was not given it."""
    return {"seed": seed} if "seed" not in given and inputs.takes_seed(label) else {}


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
    jobs = {label: inputs.jobs(label, seed=grid.cells[0].seed) for label in grid.traces}
    for combination in combinations:
        mine = split(combination)[0]
        disturbances(mine)
        _check_rules(mine, inputs)
        for each in jobs.values():
            jobs_of(each, mine, seed=0)
    _refuse_idle_seeds(grid, inputs)


def _check_rules(options: Mapping[str, Any], inputs: Inputs) -> None:
    """Raise if quotas or reservations cannot be read, or an option that is on or off is neither."""
    for name in ("drop_too_large", "any_type"):
        refuse_no_flag(name, options.get(name, False))
    rules: dict[str, Callable[[Any], Any]] = {"quotas": Quotas.of, "reservations": Reservations.of}
    for name, read in rules.items():
        if (given := options.get(name)) is not None:
            with inputs.file(str(given)) if str(given) in inputs.files else nullcontext(str(given)) as source:
                read(source)


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
    if any(value for name in RANDOM for value in grid.axes.get(name, ())):
        return
    if any(isinstance(what, bytes) or "seed" in open_options(what) for what in inputs.schedulers.values()):
        return
    raise InputError(
        f"the {len(grid.axes['seed'])} seeds change nothing: {' and '.join(grid.traces)} hold the same jobs whatever "
        "the seed, and nothing else here is random. Give a generated trace such as 'poisson(80, per_hour=12)', or "
        f"something random ({', '.join(f'{name}: {what}' for name, what in RANDOM.items())}), or a single seed."
    )

"""Many runs: every cell of a grid, on many processes or hosts, with the same results in any order, resumed or not."""

from __future__ import annotations

import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, SweepError
from labkit.core.jobs import Jobs
from labkit.experiment import provenance
from labkit.experiment.cell import CellOutcome, check, run_cell
from labkit.experiment.grid import ORDER, Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.on_dask import on_dask
from labkit.experiment.pool import on_pool
from labkit.experiment.scenario import Scenario
from labkit.results import files
from labkit.results.comparison import BOUND, FASTER
from labkit.results.notes import reserved_in
from labkit.results.record import RunRecord
from labkit.results.store import free_id, load
from labkit.results.sweep_folder import SweepFolder
from labkit.results.sweeps import cell_table, idle_seeds
from labkit.system.printing import printable
from labkit.system.progress import ProgressLines, counter, in_notebook
from labkit.workloads.expressions import trace as trace_of

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client


class Store(Protocol):
    """Where rows of cells go."""

    rows: dict[str, dict[str, Any]]

    def add(self, row: dict[str, Any]) -> None:
        """Take the row of a cell."""

    def keep(self, record: RunRecord, *, run: str) -> str:
        """Take a whole run, and tell where it is."""


class InMemory:
    """Rows that are not kept."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take the row of a cell."""
        self.rows[row["cell"]] = row

    def keep(self, record: RunRecord, *, run: str) -> str:
        """Refuse a whole run."""
        raise InputError(f"run {run} of {record.info.trace} cannot be kept without a folder; give folder=.")


def sweep(
    grid: Grid,
    *,
    folder: str | Path | None = None,
    workers: int | None = None,
    client: Client | None = None,
    keep: bool = False,
    strict: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Simulate every cell of a grid, and return one row per cell.

    A cell's seed is the one in its keys, and nothing else in it depends on chance, on the order of cells, or on where
    they run: the metrics are the same bit by bit on one process, on many, and on a Dask cluster.

    Parameters
    ----------
    grid : Grid
        What to run.
    folder : path, optional
        Where each cell is written once it is done. The same call continues from there: cells that are done are not
        run again, cells that failed are. A grid that holds all of the old one's cells extends it; any other is refused.
    workers : int, optional
        Processes, each with one thread; by default as many as there are cores for this process. 0: in this process,
        for a debugger.
    client : distributed.Client, optional
        Run on its Dask cluster instead; results are still written here.
    keep : bool
        Keep whole runs under `folder/runs`, as `labkit.load` reads them.
    strict : bool
        Stop at the first run that fails. Otherwise it is a row with its error.
    progress : bool
        Show a bar with what is done, what failed and the time left; where stderr is no terminal, a line every 30 s.

    Returns
    -------
    DataFrame
        As `labkit.results.cell_table`: axes, error, run, metrics, cpu_s, wall_s, in the order of the grid.

    Raises
    ------
    InputError
        Before anything runs, if a name, a value or the folder is wrong, or the seeds change nothing.
    SweepError
        If a cell fails and `strict` is set, no worker can start, or the Dask cluster is lost; what is done is kept.

    Examples
    --------
    >>> grid = Grid(schedulers=["fifo", "srtf"], trace="poisson(20, per_hour=60)", cluster="demo", seeds=2)
    >>> table = sweep(grid, workers=0, progress=False)
    >>> table[["scheduler", "seed", "n_jobs"]].values.tolist()
    [['fifo', 0, 20], ['fifo', 1, 20], ['srtf', 0, 20], ['srtf', 1, 20]]
    """
    if keep and folder is None:
        raise InputError("keep=True needs a folder to keep runs in; give folder=.")
    inputs = Inputs.of(grid)
    check(grid, inputs)
    start = _runner(inputs, workers=workers, client=client, keep=keep)
    with ExitStack() as stack:
        store = InMemory() if folder is None else stack.enter_context(SweepFolder.open(folder, plan=plan(grid, inputs)))
        todo = [cell for cell in _by_seed(grid) if not _is_done(store.rows.get(cell.id), keep=keep)]
        bar = stack.enter_context(_Bar(len(grid), done=len(grid) - len(todo), shown=progress))
        notes = dict.fromkeys([*_age_notes(store), *_notes_of_done(grid, store)])
        try:
            for outcome in stack.enter_context(closing(start(todo))):
                notes |= dict.fromkeys(outcome.notes)
                store.add(row_of(outcome, store))
                bar.tell(outcome)
                if strict and outcome.error:
                    raise SweepError(f"{outcome.cell}: {outcome.error}")
        except (KeyboardInterrupt, SweepError):
            stack.close()
            print(_how_to_resume(grid, store, folder), file=sys.stderr)
            raise
        table = cell_table(store.rows.values(), axes=grid.axes, folder=None if folder is None else Path(folder))
    for note in [*notes, *_reserved_notes(grid, store), *_idle_notes(table)]:
        warnings.warn(note, stacklevel=2)
    return table


def plan(grid: Grid, inputs: Inputs) -> dict[str, Any]:
    """Return the record of its grid in a sweep's folder."""
    return {"axes": dict(grid.axes), "meanings": inputs.meanings(grid), **provenance.stamp()}


def row_of(outcome: CellOutcome, store: Store) -> dict[str, Any]:
    """Return the row of a cell as JSON holds it, with its run kept if there is one."""
    cell = outcome.cell
    run = "" if outcome.record is None else store.keep(outcome.record, run=f"{outcome.record.info.run}-{cell.id}")
    metrics = {name: _plain(value) for name, value in outcome.metrics.items()}
    row: dict[str, Any] = {"cell": cell.id, "keys": dict(cell.keys), "error": outcome.error, "run": run}
    row |= {"metrics": metrics, "cpu_s": outcome.cpu_s, "wall_s": outcome.wall_s, "speeds": outcome.speeds}
    row |= {FASTER: True} if outcome.bound_faster else {}
    row |= {"reserved": [list(told) for told in outcome.reserved]} if outcome.reserved else {}
    row |= {BOUND: _plain(outcome.bound_jct_s)} | ({"notes": list(outcome.notes)} if outcome.notes else {})
    return row | ({"trace": outcome.trace} if outcome.trace else {})


def _plain(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return None if math.isnan(value) else value


def default_workers() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _runner(
    inputs: Inputs, *, workers: int | None, client: Client | None, keep: bool
) -> Callable[[Sequence[Cell]], Any]:
    """Return the outcomes of running cells, as an iterator that can be closed."""
    n = default_workers() if workers is None else workers
    if client is not None:
        return lambda cells: on_dask(cells, inputs=inputs, client=client, keep=keep)
    if n < 0:
        raise InputError(f"workers is {workers}; expected a number of processes >= 1, or 0 for this process.")
    if n == 0:
        return lambda cells: _here(cells, inputs=inputs, keep=keep)
    return lambda cells: on_pool(cells, inputs=inputs, workers=n, keep=keep)


def _here(cells: Sequence[Cell], *, inputs: Inputs, keep: bool) -> Iterator[CellOutcome]:
    for cell in cells:
        yield run_cell(cell, inputs=inputs, keep=keep)


def _by_seed(grid: Grid) -> list[Cell]:
    """Return all cells, the first seed of each scheduler first: early on there is something to compare."""
    place = {seed: i for i, seed in enumerate(grid.axes["seed"])}
    return sorted(grid.cells, key=lambda cell: place[cell.keys["seed"]])


def _is_done(row: dict[str, Any] | None, *, keep: bool) -> bool:
    return row is not None and not row["error"] and (bool(row["run"]) or not keep)


def _age_notes(store: Store) -> list[str]:
    """Return a note where cells that are done were run by another labkit."""
    then, now = getattr(store, "plan", {}).get("commit", ""), provenance.commit()
    if not store.rows or then == now:
        return []
    return [f"runs done before are of labkit's commit {then or 'unknown'}; those of today are of {now or 'unknown'}"]


def _notes_of_done(grid: Grid, store: Store) -> list[str]:
    """Return the notes on the cells that are not run again."""
    return [note for cell in grid.cells for note in store.rows.get(cell.id, {}).get("notes", ())]


def _reserved_notes(grid: Grid, store: Store) -> list[str]:
    """Return the effects of reservations on the jobs of all cells."""
    return reserved_in(store.rows[cell.id] for cell in grid.cells if cell.id in store.rows)


def _idle_notes(table: pd.DataFrame) -> list[str]:
    idle = idle_seeds(table) if len(table) else []
    return [f"every seed gave the same numbers with {', '.join(idle)}: nothing there is random"] if idle else []


def _how_to_resume(grid: Grid, store: Store, folder: str | Path | None) -> str:
    n = sum(_is_done(store.rows.get(cell.id), keep=False) for cell in grid.cells)
    if folder is None:
        return f"stopped: {n} of {len(grid)} runs were done and are lost, because no folder was given to keep them in."
    return f"stopped: {n} of {len(grid)} runs are done and kept in {folder}; the same call continues from there."


class _Bar:
    """A bar with the cells that are done and those that failed; a line now and then where no terminal shows it."""

    def __init__(self, total: int, *, done: int, shown: bool) -> None:
        watched = sys.stderr.isatty() or in_notebook()
        self._bar = counter(total, unit="run", done=done, shown=shown and watched)
        self._lines = ProgressLines(total, unit="runs", done=done) if shown and not watched else None
        self._n_failed = 0

    def tell(self, outcome: CellOutcome) -> None:
        """Count a cell; say what went wrong with it."""
        self._bar.update()
        self._n_failed += bool(outcome.error)
        if self._lines is not None:
            self._lines.done, self._lines.n_failed = self._lines.done + 1, self._n_failed
        if outcome.error:
            self._bar.set_postfix_str(f"{self._n_failed} failed")
            if self._lines is not None:
                print(printable(f"{outcome.cell}: {outcome.error}"), file=sys.stderr, flush=True)
            elif not self._bar.disable:
                self._bar.write(printable(f"{outcome.cell}: {outcome.error}"), file=sys.stderr)

    def __enter__(self) -> _Bar:
        if self._lines is not None:
            self._lines.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._lines is not None:
            self._lines.__exit__()
            if self._n_failed:
                print(self._lines.line(), file=sys.stderr, flush=True)


@dataclass(frozen=True, eq=False)
class Seeded:
    """What came out."""

    table: pd.DataFrame
    """A row per scheduler and seed: `labkit.results.cell_table`."""
    records: list[RunRecord]
    """The runs of the first seed, if they were asked for."""


def compare_on_seeds(
    scenario: Scenario,
    *,
    schedulers: Iterable[str],
    seeds: Iterable[int],
    runs: Path | None = None,
    records: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> Seeded:
    """Simulate each scheduler on each seed of a scenario; a scheduler that fails is a row with its error.

    Raise InputError as `labkit.sweep`: the seeds of a trace from a file change nothing, say; SweepError if every run
    failed; the message is that of the first.

    `runs`: where to keep all runs, each in a folder of its own; `records`: return the runs of the first seed.
    """
    fields = {name: value for name, value in scenario.plain().items() if name not in ORDER}
    if (own := fields.pop("own", [])) or isinstance(scenario.cluster, Cluster):
        raise InputError(
            f"{', '.join(own) or 'cluster'} of a comparison on seeds is an object; expected a name or a file."
        )
    trace: str | Jobs = scenario.trace
    if (reader := fields.pop("format", None)) is not None and isinstance(trace, str):
        trace = trace_of(trace, format=reader)
    grid = Grid(schedulers=list(schedulers), trace=trace, cluster=scenario.cluster, seeds=seeds, **fields)
    with _scratch(runs, keep=records or runs is not None) as scratch:
        table = sweep(grid, folder=scratch, workers=workers, keep=scratch is not None, progress=progress)
        if (table["error"] != "").all():
            raise SweepError(f"every run failed; the first: {table['error'].iloc[0]}")
        first = table[(table["seed"] == grid.axes["seed"][0]) & (table["run"] != "")]
        found = [load(run) for run in first["run"]] if records else []
        if runs is not None:
            table = table.assign(run=[_store_run(run, runs) if run else "" for run in table["run"]])
        else:
            table = table.assign(run="")
    return Seeded(table, found)


@contextmanager
def _scratch(folder: Path | None, *, keep: bool) -> Iterator[Path | None]:
    """Lend an empty folder for whole runs, on the disk on which they stay."""
    if not keep:
        yield None
        return
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".labkit-seeds-", dir=folder) as scratch:
        yield Path(scratch) / "sweep"


def _store_run(run: str, folder: Path) -> str:
    """Move a run to where runs are kept, under the next free id."""
    source = Path(run)
    info = files.read_info(source / "run.json")
    name = free_id(folder, f"{source.name.rpartition('-')[0]}")
    files.write_info(source / "run.json", replace(info, run=name))
    shutil.move(source, folder / name)
    return str(folder / name)

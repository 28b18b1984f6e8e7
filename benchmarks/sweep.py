"""Sweeps: what a cell costs beside its simulation, and what a second worker is worth.

python -m benchmarks.sweep
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from tempfile import TemporaryDirectory

from benchmarks import Row, best_s, size
from labkit.core import Jobs
from labkit.experiment.cell import CellOutcome, run_cell
from labkit.experiment.grid import Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.pool import on_pool
from labkit.experiment.sweeping import plan, row_of
from labkit.results.sweep_folder import SweepFolder

COMMAND = "python -m benchmarks.sweep"
TRIVIAL = Jobs.of(name="trivial", arrival_s=[0.0], total_steps=[1.0], duration_s=[1.0])


def rows() -> list[Row]:
    """Return one row per figure."""
    return [*_overhead(), *_speed_up(), _lost()]


def _row(name: str, value: float, unit: str, goal: float | None, *, higher_is_better: bool = False) -> Row:
    return Row(name, round(value, 3), unit, goal, higher_is_better, COMMAND)


def _overhead(n: int = size(300, short=3)) -> list[Row]:
    """Return what a trivial cell takes: in all, of it in the cell itself, and to write its row."""
    grid = Grid(schedulers="fifo", trace=TRIVIAL, cluster="no_network(1)", seeds=n)
    inputs = Inputs.of(grid)
    run_cell(grid.cells[0], inputs=inputs)
    alone_s = min(_mean_cpu_s([run_cell(cell, inputs=inputs) for cell in grid.cells]) for _ in range(3))
    outcome = run_cell(grid.cells[0], inputs=inputs)
    with TemporaryDirectory() as folder, SweepFolder.open(folder, plan=plan(grid, inputs)) as store:
        caller_s = min(_caller_cpu_s(grid.cells, inputs) for _ in range(3))
        write_s = best_s(lambda: [store.add(row_of(outcome, store)) for _ in range(n)]) / n
    return [
        _row("sweep, a trivial cell, of it the run and its numbers", 1e3 * alone_s, "CPU ms", None),
        _row("sweep, handing a cell to a worker and taking its numbers", 1e3 * caller_s, "CPU ms", 2),
        _row("sweep, writing the row of a cell, synced", 1e3 * write_s, "ms", 10),
    ]


def _mean_cpu_s(outcomes: Sequence[CellOutcome]) -> float:
    return sum(outcome.cpu_s for outcome in outcomes) / len(outcomes)


def _caller_cpu_s(cells: Sequence[Cell], inputs: Inputs) -> float:
    """Return processor seconds of this process per cell, without the start of the worker."""
    outcomes = on_pool(cells, inputs=inputs, workers=1)
    next(outcomes)
    began_s = time.process_time()
    n = sum(1 for _ in outcomes)
    return (time.process_time() - began_s) / n


def _speed_up() -> list[Row]:
    """Return how much faster two workers are than one, start of the processes included; needs two idle cores."""
    grid = Grid(
        schedulers=["srtf", "las"],
        trace=f"poisson({size(800, short=5)}, per_hour=20)",
        cluster="demo",
        seeds=4,
        load=[1, 2],
    )
    inputs = Inputs.of(grid)
    took: dict[int, float] = {}
    cpu_s: dict[int, float] = {}
    for workers in (1, 2):
        began_s = time.perf_counter()
        found: list[CellOutcome] = list(on_pool(grid.cells, inputs=inputs, workers=workers))
        took[workers] = time.perf_counter() - began_s
        cpu_s[workers] = sum(outcome.cpu_s for outcome in found)
        failed = [outcome.error for outcome in found if outcome.error]
        if failed:
            raise RuntimeError(f"{len(failed)} cells failed: {failed[0]}")
    return [
        _row("sweep, 16 real cells, two workers over one", took[1] / took[2], "times", 1.7, higher_is_better=True),
        _row("sweep, 16 real cells, their processor time, two workers over one", cpu_s[2] / cpu_s[1], "times", 1.3),
    ]


def _lost(n: int = size(1000, short=6), workers: int = 2) -> Row:
    """Return the part of the workers' time that passes outside of cells, once all of them work.

    Rows are written as in a sweep. Other work on the machine lengthens cells and what is between them alike.
    """
    grid = Grid(schedulers="fifo", trace=f"poisson({size(200, short=5)}, per_hour=20)", cluster="demo", seeds=n)
    inputs = Inputs.of(grid)
    with TemporaryDirectory() as folder, SweepFolder.open(folder, plan=plan(grid, inputs)) as store:
        outcomes = on_pool(grid.cells, inputs=inputs, workers=workers)
        for outcome in islice(outcomes, 2 * workers):  # both have begun then
            store.add(row_of(outcome, store))
        began_s, in_cells_s = time.perf_counter(), 0.0
        for outcome in outcomes:
            in_cells_s += outcome.wall_s
            store.add(row_of(outcome, store))
        took_s = time.perf_counter() - began_s
    lost = 100 * (1 - in_cells_s / (workers * took_s))
    return _row(f"sweep, {n:,} cells of two workers, time lost between cells", lost, "%", 5)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:65} {row.value:10,.3f} {row.unit:6} (goal {row.goal})")

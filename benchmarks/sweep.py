"""Sweeps: what a cell costs beside its simulation, and what a second worker is worth.

python -m benchmarks.sweep
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from benchmarks import Row, best_s
from labkit.core import Jobs
from labkit.experiment.cell import Outcome, run_cell
from labkit.experiment.grid import Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.pool import on_pool
from labkit.experiment.sweeping import plan, row_of
from labkit.results.sweep_folder import SweepFolder

COMMAND = "python -m benchmarks.sweep"
TRIVIAL = Jobs.of(name="trivial", arrival_s=[0.0], total_steps=[1.0], duration_s=[1.0])


def rows() -> list[Row]:
    """Return one row per figure."""
    return [*_overhead(), *_speed_up()]


def _row(name: str, value: float, unit: str, goal: float | None, *, higher_is_better: bool = False) -> Row:
    return Row(name, round(value, 3), unit, goal, higher_is_better, COMMAND)


def _overhead(n: int = 300) -> list[Row]:
    """Return what a trivial cell takes: in all, of it in the cell itself, and to write its row."""
    grid = Grid(schedulers="fifo", trace=TRIVIAL, cluster="no_network(1)", seeds=n)
    inputs = Inputs.of(grid)
    run_cell(grid.cells[0], inputs=inputs)
    alone_s = best_s(lambda: [run_cell(cell, inputs=inputs) for cell in grid.cells]) / n
    pool_s = min(_steady_s(grid.cells, inputs, workers=1) for _ in range(3)) / n
    outcome = run_cell(grid.cells[0], inputs=inputs)
    with TemporaryDirectory() as folder, SweepFolder.open(folder, plan=plan(grid, inputs)) as store:
        write_s = best_s(lambda: [store.add(row_of(outcome, store)) for _ in range(n)]) / n
    return [
        _row("sweep, a trivial cell in this process", 1e3 * alone_s, "ms", None),
        _row("sweep, what a worker process adds to a cell", 1e3 * (pool_s - alone_s), "ms", 5),
        _row("sweep, writing the row of a cell, synced", 1e3 * write_s, "ms", 10),
    ]


def _steady_s(cells: Sequence[Cell], inputs: Inputs, *, workers: int) -> float:
    """Return seconds from the first outcome to the last: without the start of the workers."""
    outcomes = on_pool(cells, inputs=inputs, workers=workers)
    next(outcomes)
    began_s = time.perf_counter()
    for _ in outcomes:
        pass
    return time.perf_counter() - began_s


def _speed_up() -> list[Row]:
    """Return how much faster two workers are than one, start of the processes included, on cells of about a second."""
    grid = Grid(schedulers=["srtf", "las"], trace="poisson(1500, per_hour=20)", cluster="demo", seeds=6, load=[1, 2])
    inputs = Inputs.of(grid)
    took: dict[int, float] = {}
    cpu_s: dict[int, float] = {}
    for workers in (1, 2):
        began_s = time.perf_counter()
        found: list[Outcome] = list(on_pool(grid.cells, inputs=inputs, workers=workers))
        took[workers] = time.perf_counter() - began_s
        cpu_s[workers] = sum(outcome.cpu_s for outcome in found)
        failed = [outcome.error for outcome in found if outcome.error]
        if failed:
            raise RuntimeError(f"{len(failed)} cells failed: {failed[0]}")
    return [
        _row("sweep, 24 real cells, two workers over one", took[1] / took[2], "times", 1.7, higher_is_better=True),
        _row("sweep, 24 real cells, their processor time, two workers over one", cpu_s[2] / cpu_s[1], "times", 1.3),
    ]


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:65} {row.value:10,.3f} {row.unit:6} (goal {row.goal})")

"""Sweeps: what a cell costs beside its simulation, and what a second worker is worth.

python -m benchmarks.sweep
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import dask
import distributed
import psutil

from benchmarks import Row, best_s, size
from labkit.core import Jobs
from labkit.experiment.cell import CellOutcome, run_cell
from labkit.experiment.grid import Cell, Grid
from labkit.experiment.inputs import Inputs
from labkit.experiment.on_dask import on_dask
from labkit.experiment.pool import on_pool
from labkit.experiment.sweeping import plan, row_of
from labkit.results.sweep_folder import SweepFolder
from labkit.testbed.dask_host import SETTINGS

COMMAND = "python -m benchmarks.sweep"
TRIVIAL = Jobs.of(name="trivial", arrival_s=[0.0], total_steps=[1.0], duration_s=[1.0])


def rows() -> list[Row]:
    """Return one row per figure."""
    return [*_overhead(), *_speed_up(), *_lost()]


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
        arrival_rate=[1, 2],
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


def _lost(n: int = size(1000, short=6), workers: int = 2) -> list[Row]:
    """Return what a sweep of many short cells loses to what hands them out, on processes and on Dask."""
    grid = Grid(schedulers="fifo", trace=f"poisson({size(200, short=5)}, per_hour=20)", cluster="demo", seeds=n)
    inputs = Inputs.of(grid)
    children = _Children()
    found = _loss_rows("processes", on_pool(grid.cells, inputs=inputs, workers=workers), grid, inputs, children)
    with _dask(workers) as client:
        client.wait_for_workers(workers)
        children = _Children()
        found += _loss_rows("Dask", on_dask(grid.cells, inputs=inputs, client=client), grid, inputs, children)
    return found


def _loss_rows(
    where: str, outcomes: Iterator[CellOutcome], grid: Grid, inputs: Inputs, children: _Children
) -> list[Row]:
    """Return the parts of the workers' time, and of the processor time of all processes, that pass outside of cells.

    Rows are written as in a sweep. Time counts from the beginning of the first cell, and other work on the machine
    lengthens cells and what is between them alike; processor time counts from the call, with the start of workers.
    """
    own_s, began_s = time.process_time(), 0.0
    done: list[CellOutcome] = []
    with TemporaryDirectory() as folder, SweepFolder.open(folder, plan=plan(grid, inputs)) as store:
        for outcome in outcomes:
            began_s = began_s or time.perf_counter() - outcome.wall_s
            store.add(row_of(outcome, store))
            done.append(outcome)
    took_s = time.perf_counter() - began_s
    cpu_s = children.cpu_s() + time.process_time() - own_s
    between = 1 - sum(outcome.wall_s for outcome in done) / (2 * took_s)
    outside = 1 - sum(outcome.cpu_s for outcome in done) / cpu_s
    what = f"sweep, {len(done):,} cells on two {where if where == 'processes' else f'workers of {where}'}"
    return [
        _row(f"{what}, time lost between cells", 100 * between, "%", 5),
        _row(f"{what}, processor time outside of cells", 100 * outside, "%", 5),
    ]


class _Children:
    """Processor time of the processes that this one has started, those that ended and those that live."""

    def __init__(self) -> None:
        self._before_s = self._total_s()

    def cpu_s(self) -> float:
        """Return their processor seconds since this was made."""
        return self._total_s() - self._before_s

    @staticmethod
    def _total_s() -> float:
        times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime + sum(each.user + each.system for each in times)


@contextmanager
def _dask(workers: int) -> Iterator[distributed.Client]:
    """Lend a Dask cluster of so many processes on loopback, set as labkit's own; its scheduler is in this process."""
    with (
        warnings.catch_warnings(),
        dask.config.set(SETTINGS),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            worker_dashboard_address=None, config=SETTINGS,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        yield client


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:65} {row.value:10,.3f} {row.unit:6} (goal {row.goal})")

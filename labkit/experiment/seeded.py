"""Schedulers on many seeds of one trace: a table of all runs, and the whole runs of the first seed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, SweepError
from labkit.core.jobs import Jobs
from labkit.experiment.grid import ORDER, Grid
from labkit.experiment.scenario import Scenario
from labkit.experiment.sweeping import sweep
from labkit.results import files
from labkit.results.record import RunRecord
from labkit.results.store import free_id, load
from labkit.workloads.expressions import trace as trace_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Seeded:
    """What came out.

    Attributes
    ----------
    table : DataFrame
        A row per scheduler and seed: `labkit.results.cell_table`.
    records : list of RunRecord
        The runs of the first seed, if they were asked for.
    """

    table: pd.DataFrame
    records: list[RunRecord]


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

    Parameters
    ----------
    runs : Path, optional
        Where to keep all runs, each in a folder of its own.
    records : bool
        Return the runs of the first seed.

    Raises
    ------
    InputError
        As `labkit.sweep`: the seeds of a trace from a file change nothing, say.
    SweepError
        If every run failed; the message is that of the first.
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
            table = table.assign(run=[_kept(run, runs) if run else "" for run in table["run"]])
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


def _kept(run: str, folder: Path) -> str:
    """Move a run to where runs are kept, under the next free id."""
    source = Path(run)
    info = files.read_info(source / "run.json")
    name = free_id(folder, f"{source.name.rpartition('-')[0]}")
    files.write_info(source / "run.json", replace(info, run=name))
    shutil.move(source, folder / name)
    return str(folder / name)

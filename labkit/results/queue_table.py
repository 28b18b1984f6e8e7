"""The runs of a queue as a table: a row per scheduler and repeat, as that of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.core.errors import LabkitError
from labkit.results.bound import BOUND
from labkit.results.queue import OVER, QueueState, RunQueue
from labkit.results.record import RunRecord
from labkit.results.store import load
from labkit.results.sweeps import cell_table

if TYPE_CHECKING:
    import pandas as pd


def queue_records(queue: RunQueue, folder: Path) -> dict[str, RunRecord]:
    """Return the records of the runs whose jobs are all done, by run; one that cannot be read is left out."""
    found = {}
    for each in queue.runs:
        if each.state == QueueState.DONE and not (folder / each.run).is_symlink():
            try:
                found[each.run] = load(folder / each.run)
            except LabkitError:
                continue
    return found


def queue_table(queue: RunQueue, records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return one row per run that is over: trace, cluster, scheduler, seed (the repeat), and what a sweep's table has.

    A run that failed, was cut at its time limit or cannot be read has the reason as its error, and no metrics.
    """
    runs = [each for each in queue.runs if each.state in OVER]
    cluster = next((record.info.cluster for record in records.values()), "")
    rows: list[dict[str, Any]] = []
    for each in runs:
        record = records.get(each.run)
        error = each.why or each.state if each.state != QueueState.DONE else "" if record else "cannot be read"
        rows.append({
            "keys": {"trace": queue.trace, "cluster": cluster, "scheduler": each.scheduler, "seed": each.repeat},
            "error": str(error), "run": each.run if record else "", "metrics": record.summary if record else {},
            BOUND: record.info.config.get(BOUND) if record else None,
            "wall_s": record.info.wall_s if record else None,
        })  # fmt: skip
    axes: dict[str, Sequence[Any]] = {
        "trace": [queue.trace], "cluster": [cluster], "scheduler": queue.schedulers,
        "seed": sorted({each.repeat for each in runs}),
    }  # fmt: skip
    table = cell_table(rows, axes=axes)
    table.attrs["pairs"] = "repeat"
    return table

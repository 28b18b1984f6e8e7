"""The lane of each job in a Gantt chart that tells holding from working."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.results.intervals import gantt
from labkit.results.record import RunRecord
from labkit.results.stretches import Doing, stretches

if TYPE_CHECKING:
    import pandas as pd


def lanes(record: RunRecord) -> pd.DataFrame:
    """Return what each job held, and within that when it made steps: id, start_s, end_s, workers, works.

    Rows with `works` False are the tasks that it held, whatever it did with them; those with True lie on them.
    """
    import pandas as pd

    bars = gantt(record.events, record.jobs, record.cluster)
    held = bars[bars["role"] == "worker"]
    held = held.groupby(["id", "start_s", "end_s"], as_index=False, sort=False).agg(workers=("count", "sum"))
    pieces = stretches(record.events)
    at_work = (pieces["doing"] == Doing.TRAINING) | ((pieces["doing"] == Doing.RESCALING) & (pieces["steps"] > 0))
    worked = pieces[at_work].rename(columns={"n_workers": "workers"})
    worked["id"] = record.jobs.id[worked["job"]].astype(str)
    columns = ["id", "start_s", "end_s", "workers"]
    parts = [_joined(held[columns]).assign(works=False), _joined(worked[columns]).assign(works=True)]
    both = pd.concat(parts, ignore_index=True)
    return both[both["end_s"] > both["start_s"]].reset_index(drop=True)


def _joined(rows: pd.DataFrame) -> pd.DataFrame:
    """Join rows of a job that follow each other with as many workers."""
    rows = rows.sort_values(["id", "start_s"], kind="stable")
    same = (rows[["id", "workers"]] == rows[["id", "workers"]].shift()).all(axis=1)
    same &= rows["start_s"] == rows["end_s"].shift()
    chains = rows.assign(chain=(~same).cumsum()).groupby("chain", as_index=False)
    joined = chains.agg(
        id=("id", "first"), start_s=("start_s", "first"), end_s=("end_s", "last"), workers=("workers", "first")
    )
    return joined.drop(columns="chain")

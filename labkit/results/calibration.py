"""How far simulated schedulers are from the schedule that a trace recorded, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.text import human_s
from labkit.results.comparison import labels
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

FOLLOWS_RECORD: Final = "follows_record"
"""In a run's options: it is the recorded schedule."""
LATE_S: Final = 1.0
"""A job that starts later than that after its recorded start found no room then."""


def calibration(records: Sequence[RunRecord]) -> list[str]:
    """Return how the mean wait of simulated runs compares with the recorded one, and where that could not be kept.

    Nothing where no run is the recorded schedule.
    """
    named = dict(zip(labels(records), records, strict=True))
    found = [name for name, record in named.items() if record.info.config.get(FOLLOWS_RECORD)]
    if not found:
        return []
    truth = named[found[0]]
    recorded_s = truth.jobs.recorded_start_s - truth.jobs.arrival_s
    waits = dict(zip(truth.jobs.id.astype(str), np.maximum(recorded_s, 0.0), strict=True))
    known = {name: wait_s for name, wait_s in waits.items() if wait_s == wait_s}
    mean_s = float(np.mean(list(known.values())))
    sentences = [f"Recorded: mean wait {human_s(mean_s)} of {len(known):,} jobs."]
    parts = [_compared(name, record.table, known, mean_s) for name, record in named.items() if name not in found]
    if parts:
        sentences.append(f"Against the record: {'; '.join(parts)}.")
    return sentences + _record_overflow(truth)


def _compared(name: str, table: pd.DataFrame, recorded_s: dict[str, float], mean_s: float) -> str:
    """Return how the waits of a simulated run compare with those that are known."""
    mine = table[table["id"].isin(list(recorded_s))].dropna(subset="queueing_s")
    error_s = np.abs(mine["queueing_s"].to_numpy() - np.array([recorded_s[job] for job in mine["id"]]))
    apart = mine["queueing_s"].mean() / mean_s - 1 if mean_s > 0 else np.nan
    where = f"{abs(apart):.1%} {'above' if apart >= 0 else 'below'} recorded" if apart == apart else "not comparable"
    return f"{name} simulated: mean wait {where} (median error of a job {human_s(float(np.median(error_s)))})"


def _record_overflow(truth: RunRecord) -> list[str]:
    """Return notes on the part of the record for which the machines had no room."""
    started = truth.table.set_index("id")["first_start_s"].reindex(truth.jobs.id.astype(str)).to_numpy()
    late_s = started - np.maximum(truth.jobs.recorded_start_s, truth.jobs.arrival_s)
    late = late_s > LATE_S
    sentences = []
    if late.any():
        hours = float((late_s[late] * truth.jobs.gpus[late]).sum() / 3600)
        sentences.append(
            f"The record overfills {truth.cluster.name}: {int(late.sum()):,} of {len(late):,} jobs start later than "
            f"recorded, by {human_s(float(late_s[late].mean()))} on average ({hours:,.6g} GPU-hours). Are hosts "
            "missing, or were jobs requeued (each is replayed in one piece)?"
        )
    if n := int(np.isnan(truth.jobs.recorded_start_s).sum()):
        sentences.append(f"{n:,} jobs have no recorded start, and start in the recorded run when there is room.")
    return sentences

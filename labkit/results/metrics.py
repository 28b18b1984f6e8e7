"""What a run was worth: JCT, makespan, queueing, utilisation, per job and in all. Pure functions of its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.results.fairness import fair_share_s, jain_index
from labkit.results.intervals import end_s, holdings, is_kind, time_split

if TYPE_CHECKING:
    import pandas as pd


def job_table(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return one row per job that arrived, in order of arrival.

    Columns: job (its number), id, model, asked_gpus, arrival_s, first_start_s, completion_s (NaN: not yet), dropped_s
    (NaN: was not given up), jct_s (completion - arrival), queueing_s (arrival to first start), waiting_s, overhead_s,
    training_s (`time_split`), gpu_s (GPU-seconds held), n_preemptions, n_failures, n_rescales, n_cuts (placed with
    fewer tasks than were decided), n_forwarded (times that it left its pod), duration_s (declared time alone with the
    gang it asked for), stretch (jct_s / duration_s).
    """
    import pandas as pd

    arrival, start, completion, dropped = (
        _first_s(rows, kind, len(jobs)) for kind in (Kind.ARRIVED, Kind.STARTED, Kind.COMPLETED, Kind.DROPPED)
    )
    held = holdings(rows, jobs)
    counts = {f"n_{name}": _count(rows, kind, len(jobs)) for name, kind in _COUNTED.items()}
    spent = time_split(rows, jobs).drop(columns="job")
    columns: dict[str, Any] = {
        "job": np.arange(len(jobs)),
        "id": jobs.id.astype(str),
        "model": jobs.model_names().astype(str),
        "asked_gpus": jobs.gpus,
        "arrival_s": arrival,
        "first_start_s": start,
        "completion_s": completion,
        "dropped_s": dropped,
        "jct_s": completion - arrival,
        "queueing_s": start - arrival,
        **{str(name): spent[name].to_numpy() for name in spent},
        "gpu_s": np.bincount(held.job, held.gpu_s, len(jobs)),
        **counts,
        "duration_s": jobs.duration_s,
        "stretch": (completion - arrival) / jobs.duration_s,
    }
    table = pd.DataFrame(columns)
    return table[~np.isnan(arrival)].reset_index(drop=True)


_COUNTED: Final = {
    "preemptions": Kind.PREEMPTED,
    "failures": Kind.FAILED,
    "rescales": Kind.RESCALED,
    "cuts": Kind.CUT,
    "forwarded": Kind.FORWARDED,
}


def _first_s(rows: Events, kind: Kind, n_jobs: int) -> Floats:
    """Return when an event of some kind first happened to each job, (N,), NaN: never."""
    times = np.full(n_jobs, np.nan)
    found = rows[is_kind(rows, kind)][::-1]
    times[found["job"]] = found["time_s"]  # the earliest is written last
    return times


def _count(rows: Events, kind: Kind, n_jobs: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.bincount(rows["job"][is_kind(rows, kind)], minlength=n_jobs)


def summary(rows: Events, jobs: Jobs, cluster: Cluster) -> dict[str, float]:
    """Return a run in a dozen numbers; a mean over no jobs is NaN.

    Returns
    -------
    dict
        n_jobs (arrived), n_unfinished (not completed), n_dropped (given up); mean_jct_s, median_jct_s, p95_jct_s over
        completed jobs; makespan_s (last completion - first arrival); mean_queueing_s over started jobs; utilisation
        (GPU-seconds held / GPUs built x time from first arrival to the last event); mean_stretch; overhead (fraction
        of the time with tasks in which there was no progress); mean_rho, max_rho (finish-time fairness against an
        equal share, `fair_share_s`); jain_index of the stretch; n_preemptions, n_rescales, n_failures, n_cuts (gangs
        placed with fewer tasks than the scheduler gave them), n_forwarded (jobs placed in another pod than theirs),
        n_decisions.
    """
    return _summed(
        job_table(rows, jobs), cluster, until_s=end_s(rows), n_decisions=int(is_kind(rows, Kind.DECIDED).sum())
    )


def _summed(table: pd.DataFrame, cluster: Cluster, *, until_s: float, n_decisions: int) -> dict[str, float]:
    done = table[table["completion_s"].notna()]
    jct = done["jct_s"].to_numpy(np.float64)
    first_s = float(table["arrival_s"].min()) if len(table) else 0.0
    overhead_s, training_s = float(table["overhead_s"].sum()), float(table["training_s"].sum())
    rho = jct / fair_share_s(table, n_gpus=cluster.n_gpus, until_s=until_s)[table["completion_s"].notna().to_numpy()]
    return {
        "n_jobs": len(table),
        "n_unfinished": len(table) - len(done),
        "n_dropped": int(table["dropped_s"].notna().sum()),
        "mean_jct_s": _mean(jct),
        "median_jct_s": float(np.median(jct)) if len(jct) else np.nan,
        "p95_jct_s": float(np.percentile(jct, 95)) if len(jct) else np.nan,
        "makespan_s": float(done["completion_s"].max()) - first_s if len(done) else np.nan,
        "mean_queueing_s": _mean(table["queueing_s"].to_numpy(np.float64)),
        "utilisation": _ratio(float(table["gpu_s"].sum()), cluster.n_gpus * (until_s - first_s)),
        "mean_stretch": _mean(done["stretch"].to_numpy(np.float64)),
        "overhead": _ratio(overhead_s, overhead_s + training_s),
        "mean_rho": _mean(rho),
        "max_rho": float(np.nanmax(rho)) if np.isfinite(rho).any() else np.nan,
        "jain_index": jain_index(done["stretch"].to_numpy(np.float64)),
        **{f"n_{name}": int(table[f"n_{name}"].sum()) for name in _COUNTED},
        "n_decisions": n_decisions,
    }


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else np.nan


def jct_cdf(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the JCT distribution of some job tables by scheduler: scheduler, jct_s, fraction.

    `fraction` is of all jobs that arrived, so the curve of a run with unfinished jobs ends below 1.
    """
    import pandas as pd

    curves = []
    for scheduler, table in tables.items():
        jct_s = np.sort(table["jct_s"].dropna().to_numpy(np.float64))
        fraction = np.arange(1, len(jct_s) + 1) / max(len(table), 1)
        curves.append(pd.DataFrame({"scheduler": scheduler, "jct_s": jct_s, "fraction": fraction}))
    return pd.concat(curves, ignore_index=True)

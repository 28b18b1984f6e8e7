"""What a run was worth: JCT, makespan, queueing, utilisation, fairness. Pure functions of its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.clock import jct_s
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
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
    jct = jct_s(arrival_s=arrival, completion_s=completion)
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
        "jct_s": jct,
        "queueing_s": start - arrival,
        **{str(name): spent[name].to_numpy() for name in spent},
        "gpu_s": np.bincount(held.job, held.gpu_s, len(jobs)),
        **counts,
        "duration_s": jobs.duration_s,
        "stretch": jct / jobs.duration_s,
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


def finish_time_fairness(table: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """Return rho of each completed job: its JCT over its JCT where every job has an equal share of the cluster.

    This is Gavel's definition [1]_: `reference` is the job table of a second run of the same trace, under a policy
    that gives each of n active jobs 1/n of every device type (Gavel calls it "isolated"). Jobs are matched by id.
    rho <= 1: sharing did not hurt. `fair_share_s` estimates the denominator without a second run.

    Parameters
    ----------
    table, reference : DataFrame
        From `job_table`.

    Returns
    -------
    DataFrame
        id, jct_s, reference_s, rho; jobs that are complete in both runs, in the order of `table`.

    Raises
    ------
    InputError
        If no job is complete in both runs.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads",
       OSDI 2020, sec. 4.2; the idea is from Mahajan et al., "Themis", NSDI 2020.
    """
    both = table[["id", "jct_s"]].merge(
        reference[["id", "jct_s"]].rename(columns={"jct_s": "reference_s"}), on="id", how="inner", validate="one_to_one"
    )
    both = both.dropna().reset_index(drop=True)
    if both.empty:
        raise InputError("no job is complete in both runs; finish-time fairness needs two runs of the same trace.")
    return both.assign(rho=both["jct_s"] / both["reference_s"])


def fair_share_s(table: pd.DataFrame, *, n_gpus: int, until_s: float) -> Floats:
    """Estimate the seconds each job would take on an equal share of the cluster, without a second run.

    duration * max(1, asked GPUs * n / n_gpus), n the mean number of unfinished jobs during the job's life: the job
    goes at full speed as long as its share covers what it asked for, and in proportion below that (Themis' T_id).

    Parameters
    ----------
    table : DataFrame
        From `job_table`.
    n_gpus : int
        GPUs of the cluster.
    until_s : float
        Where the log ends: unfinished jobs live until then, those that were given up until they were.

    Returns
    -------
    array
        (rows of `table`,) seconds; NaN where the declared duration is unknown.
    """
    arrival = table["arrival_s"].to_numpy(np.float64)
    over = table["completion_s"].fillna(table["dropped_s"]).fillna(until_s).to_numpy(np.float64)
    moments = np.unique(np.concatenate([arrival, over]))
    active = np.searchsorted(np.sort(arrival), moments, "right") - np.searchsorted(np.sort(over), moments, "right")
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(moments))])  # job-seconds up to each moment
    lived = jct_s(arrival_s=arrival, completion_s=over)
    shared = np.interp(over, moments, area) - np.interp(arrival, moments, area) if len(moments) else lived
    n_active = np.divide(shared, lived, out=np.ones_like(lived), where=lived > 0)
    crowding = np.maximum(1.0, table["asked_gpus"].to_numpy(np.float64) * n_active / max(n_gpus, 1))
    fair: Floats = table["duration_s"].to_numpy(np.float64) * crowding
    return fair


def jain_index(values: Floats) -> float:
    """Return Jain's index, (sum x)^2 / (n sum x^2): 1 where all are equal, 1/n where one has everything.

    >>> jain_index(np.array([2.0, 2.0])), jain_index(np.array([1.0, 0.0]))
    (1.0, 0.5)
    """
    known = values[np.isfinite(values)]
    squares = float((known**2).sum())
    return float(known.sum() ** 2 / (len(known) * squares)) if squares > 0 else np.nan

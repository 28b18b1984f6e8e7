"""Was it fair: finish-time fairness against an equal share, and Jain's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats

if TYPE_CHECKING:
    import pandas as pd


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
    lived = over - arrival
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

"""Forwarding between pods: jobs that ran in a pod that is not their home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.pods import n_pods
from labkit.results.intervals import is_kind

if TYPE_CHECKING:
    import pandas as pd


def forwarding(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return how many jobs of each pod were forwarded to each other pod, one row per pair of pods.

    Columns: home (the pod that a job belonged to), pod (where it was forwarded to), n_jobs (0 where home is pod: jobs
    that stay are no events), fraction (n_jobs over the jobs that arrived at that home; NaN where none did).

    A recording of a labkit that told of no pods has no such events, and zeros here.
    """
    import pandas as pd

    n = n_pods(cluster)
    belongs = jobs.home.copy()
    sent = np.zeros((n, n), np.int64)
    told = rows[is_kind(rows, Kind.FORWARDED)]
    for job, to in zip(told["job"].tolist(), told["value"].astype(np.int64).tolist(), strict=True):
        sent[belongs[job], to] += 1
        belongs[job] = to
    came = rows["job"][is_kind(rows, Kind.ARRIVED)]
    homes = jobs.home[came]
    arrived = np.bincount(homes[homes >= 0], minlength=n).astype(np.float64)
    home, pod = np.divmod(np.arange(n * n), n)
    part = sent / np.where(arrived > 0, arrived, np.nan)[:, None]
    return pd.DataFrame({"home": home, "pod": pod, "n_jobs": sent.ravel(), "fraction": part.ravel()})

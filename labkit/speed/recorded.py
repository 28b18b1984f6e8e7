"""Speed from recorded durations, for traces that tell nothing else about their jobs."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.core.running import Running


class Recorded:
    """Steps/s of a job: its steps over its recorded duration with the gang it asked for, on any device type.

    `measured_later`: a job without a duration makes a step a second here; on machines the truth is elsewhere.

    With another number of workers the speed changes in proportion. A job that asked for parameter servers makes no
    progress without one.

    Raises
    ------
    InputError
        If a job has no recorded duration.
    """

    local = True

    def __init__(self, jobs: Jobs, cluster: Cluster, *, measured_later: bool = False) -> None:
        unknown = np.flatnonzero(np.isnan(jobs.duration_s))
        if measured_later:
            self.in_words = f"durations of {len(unknown)} jobs are not known until they are measured"
        elif len(unknown):
            raise InputError(
                f"{jobs.name}: {len(unknown)} of {len(jobs)} jobs have no duration_s, the first is job "
                f"{jobs.id[unknown[0]]}; add the column, or choose a speed model that does not need it."
            )
        seconds = np.where(np.isnan(jobs.duration_s), jobs.total_steps, jobs.duration_s)
        self._per_worker: Floats = jobs.total_steps / seconds / jobs.n_workers
        self._needs_ps: Bools | None = jobs.n_ps > 0 if (jobs.n_ps > 0).any() else None
        self._durations_s, self._most_workers = jobs.duration_s, jobs.max_workers
        self._allowed = may_run_on(jobs, cluster)
        self._requested_workers = jobs.n_workers

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        speeds: Floats = self._per_worker[running.job] * running.n_workers
        if self._needs_ps is not None:
            speeds[self._needs_ps[running.job] & (running.n_ps == 0)] = 0.0
        return speeds

    def gang_speeds(self) -> Floats:
        """Return steps/s of each job with the gang that it asked for, which are the same wherever it sits, (N,)."""
        return np.asarray(self._per_worker * self._requested_workers)

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all: all that they allow, (N, T)."""
        return self._allowed.copy()

    def durations_s(self) -> Floats:
        """Return the recorded seconds of each job, (N,)."""
        return self._durations_s.copy()

    def fastest(self) -> Floats:
        """Return steps/s of each job with the most workers that it may have, (N,)."""
        best: Floats = self._per_worker * self._most_workers
        return best

"""What a job held from when to when, and how fast it was with that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS

if TYPE_CHECKING:
    import pandas as pd

_COUNTS: Final = (
    Kind.STARTED, Kind.RESCALED, Kind.PROGRESSED, Kind.PAUSED, Kind.RESIZED, Kind.PREEMPTED, Kind.COMPLETED,
    Kind.FAILED, Kind.DROPPED,
)  # fmt: skip
"""The kinds whose value is the number of steps done."""
_HAS: Final = (Kind.STARTED, Kind.RESCALED, Kind.RESIZED)
"""After these, a job trains with the tasks that it was placed with last."""
_OVER: Final = (Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED, Kind.DROPPED)


def configurations(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return a row for each time in which a job trained with one configuration.

    Returns
    -------
    DataFrame
        job (its id), start_s, end_s, n_workers, worker_cores, n_ps, ps_cores (mean of a task), cores (in all), steps
        (made meanwhile), steps_per_s.
    """
    import pandas as pd

    started = np.unique(rows["job"][rows["kind"] == Kind.STARTED]).tolist()
    found = [row for job in started for row in _of(rows, jobs, job)]
    columns = ["job", "start_s", "end_s", "n_workers", "worker_cores", "n_ps", "ps_cores", "cores", "steps"]
    table = pd.DataFrame(found, columns=columns)
    seconds = (table["end_s"] - table["start_s"]).clip(lower=1e-9)
    return table.assign(steps_per_s=table["steps"] / seconds)


def _of(rows: Events, jobs: Jobs, job: int) -> list[tuple[object, ...]]:
    """Return the configurations of one job, without their speeds."""
    mine = rows[rows["job"] == job]
    mine = mine[np.isin(mine["kind"], (*_COUNTS, Kind.PLACED))]
    found: list[tuple[object, ...]] = []
    holds: tuple[int, float, int, float] | None = None
    since, steps, name = 0.0, 0.0, str(jobs.id[job])

    def close(time_s: float, done: float) -> None:
        if holds is not None and time_s > since:
            n_workers, worker, n_ps, ps = holds
            cores = round(n_workers * worker + n_ps * ps, 6)
            found.append((name, since, time_s, *holds, cores, done - steps))

    for row in mine[mine["kind"] != Kind.PLACED]:
        kind, time_s, done = int(row["kind"]), float(row["time_s"]), float(row["value"])
        if kind not in (*_HAS, *_OVER):
            continue
        close(time_s, done)
        holds = None if kind in _OVER else _placed(mine, jobs, job, until_s=time_s)
        since, steps = time_s, done
    told = mine[mine["kind"] != Kind.PLACED]
    if len(told):
        close(float(told["time_s"][-1]), float(told["value"][-1]))
    return found


def _placed(mine: Events, jobs: Jobs, job: int, *, until_s: float) -> tuple[int, float, int, float]:
    """Return workers and the mean cores of one, servers and the mean cores of one, as placed last by a time."""
    placed = mine[(mine["kind"] == Kind.PLACED) & (mine["time_s"] <= until_s)]
    last = placed[placed["time_s"] == placed["time_s"].max(initial=-np.inf)]
    sizes: list[float] = []
    for role, demand in ((Role.WORKER, jobs.worker_demand), (Role.PS, jobs.ps_demand)):
        those = last[last["role"] == role]
        n = int(those["value"].sum())
        cores = np.where(np.isnan(those["cpus"]), demand[job, CPUS], those["cpus"])
        sizes += [n, round(float((cores * those["value"]).sum()) / n, 6) if n else 0.0]
    return int(sizes[0]), sizes[1], int(sizes[2]), sizes[3]

"""Which jobs were rescaled while they trained: when, and to how many workers and PSs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.core.events import Events, Kind, Role
from labkit.results.intervals import is_kind

if TYPE_CHECKING:
    import pandas as pd


def rescalings(rows: Events) -> pd.DataFrame:
    """Return a row per rescaling of a job that had started to train, in order of the log.

    Returns
    -------
    DataFrame
        job, time_s (when it was done), steps (made by then), n_workers and n_ps (as they were decided last).
    """
    import pandas as pd

    found: list[tuple[int, float, float, int, int]] = []
    decided: dict[int, tuple[float, list[int]]] = {}
    seen = rows[is_kind(rows, Kind.PLACED, Kind.RESCALED)]
    columns = (seen[name].tolist() for name in ("job", "time_s", "kind", "role", "value"))
    for job, time_s, kind, role, value in zip(*columns, strict=True):
        if kind == Kind.PLACED:
            if job not in decided or decided[job][0] != time_s:
                decided[job] = time_s, [0, 0]
            decided[job][1][role] += int(value)
        else:
            gang = decided[job][1]
            found.append((job, time_s, value, gang[Role.WORKER], gang[Role.PS]))
    return pd.DataFrame(found, columns=["job", "time_s", "steps", "n_workers", "n_ps"])

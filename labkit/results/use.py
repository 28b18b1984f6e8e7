"""What a run told of its tasks: what they used, how fast they were, and why they failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.events import Cause, Events, Kind, Quantity, Role, names, positions
from labkit.core.jobs import Jobs
from labkit.core.resources import Ints

if TYPE_CHECKING:
    import pandas as pd

FAILURES: Final = (Kind.TASK_FAILED, Kind.FAILED, Kind.DROPPED, Kind.PREEMPTED)
"""After which a job holds a task less, or none, although it is not done."""


def measured(rows: Events, jobs: Jobs) -> pd.DataFrame:
    """Return what was measured, a row each: time_s, job, role, task, quantity, value.

    `job` is the id of the trace; `task` is -1 where a row tells of all tasks of a role: what of them, `Quantity` says.
    """
    import pandas as pd

    rows = rows[rows["kind"] == Kind.MEASURED]
    return pd.DataFrame(
        {
            "time_s": rows["time_s"],
            "job": _ids(rows["job"], jobs),
            "role": pd.Categorical.from_codes(rows["role"], pd.Index(names(Role))),
            "task": rows["task"],
            "quantity": pd.Categorical.from_codes(positions(rows["quantity"], Quantity), pd.Index(names(Quantity))),
            "value": rows["value"],
        }
    )


def failures(rows: Events, jobs: Jobs, cluster: Cluster) -> pd.DataFrame:
    """Return why tasks were lost, a row each: time_s, job, kind, role, task, machine, cause, detail.

    `kind` is task_failed, or failed, dropped or preempted for the whole job; then there is no role and `task` is -1.
    `machine` is empty where none has a part in it or it is not known; `cause` is unknown in runs of an older labkit.
    `detail` is the exit status of a task, as a sentence.
    """
    import pandas as pd

    rows = rows[np.isin(rows["kind"], FAILURES)]
    machines = np.array([*cluster.machines, ""], dtype=object)
    causes = np.where(rows["cause"] < 0, int(Cause.UNKNOWN), rows["cause"])
    return pd.DataFrame(
        {
            "time_s": rows["time_s"],
            "job": _ids(rows["job"], jobs),
            "kind": [Kind(kind).name.lower() for kind in rows["kind"].tolist()],
            "role": pd.Categorical.from_codes(rows["role"], pd.Index(names(Role))),
            "task": rows["task"],
            "machine": machines[rows["machine"]].astype(str),
            "cause": pd.Categorical.from_codes(positions(causes, Cause), pd.Index(names(Cause))),
            "detail": [_detail(int(row["kind"]), float(row["value"])) for row in rows],
        }
    )


def _ids(numbers: Ints, jobs: Jobs) -> NDArray[np.str_]:
    return jobs.id[numbers].astype(str)


def _detail(kind: int, status: float) -> str:
    """Return how a task ended, in words.

    >>> _detail(Kind.TASK_FAILED, -9.0), _detail(Kind.TASK_FAILED, 1.0), _detail(Kind.FAILED, 20.0)
    ('ended by signal 9', 'exit code 1', '')
    """
    if kind != Kind.TASK_FAILED or np.isnan(status):
        return ""
    return f"ended by signal {-status:.0f}" if status < 0 else f"exit code {status:.0f}"

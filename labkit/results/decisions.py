"""What was decided about jobs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs

if TYPE_CHECKING:
    import pandas as pd


def decisions(rows: Events, jobs: Jobs, reasons: Sequence[str]) -> pd.DataFrame:
    """Return why decisions changed jobs, a row each: time_s, job, reason.

    `job` is the id of the trace. Schedulers that tell no reasons have no rows.

    Raises
    ------
    InputError
        If an event names a text that is not among the reasons.
    """
    import pandas as pd

    rows = rows[rows["kind"] == Kind.EXPLAINED]
    numbers = rows["value"].astype(np.int64)
    if len(unknown := numbers[(numbers < 0) | (numbers >= len(reasons))]):
        raise InputError(
            f"reason {unknown[0]} is named by an event, and the run has {len(reasons)} of them; its list of reasons "
            "does not belong to its events."
        )
    texts = np.array([*reasons, ""], dtype=object)
    return pd.DataFrame(
        {"time_s": rows["time_s"], "job": jobs.id[rows["job"]].astype(str), "reason": texts[numbers].astype(str)}
    )

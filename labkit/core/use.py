"""What was measured last of each job: what its tasks use, and how fast they are."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.events import Events, Kind, Quantity, Role
from labkit.core.resources import Floats

ROLES: Final = len(Role)


class Use:
    """The newest measurements of N jobs, by role: NaN where there was none.

    Parameters
    ----------
    n : int
        N, jobs of the run.

    Attributes
    ----------
    newest : array
        (N, roles, quantities) values of the rows that tell of all tasks of a role.
    peak_gb : array
        (N, roles) largest memory of one task that was ever measured.
    at_s : array
        (N,) when the newest measurement was made.
    """

    def __init__(self, n: int) -> None:
        self.newest: Floats = np.full((n, ROLES, len(Quantity)), np.nan)
        self.peak_gb: Floats = np.full((n, ROLES), np.nan)
        self.at_s: Floats = np.full(n, np.nan)

    def note(self, batch: Events) -> None:
        """Take note of measurements; other events are passed over."""
        rows = batch[(batch["kind"] == Kind.MEASURED) & (batch["task"] < 0)]
        self.newest[rows["job"], rows["role"], rows["quantity"]] = rows["value"]
        self.at_s[rows["job"]] = rows["time_s"]
        memory = rows[rows["quantity"] == Quantity.MEMORY_GB]
        np.fmax.at(self.peak_gb, (memory["job"], memory["role"]), memory["value"])

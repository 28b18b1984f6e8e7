"""Measurements of co-located jobs: the columns, what is refused, and the loads that the models see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import ProfileError, unknown
from labkit.core.faults import fault_report
from labkit.core.resources import Bools, Floats
from labkit.core.text import shortened

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = ("job", "co_runners", "cpu_cores", "pcie_gbps", "alone_s", "shared_s")
LOADS: Final = ("co_cpu_cores", "co_pcie_gbps")
MOST_SLOWDOWN: Final = 100.0
"""Times alone_s above which a shared_s is not believed."""
LEAST_SLOWDOWN: Final = 0.5
"""Times alone_s below which a shared_s is not believed: a job beside others is not twice as fast."""
NO_LOAD: Final = 1e-9
"""Cores and Gbps below which a measurement counts as unshared."""


@dataclass(frozen=True, eq=False, slots=True)
class InterferenceProfile:
    """Measured slowdowns, one per row; `Profile.of` makes one from a table."""

    cpu_cores: Floats
    pcie_gbps: Floats
    """`cpu_cores` and `pcie_gbps`: (n,) U and P: what the job uses when it runs alone."""
    co_cpu_cores: Floats
    co_pcie_gbps: Floats
    """`co_cpu_cores` and `co_pcie_gbps`: (n,) U_C and P_C: what those beside it use, as
    `labkit.speed.interference.use.co_load` counts it."""
    slowdown: Floats
    """(n,) D: shared / alone seconds per step."""

    @classmethod
    def of(cls, table: pd.DataFrame) -> Self:
        """Return the measurements of a table.

        Raise ProfileError if there are no rows, a column is missing, a value is missing, no number or negative, a
        co-runner has no row of its own, or a job is more than `MOST_SLOWDOWN` times as slow, or twice as fast, as
        alone.

        `table`: one row per measurement: job, co_runners (names joined by "+", empty when alone), cpu_cores, pcie_gbps,
        alone_s, shared_s (seconds per step). Columns co_cpu_cores and co_pcie_gbps, where given, are the load of those
        beside it; else it is the sum over `co_runners`, all in one device group, of what they use themselves.
        """
        missing = [column for column in COLUMNS if column not in table.columns]
        if missing:
            raise ProfileError(f"profile: column {missing[0]} is missing; expected {', '.join(COLUMNS)}.")
        present = [column for column in LOADS if column in table.columns]
        if not len(table):
            raise ProfileError("profile: it has no rows; expected one for each measurement of a job beside others.")
        numbers = {c: _numbers(table, c) for c in (*COLUMNS[2:], *present)}
        faults = [fault for c, values in numbers.items() for fault in _faults(c, values, table[c])]
        if faults:
            raise ProfileError(fault_report("profile", faults))
        cpu, pcie = numbers["cpu_cores"], numbers["pcie_gbps"]
        if len(present) == len(LOADS):
            co_cpu, co_pcie = numbers["co_cpu_cores"], numbers["co_pcie_gbps"]
        else:
            co_cpu, co_pcie = _sum_of_co_runners(table, cpu, pcie)
        found = cls(cpu, pcie, co_cpu, co_pcie, numbers["shared_s"] / numbers["alone_s"])
        found._refuse_incredible()
        return found

    def _refuse_incredible(self) -> None:
        """Raise where slowdowns cannot be: alone, most of all, a job is as fast as alone."""
        odd = np.where(self.shared, self.slowdown > MOST_SLOWDOWN, self.slowdown > 1 / LEAST_SLOWDOWN)
        if faults := [
            f"row {i + 1}: shared_s is {self.slowdown[i]:.3g} times alone_s"
            f"{'' if self.shared[i] else ', with nothing beside the job'}; expected "
            f"{LEAST_SLOWDOWN:g} to {MOST_SLOWDOWN if self.shared[i] else 1 / LEAST_SLOWDOWN:g} times, both in seconds "
            "per step: drop the row or measure it again"
            for i in np.flatnonzero(odd | (self.slowdown < LEAST_SLOWDOWN))
        ]:
            raise ProfileError(fault_report("profile", faults))

    def __len__(self) -> int:
        return len(self.slowdown)

    @property
    def shared(self) -> Bools:
        """(n,) True where another job was beside it."""
        return np.asarray((self.co_cpu_cores > NO_LOAD) | (self.co_pcie_gbps > NO_LOAD), dtype=np.bool_)

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> InterferenceProfile:
        """Return the rows that a mask or an index names."""
        return InterferenceProfile(
            self.cpu_cores[which], self.pcie_gbps[which], self.co_cpu_cores[which], self.co_pcie_gbps[which],
            self.slowdown[which],
        )  # fmt: skip


def _numbers(table: pd.DataFrame, column: str) -> Floats:
    import pandas as pd

    return np.asarray(pd.to_numeric(table[column], errors="coerce"), dtype=np.float64)


def _faults(column: str, values: Floats, cells: pd.Series) -> list[str]:
    positive = column.endswith("_s")
    bad = ~np.isfinite(values) | ((values <= 0) if positive else (values < 0))
    expected = "seconds > 0" if positive else "a number >= 0"
    return [
        f"row {i + 1}: {column} is {shortened(str(cells.iloc[i]))}; expected {expected}: drop the row or measure again"
        for i in np.flatnonzero(bad)
    ]


def _sum_of_co_runners(table: pd.DataFrame, cpu: Floats, pcie: Floats) -> tuple[Floats, Floats]:
    """Return U_C and P_C of each row from the mean own use of the jobs that it names."""
    names = [str(name) for name in table["job"]]
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    of = np.array([order[name] for name in names])
    count = np.bincount(of)
    own = np.stack([np.bincount(of, cpu) / count, np.bincount(of, pcie) / count])
    sums = np.zeros((2, len(names)))
    for i, text in enumerate(table["co_runners"]):
        for name in str(text).split("+") if isinstance(text, str) else ():
            if name.strip() and name.strip() not in order:
                raise ProfileError(f"profile: row {i + 1}: {unknown('co-runner', name.strip(), order)}")
            if name.strip():
                sums[:, i] += own[:, order[name.strip()]]
    return sums[0], sums[1]

"""Interference as it was measured: from a table of co-located jobs, or from the profile of a testbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.errors import InputError, ProfileError
from labkit.speed.interference.model import MIN_ROWS, InterferenceModel
from labkit.speed.interference.profile import NO_LOAD, InterferenceProfile
from labkit.speed.interference.use import ModelUse

if TYPE_CHECKING:
    import pandas as pd

    from labkit.speed.profiled.nouns import TestbedProfile


MIN_LOADS = 2
"""Different loads that measurements must be of."""


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredInterference:
    """A model fitted to measurements, and what they say that tasks use.

    Attributes
    ----------
    model : InterferenceModel
        Fitted: of both factors, or "without_pcie" where nothing beside a job moved anything over PCIe.
    uses : mapping
        What the tasks of a model use, by its name.
    """

    model: InterferenceModel
    uses: Mapping[str, ModelUse]


def read(path: str | Path) -> MeasuredInterference:
    """Return what a file says: the profile of a testbed (.json), or a table with the columns of `Profile.of`.

    Raises
    ------
    InputError
        If there is no such file.
    ProfileError
        If it is no profile, or holds too few measurements.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file; `labkit profile` measures one, or take 'calibrated'.")
    if Path(path).suffix.lower() == ".json":
        from labkit.speed.profiled.files import read as read_testbed

        return of_testbed(read_testbed(path), source=str(path))
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise ProfileError(f"{path}: it cannot be read as a table: {' '.join(str(error).split())}.") from None
    return _fitted(table, uses=_uses, source=str(path))


def of_testbed(profile: TestbedProfile, *, source: str = "") -> MeasuredInterference:
    """Return what a testbed's profile says of jobs beside others, measured while nothing else kept its cores busy.

    Raises
    ------
    ProfileError
        If it holds too few measurements, or too few quiet ones.
    """
    from labkit.speed.profiled.nouns import QUIET

    where, table = source or f"profile '{profile.name}'", table_of(profile)
    n = sum(row.what == "step" for row in profile.beside)
    if len(table) < MIN_ROWS <= n:
        raise ProfileError(
            f"{where}: of {n} measurements of jobs beside others, {n - len(table)} were made while something else kept "
            f"more than {QUIET:g} cores busy; {MIN_ROWS} quiet ones are needed: measure it again while nothing else "
            "runs on its hosts."
        )
    return _fitted(table, uses=lambda _: _testbed_uses(profile), source=where)


def table_of(profile: TestbedProfile) -> pd.DataFrame:
    """Return the quiet measurements of updates beside others, with the columns of `Profile.of`."""
    import pandas as pd

    from labkit.speed.profiled.nouns import QUIET

    rows = [row for row in profile.beside if row.what == "step" and row.busy_cores <= QUIET]
    names = ("job", "co_runners", "cpu_cores", "co_cpu_cores", "alone_s", "shared_s")
    table = pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})
    return table.assign(pcie_gbps=0.0, co_pcie_gbps=0.0)


def _fitted(
    table: pd.DataFrame, *, uses: Callable[[pd.DataFrame], Mapping[str, ModelUse]], source: str
) -> MeasuredInterference:
    try:
        rows = InterferenceProfile.of(table)
        _refuse_one_load(rows)
        moved = (rows.co_pcie_gbps > NO_LOAD).any()
        model = InterferenceModel("two_stage" if moved else "without_pcie").fit(rows).up_to_measured(rows)
        return MeasuredInterference(model, uses(table))
    except (ProfileError, InputError) as error:
        raise ProfileError(f"{source}: {error}") from None


def _uses(table: pd.DataFrame) -> dict[str, ModelUse]:
    """Return what a worker of each job of a table uses: the mean of its rows.

    A server uses what the column `ps_cores` says, else what the catalogue has of its model, else the cores it asks for.
    """
    import pandas as pd

    columns = ["cpu_cores", "pcie_gbps", *(["ps_cores"] if "ps_cores" in table.columns else [])]
    numbers = table[columns].apply(pd.to_numeric, errors="coerce")
    uses = {}
    for name, row in numbers.groupby(table["job"].astype(str)).mean().iterrows():
        told = float(row.get("ps_cores", np.nan))
        uses[str(name)] = ModelUse(row.cpu_cores, _ps_cores(str(name)) if np.isnan(told) else told, row.pcie_gbps)
    return uses


def _refuse_one_load(rows: InterferenceProfile) -> None:
    """Raise if all measurements beside others are of one load: nothing follows from these for another one."""
    shared = rows.take(rows.shared)
    loads = np.stack([shared.cpu_cores, shared.pcie_gbps, shared.co_cpu_cores, shared.co_pcie_gbps], axis=1)
    if len(loads) and len(np.unique(loads, axis=0)) < MIN_LOADS:
        raise ProfileError(
            f"all {len(loads)} measurements with a co-runner are of the same load; expected {MIN_LOADS} or more "
            "different ones: measure beside lighter and heavier jobs, too."
        )


def _ps_cores(name: str) -> float | None:
    from labkit.workloads import catalogue

    try:
        return catalogue.model(name).ps_cores
    except InputError:
        return None


def _testbed_uses(profile: TestbedProfile) -> dict[str, ModelUse]:
    """Return the cores of a worker and of a server of each model: the mean over its gangs that were measured.

    What leads the processes of a job is counted with its workers. Where servers were not told from workers, all
    tasks are taken to use the same.
    """
    uses = {}
    for name in profile.models:
        worker, server = [], []
        for cell in profile.cells:
            if cell.model != name or cell.step_s is None:
                continue
            n = cell.n_workers + cell.n_ps
            theirs = cell.cpu_s * cell.n_ps / n if cell.ps_cpu_s is None else min(cell.ps_cpu_s, cell.cpu_s)
            server.append(theirs / cell.step_s / cell.n_ps)
            worker.append((cell.cpu_s - theirs) / cell.step_s / cell.n_workers)
        uses[name] = ModelUse(float(np.mean(worker)), float(np.mean(server)))
    return uses

"""Interference as it was measured: from a table of co-located jobs, or from the profile of a testbed."""

from __future__ import annotations

from collections.abc import Mapping
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
    return _fitted(table, uses=_uses(table), source=str(path))


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
    return _fitted(table, uses=_testbed_uses(profile), source=where)


def table_of(profile: TestbedProfile) -> pd.DataFrame:
    """Return the quiet measurements of updates beside others, with the columns of `Profile.of`."""
    import pandas as pd

    from labkit.speed.profiled.nouns import QUIET

    rows = [row for row in profile.beside if row.what == "step" and row.busy_cores <= QUIET]
    names = ("job", "co_runners", "cpu_cores", "co_cpu_cores", "alone_s", "shared_s")
    table = pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})
    return table.assign(pcie_gbps=0.0, co_pcie_gbps=0.0)


def _fitted(table: pd.DataFrame, *, uses: Mapping[str, ModelUse], source: str) -> MeasuredInterference:
    try:
        rows = InterferenceProfile.of(table)
        moved = (rows.co_pcie_gbps > NO_LOAD).any()
        return MeasuredInterference(InterferenceModel("two_stage" if moved else "without_pcie").fit(rows), uses)
    except ProfileError as error:
        raise ProfileError(f"{source}: {error}") from None


def _uses(table: pd.DataFrame) -> dict[str, ModelUse]:
    """Return what a worker of each job of a table uses: the mean of its rows; a server as the catalogue has it."""
    if not {"job", "cpu_cores", "pcie_gbps"} <= set(table.columns):
        return {}  # the fit says which column is missing
    named = table.assign(job=table["job"].astype(str)).groupby("job")
    means = named[["cpu_cores", "pcie_gbps"]].mean(numeric_only=True)
    return {str(name): ModelUse(row.cpu_cores, _ps_cores(str(name)), row.pcie_gbps) for name, row in means.iterrows()}


def _ps_cores(name: str) -> float:
    from labkit.workloads import catalogue

    try:
        return catalogue.model(name).ps_cores
    except InputError:
        return 0.0


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

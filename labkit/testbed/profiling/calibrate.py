"""Calibrate a profile of another machine: scale it by one job that trains here for a few seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from labkit.core.errors import ProfileError
from labkit.speed.profiled import Pool, TestbedProfile
from labkit.speed.profiled.nouns import QUIET, Fitted, GangMeasurement, Overhead
from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.gangs import MeasuredKind
from labkit.testbed.profiling.isolated import ChangeMeasurement, Measurements, alone, starts, warm_up
from labkit.testbed.profiling.session import ProfilingSession, pools
from labkit.testbed.run.training import TrainingTable

CALIBRATE_S: Final = 5.0
"""Of updates: on a machine that shares its cores with others, a second of them may be off by a third."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of measured values to those of the profile, for one model with one worker and one PS.

    Attributes
    ----------
    step, step_cpu : float
        Seconds, and processor seconds, of an update.
    start, start_cpu : float
        The same of a start.
    busy_cores : float
        Cores that other processes kept busy meanwhile.
    """

    step: float
    step_cpu: float
    start: float
    start_cpu: float
    busy_cores: float = 0.0

    def __str__(self) -> str:
        """Return the ratios in one line."""
        busy = f"; something else kept {self.busy_cores:.1f} cores busy" if self.busy_cores > QUIET else ""
        return (
            f"an update takes {self.step:.2f} times as long here as on the machine of the profile, a start "
            f"{self.start:.2f} times{busy}"
        )


def calibrated(
    inventory: Inventory, profile: TestbedProfile, *, model: str, training: TrainingTable | None = None
) -> tuple[TestbedProfile, Ratios]:
    """Return a profile scaled to a testbed on which one job was measured, and the ratios.

    About 20 seconds: cores, a start that warms all hosts, three whose median counts, five seconds of updates.

    Parameters
    ----------
    inventory : Inventory
        The hosts; nothing else should run there.
    profile : TestbedProfile
        Of another machine.
    model : str
        What to train: one that the profile has with one worker and one PS.
    training : TrainingTable, optional
        How jobs train.

    Raises
    ------
    LabkitError, OSError
        If the job cannot be measured here, or the profile does not know it.
    """
    kind, found = MeasuredKind(model, True, 1, 1), Measurements()
    with ProfilingSession(inventory, [kind] * 4, training=training or TrainingTable()) as stage:
        machines = pools(stage)
        warm_up(stage, found, number=1)
        with alone(stage, 0, found, lambda _: None, least_s=CALIBRATE_S):
            pass
        starts(stage, (2, 3), 0, found)
    measured = found.cells[0]
    if measured.step_s is None:
        raise HostError(f"{model} cannot be measured: {measured.failed}")
    ratios = ratios_of(profile, measured, found.changes)
    return replace(scaled(profile, ratios, machines), yardstick=list(stage.readings)), ratios


def ratios_of(profile: TestbedProfile, measured: GangMeasurement, changes: list[ChangeMeasurement]) -> Ratios:
    """Return the ratios of measured values to those of a profile."""
    then = [cell for cell in profile.of(measured.model) if (cell.n_ps, cell.n_workers, cell.n_hosts) == (1, 1, 1)]
    known = [row for row in profile.overheads if (row.kind, row.model) == ("start", measured.model)]
    began = [change for change in changes if change.kind == "start"]
    if not (then and known and began):
        raise ProfileError(
            f"the profile '{profile.name}' has no speed and start of {measured.model} with one worker and one "
            f"PS, or it did not start here; measure this testbed: labkit profile --models {measured.model}."
        )
    return Ratios(
        step=_over(measured.step_s, then[0].step_s), step_cpu=_over(measured.cpu_s, then[0].cpu_s),
        start=_over(median(each.seconds for each in began), known[0].median_s),
        start_cpu=_over(median(each.cpu_s for each in began), known[0].cpu_s),
        busy_cores=measured.busy_cores,
    )  # fmt: skip


def _over(here: float | None, there: float | None) -> float:
    return here / there if here and there else 1.0


def scaled(profile: TestbedProfile, by: Ratios, machines: list[Pool]) -> TestbedProfile:
    """Return a profile with scaled seconds, and the measured number of cores."""
    note = f"scaled from a profile of {profile.made.at or 'another day'}: {by}"
    return replace(
        profile,
        pools=machines,
        cells=[_cell(cell, by) for cell in profile.cells],
        overheads=[_overhead(row, by) for row in profile.overheads],
        functions=[_function(row, by.step) for row in profile.functions],
        made=replace(profile.made, notes=[*profile.made.notes, note]),
    )


def _cell(cell: GangMeasurement, by: Ratios) -> GangMeasurement:
    return replace(
        cell,
        step_s=None if cell.step_s is None else cell.step_s * by.step,
        cpu_s=cell.cpu_s * by.step_cpu,
        ps_cpu_s=None if cell.ps_cpu_s is None else cell.ps_cpu_s * by.step_cpu,
        home_cpu_s=cell.home_cpu_s * by.step_cpu,
        spread_s=cell.spread_s * by.step,
    )


def _overhead(row: Overhead, by: Ratios) -> Overhead:
    return replace(row, median_s=row.median_s * by.start, p90_s=row.p90_s * by.start, cpu_s=row.cpu_s * by.start_cpu)


def _function(row: Fitted, by: float) -> Fitted:
    return replace(row, theta=[each * by for each in row.theta])

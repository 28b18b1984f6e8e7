"""Measure a model alone on the testbed: one job is scaled from gang to gang.

`calibrated` scales the profile of another machine by one job that trains here for a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from labkit.core.errors import LabkitError, ProfileError
from labkit.speed.profiled import Pool, TestbedProfile
from labkit.speed.profiled.profile import QUIET, GangMeasurement
from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.gangs import GangShape, MeasuredKind, place_of, walk
from labkit.testbed.profiling.session import Look, MeasuredJob, ProfilingSession, Usage, pools
from labkit.testbed.run.training import TrainingTable

SETTLE: Final = 5
"""Updates that are not counted after a change."""
LEAST_STEPS, LEAST_S, MOST_S, SETTLE_S = 15, 1.2, 12.0, 0.2
"""Least updates, least and most seconds of a measurement, and seconds that are not counted after a change."""
TRIES: Final = 3
"""Attempts of a measurement while other processes run; the quietest one counts."""
FEWEST: Final = 4
SMALLEST: Final = GangShape(1, 1)
Say = Callable[[str], None]
"""Called with each measurement that is done, for the progress bar."""
CALIBRATE_S: Final = 5.0
"""Of updates: on a machine that shares its cores with others, a second of them may be off by a third."""


@dataclass(frozen=True, slots=True)
class GangPace:
    """Step time and resources of a gang that trained for a while."""

    step_s: float
    spread_s: float
    n_steps: int
    """`step_s`, `spread_s` and `n_steps`: seconds of an update, their spread, and how many there were."""
    cpu_s: float
    ps_cpu_s: float
    home_cpu_s: float
    """`cpu_s`, `ps_cpu_s` and `home_cpu_s`: processor seconds of an update, of all processes, of parameter servers, and
    of the job's own processes."""
    busiest: float
    """Cores that its busiest process keeps busy."""
    busy_cores: float
    """Cores that other processes kept busy."""

    @property
    def cores(self) -> float:
        """Cores that it keeps busy."""
        return self.cpu_s / self.step_s

    @property
    def weight(self) -> float:
        """Processes that compete for cores, counted as if each were as busy as the busiest."""
        return max(self.cores / self.busiest, 1.0) if self.busiest > 0 else 1.0


@dataclass(frozen=True, slots=True)
class ChangeMeasurement:
    """Seconds and resources of a start, a rescale or a stop."""

    kind: str
    model: str
    n_new: int
    seconds: float
    cpu_s: float = 0.0


@dataclass(slots=True)
class Measurements:
    """The measurements so far."""

    cells: list[GangMeasurement] = field(default_factory=list)
    changes: list[ChangeMeasurement] = field(default_factory=list)
    paces: dict[tuple[int, GangShape], GangPace] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def failed(self, kind: MeasuredKind, gang: GangShape, why: str) -> None:
        """Note a gang that could not be measured."""
        reason = " ".join(why.split())[-300:]
        self.cells.append(
            GangMeasurement(
                model=kind.model, sync=kind.sync, n_ps=gang.n_ps, n_workers=gang.n_workers, n_hosts=gang.n_hosts,
                step_s=None, failed=reason,
            )
        )  # fmt: skip
        self.notes.append(f"{kind}, {gang}: {reason}")


def pace(trainee: MeasuredJob, *, least_s: float = LEAST_S) -> GangPace:
    """Return step time and resources of a job; if other processes run, of the quietest of a few attempts.

    Raise HostError if it ends meanwhile, or hardly makes a step.
    """
    trainee.more_steps(SETTLE, least_s=SETTLE_S, most_s=MOST_S)
    found: list[GangPace] = []
    while len(found) < TRIES and all(each.busy_cores > QUIET for each in found):
        found += _at_once(trainee.stage, [trainee], least_s)
    return min(found, key=lambda each: each.busy_cores)


def paces_of(stage: ProfilingSession, trainees: Sequence[MeasuredJob], *, least_s: float = LEAST_S) -> list[GangPace]:
    """Return step time and resources of jobs that train at the same time.

    Raise HostError if one ends meanwhile, or hardly makes a step.
    """
    for trainee in trainees:
        trainee.more_steps(SETTLE, least_s=SETTLE_S, most_s=MOST_S)
    return _at_once(stage, trainees, least_s)


def _at_once(stage: ProfilingSession, trainees: Sequence[MeasuredJob], least_s: float) -> list[GangPace]:
    before, first = stage.look(), [len(trainee.steps) for trainee in trainees]
    for trainee, begin in zip(trainees, first, strict=True):
        left = max(begin + LEAST_STEPS - len(trainee.steps), 0)
        trainee.more_steps(left, least_s=least_s if trainee is trainees[0] else 0.0, most_s=MOST_S)
    last, used = [len(trainee.steps) for trainee in trainees], Usage(before, stage.look())
    found = []
    for trainee, begin, end in zip(trainees, first, last, strict=True):
        times = np.array([step.time_s for step in trainee.steps[begin:end]])
        if len(times) < FEWEST:
            raise HostError(f"it made {len(times)} updates in {MOST_S:g} s; expected {FEWEST} at least")
        found.append(_pace(trainee, np.sort(times), used))
    return found


def _pace(trainee: MeasuredJob, times: np.ndarray, used: Usage) -> GangPace:
    stage, each = trainee.stage, np.diff(times)
    step_s = float(times[-1] - times[0]) / len(each)
    quarters = np.quantile(each, [0.25, 0.75])
    cores = used.cores(trainee.task, run=stage.run)
    by_role = {
        role: [used.cores_of(trainee.task, [member], run=stage.run) for member in trainee.pids(role)]
        for role in ("server", "worker")
    }
    servers, workers = (sum(by_role[role]) for role in ("server", "worker"))
    return GangPace(
        step_s=step_s, spread_s=float(quarters[1] - quarters[0]) / 2, n_steps=len(each), cpu_s=cores * step_s,
        ps_cpu_s=servers * step_s, home_cpu_s=max(cores - servers - workers, 0.0) * step_s,
        busiest=max([*by_role["server"], *by_role["worker"]], default=0.0),
        busy_cores=max(used.others(names) for names in stage.machines.values()),
    )  # fmt: skip


def cell_of(kind: MeasuredKind, gang: GangShape, found: GangPace) -> GangMeasurement:
    """Return a measurement in the form of the profile."""
    return GangMeasurement(
        model=kind.model, sync=kind.sync, n_ps=gang.n_ps, n_workers=gang.n_workers, n_hosts=gang.n_hosts,
        step_s=short(found.step_s), cpu_s=short(found.cpu_s), ps_cpu_s=short(found.ps_cpu_s),
        home_cpu_s=short(found.home_cpu_s), n_steps=found.n_steps, spread_s=short(found.spread_s),
        busy_cores=short(found.busy_cores),
    )  # fmt: skip


def short(value: float) -> float:
    """Return a number rounded to five digits, more than the accuracy of a measurement."""
    return float(f"{value:.5g}")


def started(
    stage: ProfilingSession, number: int, gang: GangShape, found: Measurements, *, pace: GangPace | None = None
) -> MeasuredJob:
    """Start a job of a kind, and measure its start, a warm one only if the pace of its gang was measured before.

    Raise LabkitError if it does not train.
    """
    trainee, before = MeasuredJob(stage, number), stage.look()
    took_s = trainee.place(place_of(gang, stage.cluster))
    kind, n_new = "cold_start" if trainee.n_cold else "start", len(trainee.members)
    trainee.more_steps(SETTLE if pace else SETTLE + LEAST_STEPS, least_s=SETTLE_S, most_s=MOST_S)
    times = np.array([step.time_s for step in trainee.steps])
    step_s = pace.step_s if pace else float(np.median(np.diff(times[SETTLE:])))
    used_s = _extra_cpu_s(trainee, before, 0, pace, pace) if pace else 0.0
    took_s += warm_up_s(trainee, step_s)
    if pace or kind == "cold_start":
        found.changes.append(ChangeMeasurement(kind, stage.kinds[number].model, n_new, took_s, used_s))
    return trainee


def warm_up(stage: ProfilingSession, found: Measurements, *, number: int) -> None:
    """Start and stop a job on all hosts, so that later jobs find files and fork servers in memory.

    Its start is the cold one, if the first host has no fork server yet.
    """
    n = stage.cluster.n_machines
    try:
        trainee = started(stage, number, SMALLEST, found)
        if n > 1:
            trainee.place(place_of(GangShape(1, n, n), stage.cluster))
        trainee.stop()
    except (LabkitError, OSError) as error:
        found.notes.append(f"warm-up: {error}")


def starts(stage: ProfilingSession, numbers: Iterable[int], first: int, found: Measurements) -> None:
    """Start and stop more jobs of the kind that was measured as number `first`: one start says little of others."""
    pace = found.paces.get((first, SMALLEST))
    for number in numbers if pace else ():
        try:
            trainee = started(stage, number, SMALLEST, found, pace=pace)
            found.changes.append(ChangeMeasurement("stop", stage.kinds[number].model, 0, trainee.stop()))
        except (LabkitError, OSError) as error:
            found.notes.append(f"{stage.kinds[number]}, another start: {error}")


@contextmanager
def alone(
    stage: ProfilingSession, number: int, found: Measurements, say: Say, *, least_s: float = LEAST_S
) -> Iterator[MeasuredJob | None]:
    """Measure a kind in all its gangs, and yield its job, which trains with the last gang; stop it afterwards.

    Yields None if it did not train at all. Failures are noted.
    """
    kind = stage.kinds[number]
    gangs = walk(kind, stage.cluster)
    trainee = MeasuredJob(stage, number)
    started = False
    for gang in gangs:
        try:
            _measure(trainee, kind, gang, found, start=not started, least_s=least_s)
            started = True
        except (LabkitError, OSError) as error:
            found.failed(kind, gang, str(error))
        say(f"{kind}: {gang}")
        if not started:
            for other in gangs[1:]:
                found.failed(kind, other, "the job did not start")
                say(f"{kind}: {other}")
            break
    yield trainee if started else None
    if started:
        try:
            if gangs[-1] != SMALLEST:
                took_s = trainee.place(place_of(SMALLEST, stage.cluster))
                found.changes.append(ChangeMeasurement("rescale", kind.model, 0, took_s))
            found.changes.append(ChangeMeasurement("stop", kind.model, 0, trainee.stop()))
        except LabkitError as error:
            found.notes.append(f"{kind}: {error}")


def _measure(
    trainee: MeasuredJob, kind: MeasuredKind, gang: GangShape, found: Measurements, *, start: bool, least_s: float
) -> None:
    stage = trainee.stage
    before, n_before, members = stage.look(), len(trainee.steps), dict(trainee.members)
    began_s = _last(found, trainee.number)
    n_cold = trainee.n_cold
    took_s = trainee.place(place_of(gang, stage.cluster))
    cold = "cold_" if trainee.n_cold > n_cold else ""
    new = [name for name in trainee.members if name not in members]
    now = pace(trainee, least_s=least_s)
    found.paces[trainee.number, gang] = now
    found.cells.append(cell_of(kind, gang, now))
    used = _extra_cpu_s(trainee, before, n_before, began_s, now)
    if start:
        took_s += warm_up_s(trainee, now.step_s)
    what = "start" if start else "rescale"
    found.changes.append(ChangeMeasurement(cold + what, kind.model, len(new), took_s, used))


def _last(found: Measurements, number: int) -> GangPace | None:
    mine = [pace for (of, _), pace in found.paces.items() if of == number]
    return mine[-1] if mine else None


def _extra_cpu_s(trainee: MeasuredJob, before: Look, n_before: int, old: GangPace | None, new: GangPace) -> float:
    """Return the processor seconds since a look, without those of the updates."""
    used = Usage(before, trainee.stage.look()).seconds(trainee.task, run=trainee.stage.run)
    n_steps = len(trainee.steps) - n_before
    each = new.cpu_s if old is None else (old.cpu_s + new.cpu_s) / 2
    return max(used - n_steps * each, 0.0)


def warm_up_s(trainee: MeasuredJob, step_s: float) -> float:
    """Return the seconds that the first updates of a start took longer than later ones."""
    n = min(len(trainee.steps), SETTLE + 1)
    first, last = trainee.steps[0], trainee.steps[n - 1]
    return max(last.time_s - first.time_s - (n - 1) * step_s, 0.0)


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of measured values to those of the profile, for one model with one worker and one PS."""

    step: float
    step_cpu: float
    """`step` and `step_cpu`: seconds, and processor seconds, of an update."""
    start: float
    start_cpu: float
    """`start` and `start_cpu`: the same of a start."""
    busy_cores: float = 0.0
    """Cores that other processes kept busy meanwhile."""

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

    WheelInfo 20 seconds: cores, a start that warms all hosts, three whose median counts, five seconds of updates. Raise
    LabkitError, OSError if the job cannot be measured here, or the profile does not know it.

    Parameters
    ----------
    inventory : Inventory
        The hosts; nothing else should run there.
    profile : TestbedProfile
        Of another machine.
    model : str
        What to train: one that the profile has with one worker and one PS.
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
        overheads=[
            replace(row, median_s=row.median_s * by.start, p90_s=row.p90_s * by.start, cpu_s=row.cpu_s * by.start_cpu)
            for row in profile.overheads
        ],
        functions=[replace(row, theta=[each * by.step for each in row.theta]) for row in profile.functions],
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

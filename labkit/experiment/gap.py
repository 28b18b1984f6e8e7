"""Does the simulation tell the truth: a run on a testbed beside its simulation, and what explains the gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from labkit.core.consent import Trust, stored, typed
from labkit.core.errors import InputError
from labkit.core.protocols import Scheduler, SpeedModel
from labkit.experiment.cadence import Cadence
from labkit.experiment.deployed import named_in
from labkit.experiment.experiment import Experiment
from labkit.experiment.profiled import without_cold_starts
from labkit.experiment.scenario import Fields
from labkit.experiment.speeds import speed_model
from labkit.results.fidelity import explained, fidelity_summary, gap_parts, job_fidelity, refuse_others
from labkit.results.record import COLD_STARTS, RunRecord
from labkit.results.store import load
from labkit.schedulers import named

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Fidelity:
    """Two runs of the same jobs: a real one, and one that predicted it. A gap is real minus simulated.

    Parameters
    ----------
    real, simulated : RunRecord
        Any two runs of one trace; the first takes the part of reality.

    Raises
    ------
    InputError
        If they are not of the same jobs.

    Examples
    --------
    >>> from labkit.core import Jobs
    >>> from labkit.experiment import simulate
    >>> from labkit.simulator import Overheads
    >>> jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
    >>> runs = [
    ...     simulate(jobs, cluster="no_network(1)", scheduler="fifo", overheads=Overheads(start_s=start_s))
    ...     for start_s in (5.0, 0.0)
    ... ]
    >>> Fidelity(*runs).explained["gap_s"][["starting", "speed", "all"]].tolist()
    [5.0, 0.0, 5.0]
    """

    real: RunRecord
    simulated: RunRecord

    def __post_init__(self) -> None:
        refuse_others(self.real.jobs, self.simulated.jobs)

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """A row per job that completed in both runs: `labkit.results.job_fidelity`."""
        return job_fidelity(self.real, self.simulated)

    @cached_property
    def parts(self) -> pd.DataFrame:
        """What explains the gap of each job, adding up to it: `labkit.results.gap_parts`."""
        return gap_parts(self.real, self.simulated)

    @cached_property
    def explained(self) -> pd.DataFrame:
        """What explains the gap between the mean JCTs, adding up to it: `labkit.results.explained`."""
        return explained(self.jobs, self.parts)

    @cached_property
    def summary(self) -> dict[str, float]:
        """The comparison in a few numbers: `labkit.results.fidelity_summary`."""
        return fidelity_summary(self.real, self.simulated)

    def scatter(self) -> alt.LayerChart:
        """Draw the real JCT of each job against the simulated one."""
        from labkit.plots.fidelity import plot_fidelity

        return plot_fidelity(self.jobs)

    def bars(self) -> alt.LayerChart:
        """Draw what explains the gap."""
        from labkit.plots.fidelity import plot_explained

        return plot_explained(self.explained)

    def gantts(self) -> alt.VConcatChart:
        """Draw the Gantt charts of both runs over each other."""
        from labkit.plots.fidelity import gantts

        return gantts(self.real, self.simulated)

    def report(self, path: str | Path, *, command: str = "") -> Path:
        """Write one HTML file about both runs and the gap between them; return where it is."""
        from labkit.plots.report import write_report

        runs = [self.real, self.simulated]
        heading = f"Fidelity: {self.real.info.scheduler} on {self.real.info.trace or self.real.jobs.name}"
        return write_report(runs, path, title=heading, command=command, pair=(self.real, self.simulated))

    def __repr__(self) -> str:
        """Return it as a line."""
        gap = self.summary["gap_percent"]
        return f"<{type(self).__name__}: {len(self.jobs)} jobs, gap of the mean JCT {gap:+.1f} %>"

    def __str__(self) -> str:
        """Return both tables and the numbers as text."""
        from labkit.plots.fidelity import as_text

        return as_text(self.summary, self.jobs, self.explained)

    def _repr_html_(self) -> str:
        from labkit.plots.fidelity import as_html

        return as_html(self.summary, self.jobs, self.explained)


def fidelity(
    record: RunRecord | str | Path,
    *,
    scheduler: Scheduler | str | None = None,
    runs: str | Path = "runs",
    keep: bool = False,
    trust: Trust = False,
    **fields: Unpack[Fields],
) -> Fidelity:
    """Simulate the trace of a run with the same scheduler, on what was measured of its testbed, and compare.

    Parameters
    ----------
    record : RunRecord or path
        The real run, or its folder, or its id under `runs`.
    scheduler : Scheduler or str, optional
        By default that of the run, by its name.
    runs : path
        Where runs are kept, each in a folder of its own.
    keep : bool
        Keep the simulated run there too.
    trust : bool or callable
        Whether to run a scheduler of the record's that is not labkit's own, where the user has not begun the run here.
    fields
        Of a `Scenario`: `profile`, what `labkit profile` measured on the testbed before the run; others override it.

    Returns
    -------
    Fidelity
        With tables, figures and a report.

    Raises
    ------
    InputError
        If the scheduler is not known by its name, or the profile does not know a model of the jobs.
    """
    real = record if isinstance(record, RunRecord) else load(record, runs=runs)
    scheduler = None if scheduler is None else named(scheduler)[0]
    with stored(trust):
        simulated = predict(real, scheduler=scheduler, runs=runs if keep else None, **fields)
    return Fidelity(real, simulated)


def predict(
    real: RunRecord,
    *,
    scheduler: Scheduler | str | None = None,
    runs: str | Path | None = None,
    **fields: Unpack[Fields],
) -> RunRecord:
    """Simulate what a run did: its jobs, cluster, scheduler and cadence, and what the scheduler knew before it.

    The parameters are those of `fidelity`.
    """
    profile = fields.get("profile")
    if profile is None and "speed" not in fields:
        raise InputError("no profile is given; labkit profile measures one, e.g. profile='profiles/laptop.json'.")
    given: Fields = {"seed": real.info.seed, "cadence": _cadence(real), "cluster": real.cluster, **fields}
    made = named_in(real) if scheduler is None else scheduler
    if profile is not None and real.info.config.get(COLD_STARTS) == 0:
        given["profile"] = without_cold_starts(profile)
    with typed():  # options are not the record's
        experiment = Experiment.of(real.jobs, **given)
        if "believed" not in fields and (believed := _believed(real, experiment.speed)) is not None:
            given["believed"] = believed
            experiment = Experiment.of(real.jobs, **given)
    return experiment.run(made, name=real.info.scheduler, runs=runs)


def _cadence(real: RunRecord) -> Cadence | None:
    """Return when the run decided, as its record has it; None: as its scheduler asks for."""
    told = real.info.config.get("cadence")
    if not isinstance(told, dict):
        return None
    return Cadence(slot_s=float(told["slot_s"]), events=bool(told["events"]), gap_s=float(told["gap_s"]))


def _believed(real: RunRecord, truth: SpeedModel) -> SpeedModel | None:
    """Return the speeds that the scheduler of a run was told before it; None: they are the truth of the simulation.

    On a testbed, what schedulers measure before the run comes from a speed model too. Where that was another one than
    the profile's, the simulated scheduler is told what the real one was.
    """
    if real.info.config.get("speed", type(truth).__name__) == type(truth).__name__:
        return None
    believed = speed_model(real.jobs, real.cluster)
    return believed if type(believed).__name__ == real.info.config["speed"] else None

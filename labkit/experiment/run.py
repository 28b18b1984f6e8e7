"""Simulate a trace: from jobs, a cluster and a scheduler to the record of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.protocols import Backend, Scheduler, SpeedModel
from labkit.core.resources import Bools
from labkit.experiment import provenance
from labkit.experiment.cadence import Cadence, at_events
from labkit.experiment.fluid import fluid
from labkit.experiment.pre_run import PreRunning, measurer
from labkit.experiment.profile import Profiled, measure_profile
from labkit.experiment.profiled import profiled
from labkit.experiment.session import Observer, Session
from labkit.experiment.speeds import declared, speed_model
from labkit.results.record import RunInfo, RunRecord, State
from labkit.results.store import RunWriter, free_id
from labkit.schedulers import make, named
from labkit.simulator import Faults, Losses, Overheads, Replay, Simulator, Variation
from labkit.speed.profiled import TestbedProfile
from labkit.topology import presets
from labkit.workloads import readers


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
    """All that defines a simulation except its scheduler; make one with `Experiment.of`.

    Attributes
    ----------
    jobs, cluster : Jobs, Cluster
        What arrives, and where it runs.
    speed : SpeedModel
        The truth about speeds.
    cadence : Cadence or None
        When to decide; None: at every event, and at least every `quantum_s` of a scheduler that has one.
    overheads, variation, faults, losses
        What makes the run less than ideal.
    seed : int
        Of the simulator's generator.
    believed : SpeedModel or None
        Where schedulers measure before the run; None: `speed`.
    """

    jobs: Jobs
    cluster: Cluster
    speed: SpeedModel
    cadence: Cadence | None = None
    overheads: Overheads | None = None
    variation: Variation | None = None
    faults: Faults | None = None
    losses: Losses | None = None
    seed: int = 0
    believed: SpeedModel | None = None

    @classmethod
    def of(
        cls,
        jobs: Jobs | str | Path,
        *,
        cluster: Cluster | str | None = None,
        speed: SpeedModel | str = "auto",
        throughputs: str | Path | None = None,
        strict: bool = False,
        profile: TestbedProfile | str | Path | None = None,
        **options: Any,
    ) -> Experiment:
        """Return an experiment; a trace may be a path, a cluster a preset or an expression, a speed model a name.

        A profile of a testbed (`labkit profile`) gives cluster, speeds and overheads, unless they are given too.
        """
        jobs = jobs if isinstance(jobs, Jobs) else readers.read(jobs)
        if profile is not None:
            cluster, speed, options = profiled(jobs, profile, cluster=cluster, speed=speed, options=options)
        if cluster is None:
            raise InputError("neither a cluster nor a profile is given; cluster='demo', say, or profile=FILE.")
        cluster = cluster if isinstance(cluster, Cluster) else presets.build(cluster)
        if isinstance(speed, str):
            speed = speed_model(jobs, cluster, kind=speed, throughputs=throughputs, strict=strict)
        return cls(jobs=declared(jobs, speed), cluster=cluster, speed=speed, **options)

    def simulator(self, *, lease_s: float | None = None) -> Simulator:
        """Return a fresh simulator at time 0, with leases if they are asked for."""
        return Simulator(
            self.jobs,
            self.cluster,
            speed=self.speed,
            lease_s=lease_s,
            overheads=self.overheads,
            variation=self.variation,
            faults=self.faults,
            losses=self.losses,
            rng=np.random.default_rng(self.seed),
        )

    def session(
        self, scheduler: Scheduler, *, observers: Sequence[Observer] = (), backend: Backend | None = None
    ) -> Session:
        """Return a session at time 0, with the cadence that suits the scheduler, after its pre-runs if it has any.

        It runs on `backend`, by default on a fresh simulator, with leases if the scheduler has a `lease_s`.
        """
        believed = self.believed or self.speed
        if isinstance(scheduler, PreRunning):
            scheduler.pre_run(self.jobs, measurer(self.jobs, self.cluster, speed=believed))
        if isinstance(scheduler, Profiled):
            pairs = scheduler.wants_pairs
            scheduler.learn(measure_profile(self.jobs, self.cluster, speed=believed, pairs=pairs))
        lease_s = getattr(scheduler, "lease_s", None)
        quantum_s = getattr(scheduler, "quantum_s", math.inf)
        cadence = self.cadence or at_events(quantum_s=quantum_s, when_empty=lease_s is not None)
        backend = backend or self.simulator(lease_s=lease_s)
        return Session(backend, cadence=cadence, runs_on=self.speed.runs_on(), observers=observers)

    def config(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return the options of a run, as JSON can hold them."""
        parts: dict[str, Any] = {"scheduler": scheduler, "cadence": self.cadence, "overheads": self.overheads}
        parts |= {"variation": self.variation, "faults": self.faults}
        if (profile := getattr(self.speed, "profile", None)) is not None:
            parts["profile"] = f"{profile.name}, {profile.made.at}"
        told = {name: _plain(part) for name, part in parts.items() if part is not None}
        return told | {"speed": type(self.speed).__name__}

    def info(self, scheduler: Scheduler, *, name: str) -> RunInfo:
        """Return the row of a run in the table of runs."""
        return RunInfo(
            run=f"{_slug(name)}-{_slug(self.jobs.name)}-{self.seed}",
            scheduler=name,
            cluster=self.cluster.name,
            trace=self.jobs.name,
            seed=self.seed,
            config=self.config(scheduler),
            state=State.RUNNING,
            **provenance.stamp(),
        )

    def run(
        self,
        scheduler: Scheduler | str,
        *,
        name: str | None = None,
        folder: str | Path | None = None,
        progress: bool = False,
        observers: Sequence[Observer] = (),
    ) -> RunRecord:
        """Simulate until every job has completed.

        Parameters
        ----------
        scheduler : Scheduler or str
            Or a name that `labkit.schedulers.make` takes.
        name : str, optional
            What to call it in tables and figures.
        folder : path, optional
            Where to keep runs, each in a folder of its own that is written while it goes on.
        progress : bool
            Show a progress bar.
        observers : sequence of callables
            Each is called with every batch of events.

        Returns
        -------
        RunRecord
            With all events, a table of jobs and a summary.
        """
        scheduler, called = named(scheduler, name)
        if getattr(scheduler, "ideal", False):
            return fluid(self)._run(scheduler, called, folder=folder, progress=progress, observers=observers)
        return self._run(scheduler, called, folder=folder, progress=progress, observers=observers)

    def _run(
        self,
        scheduler: Scheduler,
        called: str,
        *,
        folder: str | Path | None,
        progress: bool,
        observers: Sequence[Observer],
    ) -> RunRecord:
        info = self.info(scheduler, name=called)
        watchers = list(observers)
        with ExitStack() as stack:
            if progress:
                watchers.append(stack.enter_context(ProgressBar(called, total=len(self.jobs))))
            if folder is not None:
                info = replace(info, run=free_id(folder, info.run))
                writer = RunWriter.create(folder, info=info, jobs=self.jobs, cluster=self.cluster)
                watchers.append(stack.enter_context(writer).append)
            began = time.perf_counter()
            session = self.session(scheduler, observers=watchers)
            rows = session.run(scheduler)
            wall_s = time.perf_counter() - began
        info = replace(info, state=State.DONE, wall_s=wall_s)
        return RunRecord(info=info, jobs=self.jobs, cluster=self.cluster, events=rows)


def simulate(
    jobs: Jobs | str | Path,
    *,
    cluster: Cluster | str | None = None,
    scheduler: Scheduler | str,
    folder: str | Path | None = None,
    progress: bool = False,
    **options: Any,
) -> RunRecord:
    """Simulate one scheduler on a trace; the options are those of `Experiment.of`, such as `profile`.

    >>> from labkit.core import Jobs
    >>> from labkit.topology import no_network
    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=[60, 60], duration_s=60, n_workers=4)
    >>> simulate(jobs, cluster=no_network(1), scheduler="fifo").summary["mean_jct_s"]
    90.0
    """
    return Experiment.of(jobs, cluster=cluster, **options).run(scheduler, folder=folder, progress=progress)


def compare(
    jobs: Jobs | str | Path,
    *,
    cluster: Cluster | str | None = None,
    schedulers: Iterable[Scheduler | str],
    folder: str | Path | None = None,
    progress: bool = False,
    after_each: Callable[[RunRecord], None] | None = None,
    **options: Any,
) -> list[RunRecord]:
    """Simulate several schedulers on one trace; `labkit.results.compare` makes a table of what comes back.

    Raises
    ------
    InputError
        If a scheduler is not known, before anything is simulated.
    """
    chosen = list(schedulers)
    if not chosen:
        raise InputError("no scheduler is named; name at least one, e.g. fifo,srtf.")
    for scheduler in chosen:
        if isinstance(scheduler, str):
            make(scheduler)
    experiment = Experiment.of(jobs, cluster=cluster, **options)
    records = []
    for scheduler in chosen:
        record = experiment.run(scheduler, folder=folder, progress=progress)
        if after_each is not None:
            after_each(record)
        records.append(record)
    return records


def replay(record: RunRecord, *, runs_on: Bools | None = None) -> Session:
    """Return a session that goes through a recorded run decision by decision, whatever is answered.

    It shows the very snapshots that the recorded scheduler saw, so another one can be asked what it would have done.

    >>> from labkit.core import Jobs
    >>> jobs = Jobs.of(arrival_s=[0, 5], total_steps=[60, 30], duration_s=[60, 30])
    >>> record = simulate(jobs, cluster="no_network(1)", scheduler="fifo")
    >>> session = replay(record)
    >>> again = session.run(make("srtf"))
    >>> bool((again["job"] == record.events["job"]).all())
    True
    """
    return Session(Replay(record.jobs, record.cluster, recorded=record.events), runs_on=runs_on)


class ProgressBar:
    """A bar that counts the jobs that are over, in a terminal or in a notebook."""

    def __init__(self, name: str, *, total: int) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, desc=f"{name:>8}", unit="job", mininterval=0.1, leave=True)

    def __call__(self, batch: Events) -> None:
        """Count the jobs that completed or were given up in a batch."""
        done = int(np.count_nonzero((batch["kind"] == Kind.COMPLETED) | (batch["kind"] == Kind.DROPPED)))
        if done:
            self._bar.update(done)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _plain(part: Any) -> Any:
    """Return a configuration as JSON can hold it."""
    if is_dataclass(part) and not isinstance(part, type):
        given = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
        shown = {name: _plain(value) for name, value in given.items() if not isinstance(value, np.ndarray)}
        return {"kind": type(part).__name__} | shown
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items()}
    if isinstance(part, float) and math.isinf(part):
        return "inf"
    return part if isinstance(part, str | int | float | bool | None) else repr(part)


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(name).name)
    return kept.strip("-.") or "run"

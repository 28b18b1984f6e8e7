"""An experiment: all that defines a simulation except its scheduler, and how a run of it is made."""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.answers import refuse_unsound_model
from labkit.core.cluster import Cluster
from labkit.core.device_types import of_any_type
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.jobs import Jobs
from labkit.core.life import Traits, begin
from labkit.core.protocols import Backend, Scheduler, SpeedModel
from labkit.core.quotas import Quotas
from labkit.core.resources import Floats
from labkit.experiment import provenance
from labkit.experiment.asked import (
    KINDS,
    arriving,
    jobs_of,
    refuse_endless,
    refuse_no_flag,
    refuse_odd,
    refuse_unknown,
    seed_of,
)
from labkit.experiment.bound import jct_bound_s
from labkit.experiment.bound_gangs import rests_on_faster
from labkit.experiment.cadence import Cadence, at_events
from labkit.experiment.caveats import Caveat, caveats, fell_back, speeds_in_words
from labkit.experiment.context import context
from labkit.experiment.fluid import fluid
from labkit.experiment.history import kept
from labkit.experiment.plain import plain, slug
from labkit.experiment.profile import slower_on_slowest_type
from labkit.experiment.profiled import interference_of, profiled
from labkit.experiment.progress_bar import ProgressBar
from labkit.experiment.reservations import Reservation, Reservations, unmet
from labkit.experiment.rules import refuse_unruly, rules
from labkit.experiment.session import Observer, Session
from labkit.experiment.speeds import asked_speed, declared
from labkit.kernels.watching import watched
from labkit.results.bound import BOUND, FASTER
from labkit.results.drift import REFERENCE, reference
from labkit.results.notes import AMOUNTS_COUNT, TYPES_DIFFER
from labkit.results.record import LOAD, RunInfo, RunRecord, RunState
from labkit.results.store import RunWriter
from labkit.schedulers import named
from labkit.simulator import Faults, Losses, Overheads, Simulator, Troubles, Variation
from labkit.simulator.measuring import check_every
from labkit.simulator.troubles import troubles as troubles_of
from labkit.speed.interference.levels import Level, level
from labkit.speed.profiled import ProfiledSpeed, TestbedProfile
from labkit.topology import presets
from labkit.topology.routes import refuse_unsound_network

TROUBLE_STREAM: Final = 4
"""The simulator has streams 0, 1 and 2 of a seed, epochs of a sweep stream 3."""

SAME_SPEED: Final = 1.05
"""Device types on which no job is slower by more than this factor count as equal."""


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
    troubles : Troubles or None
        Tasks that are slow or hot.
    checkpoint_s : float or None
        How far apart the checkpoints are to which jobs fall back that run out of memory; None: nothing is lost, or as
        `faults` has it.
    seed : int
        Of the simulator's generator.
    believed : SpeedModel or None
        Where schedulers measure before the run; None: `speed`.
    speeds : str
        The speed model in words, for headers and reports.
    measure_every_s : float or None
        Measure what tasks use at least this often; a scheduler may want it more often. None: only if it wants it.
    interference : Level or None
        What measurements before the run have shown of co-located jobs; with step times it is the truth too, and without
        one a testbed's profile tells its own.
    history : Path or None
        Final plans of earlier runs (`labkit.experiment.history`), for schedulers that start jobs as earlier ones ended.
    prices : mapping or None
        Dollars per GPU and hour by device type, for runs whose schedulers know of none.
    quotas : Quotas or None
        The most GPUs that the jobs of each user may hold together, under every scheduler.
    reservations : Reservations or None
        Hosts that are kept for some jobs, or for none, from a start to an end, under every scheduler.
    load : float
        How many times as fast as in the trace `jobs` arrive, for headers.
    """

    jobs: Jobs
    cluster: Cluster
    speed: SpeedModel
    cadence: Cadence | None = None
    overheads: Overheads | None = None
    variation: Variation | None = None
    faults: Faults | None = None
    losses: Losses | None = None
    troubles: Troubles | None = None
    checkpoint_s: float | None = None
    seed: int = 0
    believed: SpeedModel | None = None
    speeds: str = ""
    prices: Mapping[str, float] | None = None
    interference: Level | None = None
    measure_every_s: float | None = None
    history: Path | None = None
    quotas: Quotas | None = None
    reservations: Reservations | None = None
    load: float = 1.0

    def __post_init__(self) -> None:
        check_every(self.measure_every_s)
        refuse_odd({name: getattr(self, name) for name in KINDS}, kinds=KINDS, seed=self.seed)

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
        interference: Level | str | Path | None = None,
        sharding: str = "dynamic",
        troubles: Troubles | str | Path | None = None,
        quotas: Quotas | Mapping[str, float] | str | Path | None = None,
        any_type: bool = False,
        reservations: Reservations | Sequence[Reservation] | Mapping[str, Any] | str | Path | None = None,
        **options: Any,
    ) -> Experiment:
        """Return an experiment; a trace may be a path, trace and cluster expressions, a speed model a name.

        A profile of a testbed (`labkit profile`) gives cluster, speeds and overheads, unless they are given too.
        Interference is a level by name ("none", "mild", "calibrated") or a file (`labkit.speed.interference.level`).
        Troubles are a CSV file or parts of the jobs ("hot_ps=0.13,slow_ps=0.06"), drawn with the seed; overheads may be
        named ("dlrover"). Quotas are GPUs by user ("vision=8,*=4"), or a TOML file; reservations a list, tables by
        name, or a TOML file. With `any_type` jobs may run on every device type, whatever they demand. With
        `sharding="static"` workers have their samples in advance, for speeds that know it.
        """
        refuse_no_flag("any_type", any_type)
        jobs, known = jobs_of(jobs, seed=seed_of(options)), level(interference)
        jobs = arriving(jobs, load=options.get("load", 1.0))
        jobs, n_freed = of_any_type(jobs) if any_type else (jobs, 0)
        refuse_unknown(options, known=[*inspect.signature(cls.of).parameters, *(field.name for field in fields(cls))])
        if profile is not None:
            cluster, speed, options = profiled(jobs, profile, cluster=cluster, speed=speed, options=options)
        if cluster is None:
            raise InputError("neither a cluster nor a profile is given; cluster='demo', say, or profile=FILE.")
        cluster = cluster if isinstance(cluster, Cluster) else presets.build(cluster)
        jobs, speed, stretched = asked_speed(
            jobs, cluster, speed=speed, throughputs=throughputs, strict=strict, interference=known, sharding=sharding
        )
        jobs, has_its_own = declared(jobs, speed), isinstance(speed, ProfiledSpeed)
        said = speeds_in_words(jobs, cluster, speed=speed, source=throughputs)
        said += "" if known is None else f"; interference{' told to schedulers' * has_its_own}: {known}"
        said += f"; {stretched}" * bool(stretched) + f"; {sharding} sharding" * (sharding != "dynamic")
        said += f"; jobs may have any device type ({n_freed:,} ask for one)" * any_type
        told = interference_of(speed) if known is None else known
        if isinstance(options.get("overheads"), str):
            options["overheads"] = Overheads.published(options["overheads"])
        rng = np.random.default_rng(np.random.SeedSequence(seed_of(options), spawn_key=(TROUBLE_STREAM,)))
        some = troubles_of(troubles, jobs, rng=rng)
        said += "" if some is None else f"; troubles: {some.said}"
        return cls(
            jobs=jobs, cluster=cluster, speed=speed, interference=told, troubles=some,
            quotas=None if quotas is None else Quotas.of(quotas),
            reservations=None if reservations is None else Reservations.of(reservations), **{"speeds": said, **options},
        )  # fmt: skip

    def measured_every_s(self, scheduler: Scheduler) -> float | None:
        """Return how often a run of a scheduler is measured; None: never, as where jobs hold slices of time."""
        if Traits.of(scheduler).ideal:
            return None
        wanted = [s for s in (self.measure_every_s, Traits.of(scheduler).measure_every_s) if s is not None]
        return min(wanted, default=None)

    def simulator(self, *, lease_s: float | None = None, measure_every_s: float | None = None) -> Simulator:
        """Return a fresh simulator at time 0, with leases and measurements if they are asked for."""
        return Simulator(
            self.jobs,
            self.cluster,
            speed=self.speed,
            lease_s=lease_s,
            overheads=self.overheads,
            variation=self.variation,
            faults=self.faults,
            losses=self.losses,
            troubles=self.troubles,
            checkpoint_s=self.checkpoint_s,
            measure_every_s=measure_every_s,
            rng=np.random.default_rng(self.seed),
        )

    def session(
        self,
        scheduler: Scheduler,
        *,
        observers: Sequence[Observer] = (),
        backend: Backend | None = None,
        reasons: list[str] | None = None,
    ) -> Session:
        """Return a session at time 0, with the cadence that suits the scheduler, after its pre-runs if it has any.

        It runs on `backend`, by default on a fresh simulator, with leases if the scheduler has a `lease_s`. Why it
        changes jobs is added to `reasons`.
        """
        believed, runs_on = self.believed or self.speed, self.speed.runs_on()
        shape = len(self.jobs), len(self.cluster.device_types)
        refuse_unsound_network(self.cluster)
        refuse_unsound_model(self.speed, runs_on=runs_on, shape=shape, jobs=self.jobs)
        traits = Traits.of(scheduler)
        lease_s = traits.lease_s
        known = context(self.jobs, self.cluster, speed=believed, seed=self.seed, interference=self.interference)
        keeper = kept(self.history, scheduler)
        begin(scheduler, known)
        observers = observers if keeper is None else [*observers, keeper]
        cadence = self.cadence or at_events(quantum_s=traits.quantum_s, when_empty=lease_s is not None)
        if backend is None:
            period_s = math.inf if self.variation is None else self.variation.period_s
            every_s = self.measured_every_s(scheduler)
            refuse_endless(self.jobs, every_s=min(cadence.slot_s, lease_s or math.inf, period_s, every_s or math.inf))
            backend = self.simulator(lease_s=lease_s, measure_every_s=every_s)
        return Session(
            backend, cadence=cadence, runs_on=runs_on, observers=observers, reasons=reasons, quotas=self.quotas,
            reservations=self.reservations,
        )  # fmt: skip

    def config(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return the options of a run, as JSON can hold them."""
        parts: dict[str, Any] = {"scheduler": scheduler, "cadence": self.cadence, "overheads": self.overheads}
        parts |= {"variation": self.variation, "faults": self.faults, "troubles": self.troubles}
        parts |= {"checkpoint_s": self.checkpoint_s}
        parts |= {"measure_every_s": self.measured_every_s(scheduler)}
        if (profile := getattr(self.speed, "profile", None)) is not None:
            parts["profile"] = f"{profile.name}, {profile.made.at}"
        if not Traits.of(scheduler).knows_types and self._slower > SAME_SPEED:
            parts[TYPES_DIFFER] = round(self._slower, 3)
        if getattr(self.speed, "amounts", False):
            parts[AMOUNTS_COUNT] = True
        parts |= {name: str(rule) for name in ("quotas", "reservations") if (rule := getattr(self, name)) is not None}
        if self.load != 1:
            parts[LOAD] = self.load
        if self.interference is not None:
            parts["interference"] = str(self.interference)
        told = {name: plain(part) for name, part in parts.items() if part is not None}
        if prices := Traits.of(scheduler).pays or self.prices:
            told["prices"] = dict(prices)
        if profile is not None and profile.yardstick:
            told[REFERENCE] = reference(profile.yardstick)
        return told | {"speed": type(self.speed).__name__, "speeds": self.speeds}

    @cached_property
    def rules(self) -> list[str]:
        """What was asked for and holds for every scheduler, a sentence each: notes that need no warning."""
        return rules(self.quotas, self.reservations)

    def caveats(self, scheduler: Scheduler, *, name: str) -> list[str]:
        """Return what a reader of this scheduler's numbers has to know, a sentence each."""
        found = caveats(
            self.jobs, self.cluster, speed=self.speed, scheduler=scheduler, name=name, speeds=self.speeds,
            fails=self.faults is not None, interference=self.interference,
        )  # fmt: skip
        return [*found, *unmet(self.jobs, self.reservations)]

    @cached_property
    def job_bounds_s(self) -> Floats | None:
        """Seconds to completion that no scheduler can go below, by job, (N,): `labkit.experiment.bound`."""
        return jct_bound_s(
            self.jobs, speed=self.speed, cadence=self.cadence, overheads=self.overheads, variation=self.variation
        )  # fmt: skip

    @cached_property
    def bound_jct_s(self) -> float:
        """Mean of `job_bounds_s` over all jobs; NaN: it is not known, or a job has no gang with which it trains."""
        bounds_s = self.job_bounds_s
        return float("nan") if bounds_s is None or not np.isfinite(bounds_s).all() else float(bounds_s.mean())

    @cached_property
    def _bound_is_faster(self) -> bool:
        return rests_on_faster(self.jobs, speed=self.speed)

    @cached_property
    def _slower(self) -> float:
        """How many times slower a job may be on one device type than on another."""
        return slower_on_slowest_type(self.jobs, self.cluster, speed=self.speed)

    def info(self, scheduler: Scheduler, *, name: str) -> RunInfo:
        """Return the row of a run in the table of runs."""
        notes = self.rules + self.caveats(scheduler, name=name)
        return RunInfo(
            run=f"{slug(name)}-{slug(self.jobs.name)}-{self.seed}",
            scheduler=name,
            cluster=self.cluster.name,
            trace=self.jobs.name,
            seed=self.seed,
            config=self.config(scheduler) | ({"notes": notes} if notes else {}),
            state=RunState.RUNNING,
            **provenance.stamp(),
        )

    def run(
        self,
        scheduler: Scheduler | str,
        *,
        name: str | None = None,
        runs: str | Path | None = None,
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
        runs : path, optional
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
        refuse_unruly(scheduler, self.quotas, self.reservations, name=called)
        experiment = self
        if Traits.of(scheduler).ideal:
            jobs, cluster, speed = fluid(self.jobs, self.cluster, self.speed)
            experiment = replace(self, jobs=jobs, cluster=cluster, speed=speed)
        return experiment._run(scheduler, called, runs=runs, progress=progress, observers=observers)

    def _run(
        self,
        scheduler: Scheduler,
        called: str,
        *,
        runs: str | Path | None,
        progress: bool,
        observers: Sequence[Observer],
    ) -> RunRecord:
        info = self.info(scheduler, name=called)
        if np.isfinite(self.bound_jct_s):  # of simulated runs alone: machines are not bound by a model
            told = {BOUND: self.bound_jct_s} | ({FASTER: True} if self._bound_is_faster else {})
            info = replace(info, config={**info.config, **told})
        watchers, reasons = list(observers), list[str]()
        with ExitStack() as stack:
            if progress:
                watchers.append(stack.enter_context(ProgressBar(called, total=len(self.jobs))))
            if runs is not None:
                writer = RunWriter.create(runs, info=info, jobs=self.jobs, cluster=self.cluster, numbered=True)
                info, reasons = writer.info, writer.reasons
                watchers.append(stack.enter_context(writer).append)
            compiled = stack.enter_context(watched())
            began = time.perf_counter()
            session = self.session(scheduler, observers=watchers, reasons=reasons)
            for note in info.config.get("notes", ())[len(self.rules) :]:
                warnings.warn(note, Caveat, stacklevel=4)
            rows = session.run(scheduler)
            wall_s = time.perf_counter() - began - compiled.seconds
            if (rows["kind"] == Kind.FELL_BACK).any():
                warnings.warn(fell_back(called, scheduler), Caveat, stacklevel=4)
        info = replace(info, state=RunState.DONE, wall_s=wall_s)
        return RunRecord(info=info, jobs=self.jobs, cluster=self.cluster, events=rows, reasons=reasons)

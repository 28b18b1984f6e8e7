"""An experiment: all that defines a simulation except its scheduler, and how a run of it is made."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np

from labkit.core.answers import refuse_unsound_model
from labkit.core.cluster import Cluster
from labkit.core.consent import keep
from labkit.core.device_types import may_run_on, of_any_type, refuse_on_no_type, refuse_unknown
from labkit.core.devices import with_whole_gpus
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.gate import rules_of_jobs
from labkit.core.hosting import (
    FEW,
    SPLIT,
    WORDS,
    HostRules,
    unmet_constraints,
    unmet_partitions,
    with_partitions_of,
    with_types_as_partitions,
)
from labkit.core.jobs import Jobs
from labkit.core.life import Traits, begin
from labkit.core.outside import use_file
from labkit.core.protocols import Backend, Scheduler, SpeedModel
from labkit.core.quotas import Quotas
from labkit.core.resources import Floats
from labkit.experiment import provenance
from labkit.experiment.bound import jct_bound_s, mean_bound_s, rests_on_faster
from labkit.experiment.cadence import Cadence, at_events
from labkit.experiment.caveats import Caveat, caveats, fell_back, speeds_in_words
from labkit.experiment.context import context
from labkit.experiment.fitting import without_too_large
from labkit.experiment.fluid import fluid
from labkit.experiment.history import attach_history
from labkit.experiment.plain import plain, slug
from labkit.experiment.prices import priced, prices_of
from labkit.experiment.profile import slower_on_slowest_type
from labkit.experiment.profiled import interference_of, profiled
from labkit.experiment.progress_bar import ProgressBar
from labkit.experiment.reservations import Reservations, unmet
from labkit.experiment.rules import refuse_turns, refuse_unruly, rules
from labkit.experiment.scenario import KEY, Fields, Scenario
from labkit.experiment.session import Observer, Session
from labkit.experiment.speeds import declared, resolve_speed
from labkit.experiment.validation import KINDS, refuse_endless, refuse_odd, refuse_unpriced
from labkit.kernels.watching import watched
from labkit.results.calibration import FOLLOWS_RECORD
from labkit.results.comparison import BOUND, BOUND_ALONE, FASTER
from labkit.results.fidelity import REFERENCE, reference
from labkit.results.notes import AMOUNTS_COUNT, TYPES_DIFFER
from labkit.results.record import LOAD, RunInfo, RunRecord, RunState
from labkit.results.store import RunWriter
from labkit.schedulers import named
from labkit.simulator import Faults, Losses, Overheads, Simulator, Troubles, Variation
from labkit.simulator.disturbances import checkpoints_s
from labkit.simulator.limits import TimeLimits
from labkit.simulator.measuring import check_every
from labkit.simulator.troubles import troubles as troubles_of
from labkit.speed.interference.levels import Level, level
from labkit.speed.profiled import ProfiledSpeed
from labkit.speed.recorded import Recorded as RecordedSpeed
from labkit.topology import presets
from labkit.topology.links import refuse_unsound_network
from labkit.workloads.own_speeds import TFLOPS

TROUBLE_STREAM: Final = 4
"""The simulator has streams 0, 1 and 2 of a seed, epochs of a sweep stream 3."""

SAME_SPEED: Final = 1.05
"""Device types on which no job is slower by more than this factor count as equal."""


def _trouble_rng(seed: int) -> np.random.Generator:
    """Return the random numbers of which jobs have troubles: a stream of their own."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(TROUBLE_STREAM,)))


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
    preemption_loses_work : bool
        Preempted jobs fall back to checkpoints, too, or begin anew where `checkpoint_s` names none.
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
        Dollars per GPU and hour by device type: of runs, and for schedulers about cost that have none of their own.
    usual_prices : mapping or None
        What runs cost whose schedulers know of no prices, where `prices` is None.
    quotas : Quotas or None
        The most GPUs that the jobs of each user may hold together, under every scheduler.
    reservations : Reservations or None
        Hosts that are kept for some jobs, or for none, from a start to an end, under every scheduler.
    hosting : HostRules or None
        Which machines may host which jobs, and over how many of them gangs may lie, under every scheduler.
    time_limits : str
        Which jobs are ended at their time limits, one of `labkit.simulator.limits.WHICH`.
    arrival_rate : float
        How many times as fast as in the trace `jobs` arrive, for headers.
    scenario : dict
        What it was made of, as `Scenario.plain` writes it down, for records.
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
    preemption_loses_work: bool = False
    seed: int = 0
    believed: SpeedModel | None = None
    speeds: str = ""
    prices: Mapping[str, float] | None = None
    interference: Level | None = None
    measure_every_s: float | None = None
    history: Path | None = None
    quotas: Quotas | None = None
    reservations: Reservations | None = None
    hosting: HostRules | None = None
    time_limits: str = "recorded"
    arrival_rate: float = 1.0
    usual_prices: Mapping[str, float] | None = None
    scenario: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<experiment: {len(self.jobs):,} jobs of {self.jobs.name} on {self.cluster}>"

    def __post_init__(self) -> None:
        check_every(self.measure_every_s)
        refuse_odd({name: getattr(self, name) for name in KINDS}, kinds=KINDS, seed=self.seed)

    @classmethod
    def of(cls, jobs: Scenario | Jobs | str | Path, **fields: Unpack[Fields]) -> Experiment:
        """Return the experiment of a scenario; or of jobs, a trace or a generator, with the fields of a `Scenario`.

        A profile of a testbed (`labkit profile`) gives cluster, speeds and overheads, unless they are given too.

        Raises
        ------
        InputError
            If something cannot be found or read, or does not fit the jobs; or some are to be left out of a speed model
            that was made for all jobs.
        """
        scenario = Scenario.of(jobs, **fields)
        made = cls._of(scenario, scenario.jobs())
        if not scenario.drop_too_large:
            return made
        whole = scenario.jobs()
        by_demand = may_run_on(whole, made.cluster)  # the same jobs with any_type as without
        kept = without_too_large(whole, made.cluster, made.speed.runs_on() & by_demand, made.hosting)
        if kept is not whole and not isinstance(scenario.speed, str):
            raise InputError("drop_too_large and a speed model, which is made for all jobs, are given; name a model.")
        return made if kept is whole else cls._of(scenario, kept)

    @classmethod
    def _of(cls, scenario: Scenario, jobs: Jobs) -> Experiment:
        """Return the experiment of a scenario with these jobs."""
        for name, file in scenario.files:
            use_file(file, what=f"file of {name}")  # noted: a record that names it may be read again
        known, cluster, speed, parts = level(scenario.interference), scenario.cluster, scenario.speed, scenario.parts
        jobs, n_freed = of_any_type(jobs) if scenario.any_type else (jobs, 0)
        jobs, n_rounded = with_whole_gpus(jobs) if scenario.whole_gpus else (jobs, 0)
        if scenario.profile is not None:
            cluster, speed, parts = profiled(jobs, scenario.profile, cluster=cluster, speed=speed, options=parts)
        if cluster is None:
            raise InputError("neither a cluster nor a profile is given; cluster='demo', say, or profile=FILE.")
        cluster = cluster if isinstance(cluster, Cluster) else presets.build(cluster)
        refuse_unknown(jobs, cluster, known=TFLOPS)
        jobs, speed, stretched = resolve_speed(
            jobs, cluster, speed=speed, throughputs=scenario.throughputs, strict=scenario.strict, interference=known,
            sharding=scenario.sharding,
        )  # fmt: skip
        jobs, has_its_own = declared(jobs, speed), isinstance(speed, ProfiledSpeed)
        words = speeds_in_words(jobs, cluster, speed=speed, source=scenario.throughputs)
        words += "" if known is None else f"; interference{' told to schedulers' * has_its_own}: {known}"
        words += f"; {stretched}" * bool(stretched) + f"; {scenario.sharding} sharding" * (
            scenario.sharding != "dynamic"
        )
        words += f"; jobs may have any device type ({n_freed:,} ask for one)" * scenario.any_type
        words += f"; a whole GPU for each task ({n_rounded:,} jobs ask for parts)" * scenario.whole_gpus
        some = troubles_of(scenario.troubles, jobs, rng=_trouble_rng(scenario.seed))
        words += "" if some is None else f"; troubles: {some.description}"
        cluster, guessed = with_partitions_of(jobs, cluster) if scenario.partitions else cluster, ""
        cluster, guessed = (cluster, guessed) if scenario.any_type else with_types_as_partitions(jobs, cluster)
        hosting = HostRules.of(jobs, cluster, consolidate=scenario.consolidate, wait_s=scenario.consolidate_for_s)
        if hosting is not None and guessed:
            hosting = replace(hosting, description=f"{hosting.description}; {guessed}")
        refuse_unpriced(prices := prices_of(scenario.prices), cluster)
        return cls(
            jobs=jobs, cluster=cluster, speed=speed, troubles=some, seed=scenario.seed, prices=prices,
            interference=interference_of(speed) if known is None else known, arrival_rate=scenario.arrival_rate,
            quotas=None if scenario.quotas is None else Quotas.of(scenario.quotas), believed=scenario.believed,
            reservations=None if scenario.reservations is None else Reservations.of(scenario.reservations),
            hosting=hosting, time_limits=scenario.time_limits, measure_every_s=scenario.measure_every_s,
            history=scenario.history, speeds=scenario.speeds or words, losses=scenario.losses,
            scenario=scenario.plain(), **parts,
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
            preemption_loses_work=self.preemption_loses_work,
            measure_every_s=measure_every_s,
            limits=self._limits,
            rng=np.random.default_rng(self.seed),
        )

    @cached_property
    def _limits(self) -> TimeLimits | None:
        """How long after its start each job is ended; None where no job can run longer than it did in truth."""
        steady = self.overheads is None and self.variation is None and type(self.speed) is RecordedSpeed
        if self.time_limits == "recorded" and steady and self._slower <= 1:
            return None
        return TimeLimits.of(self.jobs, self.time_limits)

    def session(
        self,
        scheduler: Scheduler,
        *,
        observers: Sequence[Observer] = (),
        backend: Backend | None = None,
        reasons: list[str] | None = None,
        **stalls: Any,
    ) -> Session:
        """Return a session at time 0, with the cadence that suits the scheduler, after its pre-runs if it has any.

        It runs on `backend`, by default on a fresh simulator, with leases if the scheduler has a `lease_s`. Why it
        changes jobs is added to `reasons`. `stalls` are `patience` and `on_stall` of a `Session`.
        """
        believed, runs_on = self.believed or self.speed, self.speed.runs_on()
        shape = len(self.jobs), len(self.cluster.device_types)
        refuse_unsound_network(self.cluster)
        refuse_on_no_type(self.jobs, self.cluster)
        refuse_unsound_model(self.speed, runs_on=runs_on, shape=shape, jobs=self.jobs)
        traits = Traits.of(scheduler)
        lease_s = traits.lease_s
        cadence = self.cadence or at_events(quantum_s=traits.quantum_s, when_empty=lease_s is not None)
        known = context(
            self.jobs, self.cluster, speed=believed, seed=self.seed, interference=self.interference,
            slot_s=math.inf if cadence.events else cadence.slot_s,
            holds=() if self.reservations is None else self.reservations.holds(self.jobs, self.cluster),
        )  # fmt: skip
        keeper = attach_history(self.history, scheduler)
        begin(scheduler, known)
        observers = observers if keeper is None else [*observers, keeper]
        if backend is None:
            period_s = math.inf if self.variation is None else self.variation.period_s
            every_s = self.measured_every_s(scheduler)
            refuse_endless(self.jobs, every_s=min(cadence.slot_s, lease_s or math.inf, period_s, every_s or math.inf))
            backend = self.simulator(lease_s=lease_s, measure_every_s=every_s)
        return Session(
            backend, cadence=cadence, runs_on=runs_on, observers=observers, reasons=reasons, quotas=self.quotas,
            reservations=self.reservations, hosting=self.hosting, **stalls,
        )  # fmt: skip

    def config(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return the options of a run, as JSON can hold them."""
        parts: dict[str, Any] = {"scheduler": scheduler, "cadence": self.cadence, "overheads": self.overheads}
        parts |= {"variation": self.variation, "faults": self.faults, "troubles": self.troubles}
        parts |= {"checkpoint_s": self.checkpoint_s, "preemption_loses_work": self.preemption_loses_work or None}
        parts |= {"measure_every_s": self.measured_every_s(scheduler)}
        if (profile := getattr(self.speed, "profile", None)) is not None:
            parts["profile"] = f"{profile.name}, {profile.made.at}"
        if Traits.of(scheduler).follows_record:
            parts[FOLLOWS_RECORD] = True
        if not Traits.of(scheduler).knows_types and self._slower > SAME_SPEED:
            parts[TYPES_DIFFER] = round(self._slower, 3)
        if getattr(self.speed, "amounts", False):
            parts[AMOUNTS_COUNT] = True
        said = ("quotas", "reservations", "interference")
        parts |= {name: str(rule) for name in said if (rule := getattr(self, name)) is not None}
        parts |= {LOAD: None if self.arrival_rate == 1 else self.arrival_rate}
        told = {name: plain(part) for name, part in parts.items() if part is not None}
        if prices := Traits.of(scheduler).pays or self.prices or self.usual_prices:
            told["prices"] = dict(prices)
        if profile is not None and profile.yardstick:
            told[REFERENCE] = reference(profile.yardstick)
        scenario = {KEY: self.scenario} if self.scenario else {}
        return told | scenario | {"speed": type(self.speed).__name__, "speeds": self.speeds}

    @cached_property
    def rules(self) -> list[str]:
        """What was asked for and holds for every scheduler, a sentence each: notes that need no warning."""
        split = self.hosting is None and self.scenario.get("consolidate") is not None
        said = [f"machines: {WORDS[SPLIT]}, as was asked for"] if split else []
        waits = self.hosting is not None and bool((self.hosting.spread == FEW).any())
        if self.scenario.get("consolidate_for_s") is not None and not waits:
            said.append(
                "machines: --consolidate-for changes nothing: no gang waits for few machines (--consolidate wait)"
            )
        return said + rules(self.quotas, self.reservations, self.hosting) + rules_of_jobs(self.jobs)

    def caveats(self, scheduler: Scheduler, *, name: str) -> list[str]:
        """Return the cautions for readers of this scheduler's numbers, a sentence each."""
        found = caveats(
            self.jobs, self.cluster, speed=self.speed, scheduler=scheduler, name=name, speeds=self.speeds,
            fails=self.faults is not None, interference=self.interference,
        )  # fmt: skip
        return [*found, *unmet(self.jobs, self.reservations), *unmet_partitions(self.jobs, self.cluster),
                *unmet_constraints(self.jobs, self.cluster)]  # fmt: skip

    @cached_property
    def job_bounds_s(self) -> Floats | None:
        """Seconds to completion that no scheduler can go below, by job, (N,): `labkit.experiment.bound`."""
        return jct_bound_s(
            self.jobs, speed=self.speed, cadence=self.cadence, overheads=self.overheads, variation=self.variation
        )  # fmt: skip

    @cached_property
    def bound_jct_s(self) -> float:
        """Mean JCT in seconds that no scheduler can go below; NaN: not known, or a job never gets to train.

        At least the mean of `job_bounds_s`, more where the cluster does not hold all jobs at their best at once.
        """
        return mean_bound_s(
            self.jobs, self.cluster, alone_s=self.job_bounds_s, speed=self.speed, cadence=self.cadence,
            overheads=self.overheads, variation=self.variation,
        )  # fmt: skip

    @property
    def _mean_alone_s(self) -> float:
        bounds_s = self.job_bounds_s
        return float("nan") if bounds_s is None else float(bounds_s.mean())

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
        scheduler = priced(scheduler, self.prices)
        gated = bool(rules_of_jobs(self.jobs))
        refuse_unruly(scheduler, self.quotas, self.reservations, name=called, hosting=self.hosting, gated=gated)
        if self.preemption_loses_work:
            refuse_turns(scheduler, checkpoint_s=checkpoints_s(self.faults, self.checkpoint_s), name=called)
        experiment = self
        if Traits.of(scheduler).ideal:
            jobs, cluster, speed = fluid(self.jobs, self.cluster, self.speed)
            experiment = replace(self, jobs=jobs, cluster=cluster, speed=speed, hosting=None)
        if Traits.of(scheduler).follows_record:
            experiment = self._recorded
        return experiment._run(scheduler, called, runs=runs, progress=progress, observers=observers)

    @property
    def _recorded(self) -> Experiment:
        """The same jobs with their recorded schedule and nothing else that counts."""
        jobs = self.jobs
        if not np.isfinite(jobs.recorded_start_s).any():
            why = "arrivals are scaled" if self.arrival_rate != 1 else "the trace does not say when jobs started"
            raise InputError(f"recorded follows the schedule that {jobs.name} recorded, and {why}; leave it out.")
        ran_on = np.where(jobs.measured_on == "", jobs.device_type, jobs.measured_on)
        jobs = jobs.with_columns(
            true_steps=jobs.total_steps, device_type=ran_on, begin_s=np.full(len(jobs), np.nan), nodes=0 * jobs.nodes,
            within=np.full(len(jobs), "", object), after=np.full(len(jobs), "", object), at_most=0 * jobs.at_most,
        )  # fmt: skip
        return replace(
            self, jobs=jobs, speed=RecordedSpeed(jobs, self.cluster), overheads=None, variation=None, faults=None,
            losses=None, troubles=None, checkpoint_s=None, preemption_loses_work=False, cadence=None, believed=None,
            quotas=None, reservations=None,
            hosting=None, measure_every_s=None, history=None, interference=None, time_limits="none",
        )  # fmt: skip

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
        if not Traits.of(scheduler).follows_record and np.isfinite(
            self.bound_jct_s
        ):  # of simulated runs alone: machines are not bound by a model
            told: dict[str, Any] = {BOUND: self.bound_jct_s, BOUND_ALONE: self._mean_alone_s}
            told |= {FASTER: True} if self._bound_is_faster else {}
            info = replace(info, config={**info.config, **told})
        watchers, reasons = list(observers), list[str]()
        with ExitStack() as stack:
            if progress:
                watchers.append(stack.enter_context(ProgressBar(called, total=len(self.jobs))))
            if runs is not None:
                keep()
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

"""The life of a scheduler: what it declares of itself, and what it is told before a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Placer, Scheduler, SpeedModel
from labkit.core.resources import Bools, Floats, Ints


class Measure(Protocol):
    """Trains a job alone with some gangs for a moment."""

    def __call__(
        self, job: int, n_ps: ArrayLike, n_workers: ArrayLike, steps: float = 0.0, device_type: int | None = None, /,
        *, cpus: ArrayLike | None = None, memory_gb: ArrayLike | None = None,
    ) -> Floats:  # fmt: skip
        """Return steps/s with each of these gangs, of a job that has done so many steps; 0 where one does not fit.

        `device_type` is where the workers are; None: wherever each gang is fastest. `cpus` and `memory_gb`: what each
        worker has in the place of what was declared; NaN is returned where speeds do not depend on that.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """Steps per second by kind of job, as far as it was measured."""

    kind: Ints
    """(N,) the kind of each job of the run: jobs of one kind have the same model and gang."""
    alone: Floats
    """(K, T) steps/s of a kind on each device type, on as few machines as possible; 0: it cannot run there."""
    apart: Floats
    """(K, T) the same with its GPUs on as many machines as possible."""
    mixed: Floats
    """(K,) steps/s on GPUs of all types at once, for gangs larger than any one type; 0 for the others."""
    shared: Floats | None
    """(K, K, T) steps/s of the first kind when each of its GPUs is shared with the second; NaN: not measured, 0: they
    cannot share. None: it is not known how fast two jobs on one GPU are."""
    fits: Bools
    """(K, T) whether one machine of this type holds the whole gang."""


class Profiler(Protocol):
    """Measures each kind of job on each device type."""

    def __call__(self, *, pairs: bool) -> Profile:
        """Return the measurements; `pairs`: also of jobs that share their GPUs, where the speeds know of that."""
        ...


class Rehearse(Protocol):
    """Tells what a scheduler would have made of some jobs, had jobs been as fast as it is believed."""

    def __call__(self, jobs: Jobs, scheduler: Scheduler, *, speed: SpeedModel, slot_s: float) -> float:
        """Return the mean JCT in seconds; a job that would not be done by then counts as if it were done."""
        ...


class Contention(Protocol):
    """What measurements before a run have shown of co-located jobs: a `labkit.speed.interference.Level`."""

    @property
    def name(self) -> str:
        """What it is called, or the file that it was fitted to."""
        ...

    @property
    def model(self) -> Any:
        """The fitted `InterferenceModel`."""
        ...

    @property
    def uses(self) -> Mapping[str, Any] | None:
        """The `TaskUse` of a model's tasks by its name; None: as the catalogue has it."""
        ...

    @property
    def declared(self) -> Mapping[str, Any] | None:
        """The `TaskUse` that is known without the truth: measured ones; None: as the catalogue has it."""
        ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Hold:
    """Machines that a reservation keeps from some jobs, from a start to an end."""

    machines: Bools
    """(M,) which they are."""
    may: Bools
    """(N,) which jobs may have them all the same."""
    own: Bools
    """(N,) which of them run nowhere else while it holds."""
    known_s: float
    start_s: float
    end_s: float
    """`known_s`, `start_s` and `end_s`: from when on schedulers know of it, and when it holds, in seconds since the run
    began."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Context:
    """What a scheduler may know before the first decision of a run."""

    jobs: Jobs
    """What is declared of all jobs of the run; when they come is not for a scheduler to use."""
    cluster: Cluster
    """Where they run."""
    runs_on: Bools
    """(N, T) which jobs can run on which device types."""
    measure: Measure
    """Trains a job alone with some gangs for a moment."""
    profile: Profiler
    """Trains one job of each kind on each device type."""
    rng: np.random.Generator
    """For a scheduler that draws."""
    rehearse: Rehearse | None = None
    """Simulates what another scheduler, or another decision, would have come to with speeds that are believed: nothing
    of the truth is in it. None: it is not known."""
    interference: Contention | None = None
    """What measurements before the run have shown of co-located jobs; None: there are none."""
    slot_s: float = inf
    """Seconds from one decision to the next where decisions fall on slots alone: what a job leaves stays idle until the
    next one. inf: a decision is due at events, too."""
    holds: tuple[Hold, ...] = ()
    """What reservations will keep from jobs, for schedulers that plan ahead."""
    phased: bool = True
    """Whether what `measure` shows may depend on the steps that a job has done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a scheduler declares of itself, as attributes of the same names; one that says nothing has these defaults.

    Attributes
    ----------
    quantum_s : float
        Decide at least this often, where the run does not say when to decide.
    lease_s : float or None
        Jobs run for so long after each decision, and then stop unless it is renewed; None: until they are stopped.
    ideal : bool
        Share GPUs at will, without rounds: jobs hold slices of time.
    stochastic : bool
        It draws: the same question may have another answer.
    knows_types : bool
        False: it gives jobs any type of GPU, however fast; tables of runs on types that differ in speed have a note.
    lives_on_types : bool
        It decides by differences in speed between device types: where there are none, tables have a note.
    lives_on_slos : bool
        It decides by the jobs' `slo_s`: where there are none, tables have a note.
    needs_durations : bool
        It decides by the jobs' `duration_s`: runs on machines refuse it where a job has none.
    oracle : bool
        It knows what no scheduler could, such as the speed of every gang; tables have a note.
    measure_every_s : float or None
        Measure what tasks use, and how fast they are, at least this often: the measured columns of `snapshot.jobs` come
        from it; None: no need.
    follows_record : bool
        It follows the schedule that the trace recorded: overheads, speeds, limits and rules do not count.
    over_reservations : bool
        It is asked about all hosts at once while reservations hold, and keeps them by the holds of its `Context`.
    pays : mapping or None
        Dollars per GPU and hour by device type, of one that minimises cost.

    Raises
    ------
    InputError
        If one of them is of another kind.
    """

    quantum_s: float = inf
    lease_s: float | None = None
    ideal: bool = False
    stochastic: bool = False
    knows_types: bool = True
    lives_on_types: bool = False
    lives_on_slos: bool = False
    needs_durations: bool = False
    oracle: bool = False
    measure_every_s: float | None = None
    follows_record: bool = False
    over_reservations: bool = False
    pays: Mapping[str, float] | None = None

    @classmethod
    def of(cls, scheduler: object) -> Self:
        """Return the declarations of a scheduler.

        >>> from labkit.schedulers import make
        >>> Traits.of(make("las")).quantum_s, Traits.of(make("fifo")).quantum_s
        (600.0, inf)
        """
        declared: dict[str, Any] = {f.name: getattr(scheduler, f.name, f.default) for f in fields(cls)}
        traits = cls(**declared)
        subject = type(scheduler).__name__.lower()
        for name, may_be_none in (("quantum_s", False), ("lease_s", True), ("measure_every_s", True)):
            value = getattr(traits, name)
            if not (_is_positive(value) or (may_be_none and value is None)):
                raise InputError(f"{subject}: {name} is {value!r}; expected seconds > 0{', or None' * may_be_none}.")
        for field in fields(cls):
            if isinstance(field.default, bool) and not isinstance(getattr(traits, field.name), bool | np.bool_):
                raise InputError(f"{subject}: {field.name} is {getattr(traits, field.name)!r}; expected True or False.")
        return traits


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(value > 0)


def begin(scheduler: object, context: Context) -> None:
    """Notify a scheduler that a run begins, if it has `begin(context)`.

    It forgets what it learnt of earlier runs, and measures what it needs. `simulate`, `deploy` and conformance tests
    call this; with a bare Session its owner does.
    """
    hook = getattr(scheduler, "begin", None)
    if hook is not None:
        hook(context)


def begin_placer(placer: Placer, context: Context) -> Placer:
    """Return a placer as it is in one run: what its `for_run(context)` returns, if it has that."""
    hook = getattr(placer, "for_run", None)
    if hook is None:
        return placer
    placer_of_run: Placer = hook(context)
    return placer_of_run

"""The joints: what a backend, a scheduler, a placer and a speed model must offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from labkit.core.cluster import Cluster
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import EachTask, Running, TaskUse

if TYPE_CHECKING:
    from labkit.core.snapshot import Snapshot


@runtime_checkable
class SpeedModel(Protocol):
    """How fast jobs train: the simulator's truth.

    A model with an attribute `pairs = True` knows how fast jobs are that share their GPUs (`running.partner`); with any
    other, a placement that pairs jobs is refused. One with `amounts = True` looks at the cores and memory that tasks
    were given (`running.cpus`); with any other, a run in which a scheduler gives some tells that they change no speed.
    One with `troubles = True` is a `TroubleModel`; with any other, a simulation of slow and hot tasks is refused.

    Attributes
    ----------
    local : bool
        True where a job's speed depends on its own tasks and its partner only, so that only changed jobs need be asked.
    """

    local: bool

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        ...

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        ...

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with the gang it asked for, alone on its best device type, (N,)."""
        ...


@runtime_checkable
class ChangeModel(Protocol):
    """A speed model that is not local and knows what starts and rescales take, and how they slow others down.

    With one, a job that is rescaled goes on with its old tasks until the new ones are ready.
    """

    warm_s: float
    """Seconds without tasks after which the next start on a machine is a cold one, as the first is."""

    def change_s(self, jobs: Ints, *, n_new: Ints, cold: Bools | None = None) -> Floats:
        """Return the seconds that a start, a restart and a rescale take with no job beside it, (J, 3).

        `cold`: (J,) which jobs have a task on a machine that is cold.
        """
        ...

    def rates(self, running: Running) -> tuple[Floats, Floats]:
        """Return steps per second of each job, 0 of those that start, and the pace of its change, (J,) each.

        A change at pace 1 takes as long as with no job beside it, at 0.5 twice as long.
        """
        ...


@runtime_checkable
class PhaseModel(SpeedModel, Protocol):
    """A speed model of jobs whose speed changes as they progress, as that of training with an adaptive batch does.

    It is told the steps that jobs have done (`running.steps`); where that is empty, none.
    """

    round_s: float
    """Phases and jobs end at multiples of this many seconds, as in simulators that count seconds; 0: exactly."""

    def ends(self, jobs: Ints, steps: Floats) -> Floats:
        """Return at which steps the phase ends in which each job is that has done so many, (J,); inf: never."""
        ...


@runtime_checkable
class UseModel(Protocol):
    """A speed model that also knows what tasks use: what the simulator measures comes from it."""

    def use(self, running: Running) -> TaskUse:
        """Return the use of the tasks of running jobs at the speeds that the model gives them."""
        ...


@runtime_checkable
class TroubleModel(UseModel, Protocol):
    """A speed model that tells tasks of a job apart: it knows slow and hot ones, and what each of them uses."""

    troubles: bool

    def each(self, running: Running) -> EachTask:
        """Return the use of every single task."""
        ...


@runtime_checkable
class Placer(Protocol):
    """From counts to device groups."""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go, whole gangs only, the first ones first.

        A job that already has tasks and is named in `gangs` is placed anew, in the room that it held too. A gang that
        does not fit gets no tasks: one that waits goes on waiting, one that ran is stopped. `strict` stops at the
        first gang that does not fit; the ones after it get none either. Otherwise it is skipped.
        """
        ...


@runtime_checkable
class Scheduler(Protocol):
    """Decides how much each job gets, from what a real scheduler could know."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the changes to make; the same snapshot gives the same answer."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Where jobs run: simulated time, the same at the wall clock's pace, a recording, or machines over SSH."""

    jobs: Jobs
    cluster: Cluster

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        ...

    @property
    def idle(self) -> bool:
        """True when nothing will ever happen unless a scheduler starts a job."""
        ...

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision and return what happened."""
        ...

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let time pass until `until_s`, or until something happens that a scheduler should know."""
        ...

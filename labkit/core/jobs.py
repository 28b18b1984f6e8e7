"""The jobs of a trace, as columns in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.columns import Columns
from labkit.core.errors import TraceError, TruthError
from labkit.core.faults import fault_report
from labkit.core.job import Job
from labkit.core.job_faults import faults_of
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Bools, Floats, Ints, amounts

if TYPE_CHECKING:
    import pandas as pd

TRUTH = {
    "true_steps": "total_steps, or snapshot.jobs.remaining_steps",
    "ps_memory_base_gb": "snapshot.jobs.used_memory_gb",
    "ps_memory_growth_gb": "snapshot.jobs.used_memory_gb",
}
"""Columns that only a backend may read, and what a scheduler reads instead."""

WORKER_DEMAND, PS_DEMAND = amounts(gpus=1, cpus=1), amounts(cpus=1)
"""What a worker and a parameter server take unless a trace says otherwise, (R,)."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """The jobs of a trace in order of arrival, N of them; make one with `Jobs.of`.

    Attributes
    ----------
    name : str
        Where they come from: a file or a recipe.
    id : array of str
        (N,) unique names.
    models, model : tuple of str, array
        The distinct models, and (N,) the index of each job's.
    users, user : tuple of str, array
        The distinct users (virtual clusters, tenants), and (N,) the index of each job's.
    arrival_s : array
        (N,) seconds, never decreasing.
    total_steps : array
        (N,) declared parameter updates (or the trace's own unit of work: `samples_per_step`).
    true_steps : array
        (N,) what the job really needs; only the simulator may look.
    steps_per_epoch : array
        (N,) steps in one epoch.
    samples_per_step : array
        (N,) samples that one step trains on, alike for all jobs of a model; NaN: a step is a parameter update, on a
        global batch of the model.
    duration_s : array
        (N,) declared seconds with the gang that was asked for; NaN where unknown.
    n_workers, n_ps : array
        (N,) the gang asked for; n_ps = 0: all-reduce.
    max_workers, max_ps : array
        (N,) the largest useful gang; equal to the asked one for rigid jobs.
    worker_demand, ps_demand : array
        (N, R) what one worker, one parameter server takes.
    sync : array of bool
        (N,) synchronous training (global batch constant) or asynchronous.
    weight : array
        (N,) share among jobs, 1 by default.
    slo_s : array
        (N,) seconds after arrival by which the job should be done; NaN: none.
    loss_delta : array
        (N,) the job has converged once its loss falls by less than this fraction of its largest an epoch; NaN: it
        trains for `total_steps` whatever its loss.
    home : array
        (N,) the pod (partition of the cluster) where the job arrives; -1: it may go anywhere.
    device_type : array of str
        (N,) the kind of GPU that the job demands; "": any.
    gpu_memory_gb : array
        (N,) memory that a worker needs of each GPU, or part of one, that it takes; 0: any.
    measured_on : array of str
        (N,) the kind of GPU on which `duration_s` was recorded; "": not known.
    priority : array
        (N,) what the trace says; a higher number is more urgent. For schedulers that look at it.
    reservation : array of str
        (N,) the reservation that the job belongs to, of those that a run may have; "": none.
    partitions, partition : tuple of str, array
        The distinct partitions (virtual clusters), and (N,) the index of each job's: it is placed on their hosts only,
        where the cluster has them; "": on any.
    consolidate : array of str
        (N,) how a gang lies on machines, as `labkit.core.hosting` has it: wait, prefer or split; "": as the run has it.
    nodes : array
        (N,) on exactly so many machines, with tasks spread evenly over them; 0: on any number.
    within : array of str
        (N,) "rack" or "pod": all of its tasks lie within one, whichever it is; "": anywhere.
    constraint : array of str
        (N,) features of machines that it needs, as Slurm's --constraint has them: "nvlink&big", "a|b"; "": none.
    begin_s : array
        (N,) moment before which it does not start, in seconds since the run began; NaN: none.
    after : array of str
        (N,) ids of jobs that must have ended before it starts, joined by "+"; "": none.
    array, at_most : array of str, array
        (N,) the array of jobs that it belongs to, "": none; and how many of that run at once, 0: any number.
    limit_s : array
        (N,) seconds after its start at which it is ended; NaN: no limit.
    qos : array of str
        (N,) its quality of service, for schedulers that look at it.
    recorded_start_s, recorded_hosts : array, array of str
        (N,) when and on which machines it was recorded to start, for the scheduler `recorded`; NaN, "": not known.
    ps_memory_base_gb, ps_memory_growth_gb : array
        (N,) memory that all parameter servers of a job hold together at its beginning, and what they take more of in
        each 1,000 steps; 0: as much as is declared. Only the simulator may look.
    zero_s : float
        The moment from which times count, in seconds since 1970 as the trace's own clock shows; 0: not known.
    notes : tuple of str
        What a reader of figures about these jobs has to know: what was guessed, left out or fallen back to.
    """

    name: str
    id: NDArray[np.object_]
    models: tuple[str, ...]
    model: Ints
    users: tuple[str, ...]
    user: Ints
    arrival_s: Floats
    total_steps: Floats
    true_steps: Floats
    steps_per_epoch: Floats
    samples_per_step: Floats
    duration_s: Floats
    n_workers: Ints
    n_ps: Ints
    max_workers: Ints
    max_ps: Ints
    worker_demand: Floats
    ps_demand: Floats
    sync: Bools
    weight: Floats
    slo_s: Floats
    loss_delta: Floats
    home: Ints
    device_type: NDArray[np.object_]
    gpu_memory_gb: Floats
    measured_on: NDArray[np.object_]
    priority: Floats
    reservation: NDArray[np.object_]
    partitions: tuple[str, ...]
    partition: Ints
    consolidate: NDArray[np.object_]
    nodes: Ints
    within: NDArray[np.object_]
    constraint: NDArray[np.object_]
    begin_s: Floats
    after: NDArray[np.object_]
    array: NDArray[np.object_]
    at_most: Ints
    limit_s: Floats
    qos: NDArray[np.object_]
    recorded_start_s: Floats
    recorded_hosts: NDArray[np.object_]
    ps_memory_base_gb: Floats
    ps_memory_growth_gb: Floats
    zero_s: float = 0.0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        arrival_s: ArrayLike,
        total_steps: ArrayLike,
        name: str = "jobs",
        id: Sequence[str] | None = None,
        model: Sequence[str] | str = "job",
        user: Sequence[str] | str = "user",
        true_steps: ArrayLike | None = None,
        steps_per_epoch: ArrayLike | None = None,
        samples_per_step: ArrayLike = np.nan,
        duration_s: ArrayLike = np.nan,
        n_workers: ArrayLike = 1,
        n_ps: ArrayLike = 0,
        max_workers: ArrayLike | None = None,
        max_ps: ArrayLike | None = None,
        worker_demand: ArrayLike | None = None,
        ps_demand: ArrayLike | None = None,
        sync: ArrayLike = True,
        weight: ArrayLike = 1.0,
        slo_s: ArrayLike = np.nan,
        loss_delta: ArrayLike = np.nan,
        home: ArrayLike = -1,
        device_type: Sequence[str] | str = "",
        gpu_memory_gb: ArrayLike = 0.0,
        measured_on: Sequence[str] | str = "",
        priority: ArrayLike = 0.0,
        reservation: Sequence[str] | str = "",
        partition: Sequence[str] | str = "",
        consolidate: Sequence[str] | str = "",
        nodes: ArrayLike = 0,
        within: Sequence[str] | str = "",
        constraint: Sequence[str] | str = "",
        begin_s: ArrayLike = np.nan,
        after: Sequence[str] | str = "",
        array: Sequence[str] | str = "",
        at_most: ArrayLike = 0,
        limit_s: ArrayLike = np.nan,
        qos: Sequence[str] | str = "",
        recorded_start_s: ArrayLike = np.nan,
        recorded_hosts: Sequence[str] | str = "",
        ps_memory_base_gb: ArrayLike = 0.0,
        ps_memory_growth_gb: ArrayLike = 0.0,
        notes: Sequence[str] = (),
    ) -> Self:
        """Return jobs from columns or scalars, sorted by arrival (ties keep their order).

        Raises
        ------
        TraceError
            All faults at once: no jobs, duplicate ids, negative or missing times, counts that are not positive.
        """
        of = Columns(name, np.size(arrival_s))
        steps = of.numbers("total_steps", total_steps)
        workers, servers = of.counts("n_workers", n_workers), of.counts("n_ps", n_ps)
        numbers = {
            "arrival_s": arrival_s, "true_steps": steps if true_steps is None else true_steps,
            "steps_per_epoch": steps if steps_per_epoch is None else steps_per_epoch,
            "samples_per_step": samples_per_step, "duration_s": duration_s, "weight": weight, "slo_s": slo_s,
            "loss_delta": loss_delta, "priority": priority, "ps_memory_base_gb": ps_memory_base_gb,
            "ps_memory_growth_gb": ps_memory_growth_gb, "begin_s": begin_s, "limit_s": limit_s,
            "recorded_start_s": recorded_start_s, "gpu_memory_gb": gpu_memory_gb,
        }  # fmt: skip
        texts = {
            "device_type": device_type, "measured_on": measured_on, "reservation": reservation,
            "consolidate": consolidate, "constraint": constraint, "after": after, "array": array, "qos": qos,
            "recorded_hosts": recorded_hosts, "within": within,
        }  # fmt: skip
        counts = {
            "max_workers": workers if max_workers is None else max_workers,
            "max_ps": servers if max_ps is None else max_ps, "home": home, "nodes": nodes, "at_most": at_most,
        }  # fmt: skip
        columns: dict[str, Any] = {key: of.numbers(key, values) for key, values in numbers.items()}
        columns |= {key: of.texts(key, named) for key, named in texts.items()}
        columns |= {key: of.counts(key, values) for key, values in counts.items()}
        for key, names in (("model", model), ("user", user), ("partition", partition)):
            columns[f"{key}s"], columns[key] = of.categories(key, names)
        return cls(
            name=name,
            id=of.names("id", [str(i) for i in range(of.n)] if id is None else id),
            total_steps=steps,
            n_workers=workers,
            n_ps=servers,
            worker_demand=of.demand("worker_demand", WORKER_DEMAND if worker_demand is None else worker_demand),
            ps_demand=of.demand("ps_demand", PS_DEMAND if ps_demand is None else ps_demand),
            sync=of.flags("sync", sync),
            notes=tuple(notes),
            **columns,
        )._checked_in_order()

    def _checked_in_order(self) -> Self:
        """Return these jobs sorted by arrival, or raise TraceError with all their faults."""
        if faults := self.faults():
            raise TraceError(fault_report(self.name, faults))
        order = np.argsort(self.arrival_s, kind="stable")
        return self if np.array_equal(order, np.arange(len(order))) else self.take(order)

    def faults(self) -> list[str]:
        """Return the faults of these jobs, a line each."""
        return faults_of({f.name: getattr(self, f.name) for f in fields(self)})

    def __repr__(self) -> str:
        return f"<{len(self)} jobs of {self.name}>"

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __getitem__(self, number: int) -> Job:
        i = range(len(self))[number]
        return Job(
            number=i,
            id=str(self.id[i]),
            model=self.models[self.model[i]],
            user=self.users[self.user[i]],
            arrival_s=float(self.arrival_s[i]),
            total_steps=float(self.total_steps[i]),
            duration_s=float(self.duration_s[i]),
            n_workers=int(self.n_workers[i]),
            n_ps=int(self.n_ps[i]),
            max_workers=int(self.max_workers[i]),
            max_ps=int(self.max_ps[i]),
            gpus_per_worker=float(self.worker_demand[i, GPUS]),
            weight=float(self.weight[i]),
        )

    def __iter__(self) -> Iterator[Job]:
        return (self[i] for i in range(len(self)))

    def take(self, which: ArrayLike) -> Self:
        """Return the jobs that an index or a mask names, in that order."""
        chosen = np.asarray(which)
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[chosen] for k, v in columns.items() if isinstance(v, np.ndarray)})

    def with_columns(self, **columns: Any) -> Self:
        """Return a copy with some columns replaced, e.g. `jobs.with_columns(arrival_s=jobs.arrival_s / 2)`.

        Users, models and partitions may be names.

        Raises
        ------
        TraceError
            As `Jobs.of`.

        Examples
        --------
        >>> jobs = Jobs.of(arrival_s=[0, 1], total_steps=[5, 5]).with_columns(user=["ada", "bob"])
        >>> jobs[1].user
        'bob'
        """
        for column in ("user", "model", "partition"):
            if column in columns and np.asarray(columns[column]).dtype.kind not in "iu":  # names, not codes of them
                of = Columns(self.name, len(self))
                columns[f"{column}s"], columns[column] = of.categories(column, columns[column])
        return replace(self, **columns)._checked_in_order()

    @cached_property
    def gang_demand(self) -> Floats:
        """What the gang that each job asked for takes in all, (N, R)."""
        return self.n_workers[:, None] * self.worker_demand + self.n_ps[:, None] * self.ps_demand

    @cached_property
    def gpus(self) -> Floats:
        """GPUs of the gang that each job asked for, (N,)."""
        return np.ascontiguousarray(self.gang_demand[:, GPUS])

    @cached_property
    def fewest_gpus(self) -> float:
        """GPUs of the smallest gang that any job asked for."""
        return float(self.gpus.min())

    @cached_property
    def malleable(self) -> Bools:
        """Which jobs can train with another number of workers or PSs than they asked for, (N,)."""
        return np.asarray((self.max_workers > self.n_workers) | (self.max_ps > self.n_ps), dtype=np.bool_)

    @cached_property
    def declared(self) -> DeclaredJobs:
        """What schedulers see of these jobs: all columns but those of the truth; always the same object."""
        return DeclaredJobs.without_truth(self)

    def with_workers_of(self, demand: Floats) -> DeclaredJobs:
        """Return what is declared of these jobs, had a worker of each declared other amounts, (N, R): unchecked."""
        return DeclaredJobs(**{**DeclaredJobs._columns_of(self), "worker_demand": demand})

    def model_names(self) -> NDArray[np.object_]:
        """Return each job's model name, (N,)."""
        return np.array(self.models, dtype=object)[self.model]

    def partition_names(self) -> NDArray[np.object_]:
        """Return the name of each job's partition, (N,)."""
        return np.array(self.partitions, dtype=object)[self.partition]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per job; `Jobs.from_frame` takes it back."""
        import pandas as pd

        columns: dict[str, Any] = {"id": self.id.astype(str), "model": self.model_names().astype(str)}
        columns["user"] = np.array(self.users, dtype=object)[self.user].astype(str)
        columns["partition"] = self.partition_names().astype(str)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in {"id", "model", "user", "partition"} and isinstance(value, np.ndarray) and value.ndim == 1:
                columns[f.name] = value
        for role in ("worker", "ps"):
            asked = getattr(self, f"{role}_demand")
            for axis, resource in ((GPUS, "gpus"), (CPUS, "cpus"), (MEMORY_GB, "memory_gb")):
                columns[f"{role}_{resource}"] = asked[:, axis]
        return pd.DataFrame(columns)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, *, name: str = "jobs") -> Self:
        """Return jobs from a table with the columns of `to_frame`; only arrival_s and total_steps must be there."""
        from labkit.core.errors import unknown

        plain = (
            {f.name for f in fields(cls)}
            - {"name", "zero_s", "notes", "models", "users", "partitions"}
            - {"worker_demand", "ps_demand"}
        )
        demands = {f"{role}_{r}" for role in ("worker", "ps") for r in ("gpus", "cpus", "memory_gb")}
        for column in frame.columns:
            if column not in plain | demands:
                raise unknown(f"column of {name}", str(column), plain | demands)
        missing = [column for column in ("arrival_s", "total_steps") if column not in frame.columns]
        if missing:
            raise TraceError(f"{name}: column {missing[0]} is missing; a trace needs arrival_s and total_steps.")
        given: dict[str, Any] = {c: frame[c].to_numpy() for c in frame.columns if c in plain}
        for role, default in (("worker", WORKER_DEMAND), ("ps", PS_DEMAND)):
            parts = [
                frame[f"{role}_{r}"].to_numpy(np.float64) if f"{role}_{r}" in frame.columns else default[axis]
                for axis, r in enumerate(("gpus", "cpus", "memory_gb"))
            ]
            given[f"{role}_demand"] = np.stack(np.broadcast_arrays(*parts, np.zeros(len(frame)))[:3], axis=-1)
        return cls.of(name=name, **given)


class DeclaredJobs(Jobs):
    """Jobs without the columns of the truth, and without a way back to them; `Jobs.declared` makes it.

    Raises
    ------
    TruthError
        When a column of the truth is read.
    """

    def __init__(self, **columns: Any) -> None:
        for name, column in columns.items():
            object.__setattr__(self, name, column)

    @classmethod
    def without_truth(cls, jobs: Jobs) -> DeclaredJobs:
        """Return the declared columns of some jobs."""
        return cls(**cls._columns_of(jobs))

    @property
    def true_steps(self) -> NoReturn:  # that it cannot be read is what this class is for
        """Refuse."""
        raise _refused("true_steps")

    @property
    def ps_memory_base_gb(self) -> NoReturn:
        """Refuse."""
        raise _refused("ps_memory_base_gb")

    @property
    def ps_memory_growth_gb(self) -> NoReturn:
        """Refuse."""
        raise _refused("ps_memory_growth_gb")

    @property
    def declared(self) -> DeclaredJobs:  # nothing is to be kept: it is what it returns
        """These jobs."""
        return self

    def take(self, which: ArrayLike) -> Self:
        """Return the jobs that an index or a mask names, in that order."""
        return type(self)(**self._columns_of(self.as_if_true().take(which)))

    def with_columns(self, **columns: Any) -> Self:
        """Return a copy with some columns replaced."""
        return type(self)(**self._columns_of(self.as_if_true().with_columns(**columns)))

    def partition_names(self) -> NDArray[np.object_]:
        """Return the name of each job's partition, (N,)."""
        return np.array(self.partitions, dtype=object)[self.partition]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per job."""
        return self.as_if_true().to_frame().drop(columns=list(TRUTH))

    def as_if_true(self) -> Jobs:
        """Return jobs of which every declaration is right."""
        nothing = np.zeros(len(self))
        truth: dict[str, Any] = {
            "true_steps": self.total_steps,
            "ps_memory_base_gb": nothing,
            "ps_memory_growth_gb": nothing,
        }
        return Jobs(**self._columns_of(self), **truth)

    @staticmethod
    def _columns_of(jobs: Jobs) -> Mapping[str, Any]:
        return {f.name: getattr(jobs, f.name) for f in fields(jobs) if f.name not in TRUTH}

    def __repr__(self) -> str:
        return f"<what is declared of {len(self)} jobs of {self.name}>"


def _refused(column: str) -> TruthError:
    return TruthError(
        f"a scheduler cannot read {column}: what a job really needs is the simulator's secret; read {TRUTH[column]}."
    )

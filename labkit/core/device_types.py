"""Device types that jobs demand: which types of a cluster a name means, and where a job may run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, PlacementError
from labkit.core.events import Role
from labkit.core.gpu_kinds import GpuKind
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.resources import GPUS, Bools, Floats, Ints

_WORD: Final = re.compile(r"[a-z0-9]+")
OR: Final = "|"
"""Between the names of a demand for one of several device types: "V100M16|V100M32"."""
NOT: Final = "!"
"""Before the names of a demand for any device type but these: "!T4"."""


def same_type(name: str, device_type: str) -> bool:
    """Return whether two names may mean the same kind of GPU: one has all the words of the other.

    >>> same_type("NVIDIA-A100-SXM4-80GB", "a100"), same_type("tesla_v100", "a100")
    (True, False)
    """
    mine, theirs = set(_WORD.findall(name.casefold())), set(_WORD.findall(device_type.casefold()))
    return bool(mine and theirs) and (mine <= theirs or theirs <= mine)


def meets(demand: str, device_type: str) -> bool:
    """Return whether a device type is what is demanded: one name, one of several, or any but some.

    >>> [meets("V100M16|V100M32", kind) for kind in ("V100M16", "V100M32", "T4")]
    [True, True, False]
    >>> [meets("!T4", kind) for kind in ("V100M16", "T4")]
    [True, False]
    """
    among = any(same_type(name, device_type) for name in names_in(demand))
    return among != demand.startswith(NOT)


def names_in(demand: str) -> list[str]:
    """Return the names of a demand.

    >>> names_in("!T4|P100"), names_in("")
    (['T4', 'P100'], [])
    """
    return [name.strip() for name in demand.removeprefix(NOT).split(OR)] if demand else []


def refuse_unknown(jobs: Jobs, cluster: Cluster, *, known: Iterable[str] = ()) -> None:
    """Raise if a demand for a set of device types names one that neither the cluster nor anyone has, or excludes all.

    Raise InputError, which names the first such job, the type, and those of the cluster; or a name that is empty.

    `known`: types of other clusters; a name that is nearly one of this cluster's is none of them.
    """
    for demand in dict.fromkeys(jobs.device_type.tolist()):
        if OR not in demand and NOT not in demand:
            continue
        where = f"job {jobs.id[int(np.flatnonzero(jobs.device_type == demand)[0])]} demands device type '{demand}'; "
        there = f"It has {', '.join(cluster.device_types)}; --any-type lets jobs have any."
        if demand.startswith(NOT) and not any(meets(demand, kind) for kind in cluster.device_types):
            raise InputError(f"{where}{cluster.name} has no other. {there}")
        for name in names_in(demand):
            near = get_close_matches(name.casefold(), [kind.casefold() for kind in cluster.device_types], 1, cutoff=0.8)
            if NOT not in name and any(
                same_type(name, kind) for kind in (*cluster.device_types, *(known if not near else ()))
            ):
                continue
            said = [kind for kind in cluster.device_types if [kind.casefold()] == near]
            raise InputError(
                f"{where}{cluster.name} has no '{name}'. "
                + (f"Did you mean '{said[0]}'? " if said else "Expected names with | between them: A|B, or !A|B. ")
                + there
            )


def type_index(names: Iterable[str], device_types: tuple[str, ...]) -> Ints:
    """Return which device type each name means, (N,): the one of that name, else the first that fits; -1: none."""
    plain = [kind.casefold() for kind in device_types]
    found: dict[str, int] = {}
    for name in dict.fromkeys(names):
        exact = [t for t, kind in enumerate(plain) if kind == name.casefold()]
        found[name] = next(iter(exact or [t for t, kind in enumerate(plain) if same_type(name, kind)]), -1)
    return np.array([found[name] for name in names], np.int32)


def may_run_on(jobs: Jobs, cluster: Cluster) -> Bools:
    """Return on which device types jobs may run by what they demand, (N, T): types, memory of GPUs, parts of some.

    A job that demands none of the cluster's types may run on any (`unmet_types` tells so), one with GPUs not on slices.
    """
    kinds = [cluster.gpu_kinds.get(name, _PLAIN) for name in cluster.device_types]
    whole, has_none = np.array([not kind.profile for kind in kinds]), jobs.worker_demand[:, GPUS, None] == 0
    allowed: Bools = has_none | whole
    for name in dict.fromkeys(jobs.device_type.tolist()):
        fits = [_meets(name, kind, of) for kind, of in zip(cluster.device_types, kinds, strict=True) if name]
        if any(fits):
            allowed[jobs.device_type == name] = fits
    may: Bools = allowed & (has_none | (_has_memory(jobs, kinds) & _may_share(jobs, kinds)))
    return may


_PLAIN: Final = GpuKind()


def _meets(demand: str, device_type: str, kind: GpuKind) -> bool:
    """Return whether a device type is what is demanded; a slice is where its profile is named."""
    if not kind.profile:
        return meets(demand, device_type)
    return meets(demand, device_type) and any(kind.profile in name.casefold() for name in names_in(demand))


def _part(jobs: Jobs) -> Floats:
    """Return the part of a GPU's memory that a worker has, (N,): that of its part of the GPU."""
    part: Floats = np.where(jobs.worker_demand[:, GPUS] > 0, np.minimum(jobs.worker_demand[:, GPUS], 1.0), 1.0)
    return part


def _has_memory(jobs: Jobs, kinds: list[GpuKind]) -> Bools:
    """Return which device types have the memory that jobs need, or none that is known, (N, T)."""
    lacks = np.outer(_part(jobs), [kind.memory_gb for kind in kinds]) < jobs.gpu_memory_gb[:, None] - 1e-9
    return np.asarray(~lacks)


def _may_share(jobs: Jobs, kinds: list[GpuKind]) -> Bools:
    """Return on which device types tasks may have the part of a GPU that jobs ask for, (N, T)."""
    return np.asarray((_part(jobs) == 1)[:, None] | ~np.array([kind.exclusive for kind in kinds], np.bool_))


@dataclass(frozen=True, eq=False, slots=True)
class OpenTypes:
    """On which device types the workers of a run's jobs may have GPUs, alone and beside a partner."""

    jobs: Jobs
    cluster: Cluster
    open: Bools
    """(N, T), or (0, T): all are."""
    exclusive: Bools
    """(T,) types of which a GPU belongs to one task."""

    @classmethod
    def of(cls, jobs: Jobs, cluster: Cluster) -> Self:
        """Return the types that are open to some jobs."""
        kinds = [cluster.gpu_kinds.get(name, _PLAIN) for name in cluster.device_types]
        several = len(kinds) > 1 or bool(cluster.gpu_kinds)
        may = may_run_on(jobs, cluster) if several else np.ones((0, len(kinds)), np.bool_)
        return cls(jobs, cluster, may if not may.all() else may[:0], np.array([kind.exclusive for kind in kinds]))

    def refuse(self, placement: Placement) -> None:
        """Raise if a placement puts workers on a type that is closed to their job, or pairs jobs where none may share.

        Raise PlacementError, which names the first such job.
        """
        paired = len(placement.partner) and (placement.partner >= 0).any() and self.exclusive.any()
        if not (len(self.open) or paired):
            return
        kind, job = self.cluster.group_type[placement.group], placement.job
        has_gpus = (placement.role == Role.WORKER) & (self.jobs.worker_demand[job, GPUS] > 0)
        if len(self.open) and (closed := has_gpus & ~self.open[job, kind]).any():
            j, name = int(job[closed][0]), self.cluster.device_types[kind[closed][0]]
            may = [kind for kind, is_open in zip(self.cluster.device_types, self.open[j], strict=True) if is_open]
            raise PlacementError(
                f"job {self.jobs.id[j]} is to have GPUs of device type {name}, which is closed to it; expected "
                f"{', '.join(may) or 'none'} ({_asked_of_gpus(self.jobs, j)}). See snapshot.runs_on."
            )
        if paired:
            mates = placement.set_jobs[placement.partner >= 0]
            shared = has_gpus & self.exclusive[kind] & np.isin(job, mates)
            if shared.any():
                raise PlacementError(
                    f"job {self.jobs.id[job[shared][0]]} is to share GPUs of device type "
                    f"{self.cluster.device_types[kind[shared][0]]}, each of which belongs to one task (exclusive); "
                    "place it there alone."
                )


def _asked_of_gpus(jobs: Jobs, j: int) -> str:
    """Return what a job asks of its GPUs, in words."""
    gpus, memory_gb = jobs.worker_demand[j, GPUS], jobs.gpu_memory_gb[j]
    parts = [f"'{jobs.device_type[j]}'"] * bool(jobs.device_type[j])
    parts += [f"{gpus:g} of a GPU"] * bool(gpus < 1) + [f"{memory_gb:g} GB of memory on each"] * bool(memory_gb > 0)
    return f"it asks for {', '.join(parts)}" if parts else "it asks for no slice of a GPU"


def refuse_on_no_type(jobs: Jobs, cluster: Cluster) -> None:
    """Raise if a job may run on no device type of a cluster by what is known of its GPUs.

    Raises
    ------
    InputError
        It names the first such job, what it needs, and what there is.
    """
    if not cluster.gpu_kinds or (fits := may_run_on(jobs, cluster).any(axis=1)).all():
        return
    raise InputError(why_on_no_type(jobs, int(np.flatnonzero(~fits)[0]), cluster))


def why_on_no_type(jobs: Jobs, number: int, cluster: Cluster) -> str:
    """Return why a job may run on no device type of a cluster by what is known of its GPUs; "" if it may on some."""
    kinds = {name: cluster.gpu_kinds.get(name, _PLAIN) for name in cluster.device_types}
    if not cluster.gpu_kinds or may_run_on(jobs.take([number]), cluster).any():
        return ""
    job, need, part = jobs.id[number], jobs.gpu_memory_gb[number], _part(jobs)[number]
    asked = f" of device type '{jobs.device_type[number]}'" if jobs.device_type[number] else ""
    if all(kind.profile for kind in kinds.values()) and not asked:
        return (
            f"job {job} demands no slice of a GPU, and {cluster.name} has slices alone; its device_type may be one of "
            + (", ".join(dict.fromkeys(kind.profile for kind in kinds.values())) + ".")
        )
    if need > 0:
        of = "a GPU" if part == 1 else f"{part:g} of a GPU"
        there = ", ".join(f"{name} {kind.memory_gb * part:g}" for name, kind in kinds.items())
        return f"job {job} needs {need:g} GB of memory on {of}{asked}; {cluster.name} has of that in GB: {there}."
    cut = list(dict.fromkeys(kind.profile for kind in kinds.values() if kind.profile))
    if part < 1 and cut and not any(profile in str(jobs.device_type[number]) for profile in cut):
        return (
            f"job {job} asks for {part:g} of a GPU{asked}; {cluster.name} has slices of MIG ({', '.join(cut)}), which "
            "are device types of their own. Slices of an export are parts of whole GPUs: leave mig out of the hosts."
        )
    return f"job {job} asks for {part:g} of a GPU{asked}; on {cluster.name} each GPU belongs to one task (exclusive)."


def could_run_on(jobs: Jobs, cluster: Cluster) -> Bools:
    """Return on which device types of which the cluster has a group jobs may run by what they demand, (N, T)."""
    there = np.isin(np.arange(len(cluster.device_types)), cluster.group_type)
    return may_run_on(jobs, cluster) & there


def of_any_type(jobs: Jobs) -> tuple[Jobs, int]:
    """Return the same jobs without the device types that they demand, and how many demanded one.

    >>> jobs, n = of_any_type(Jobs.of(arrival_s=[0, 0], total_steps=60, device_type=["v100", ""]))
    >>> jobs.device_type.tolist(), n
    (['', ''], 1)
    """
    demanding = jobs.device_type != ""
    return jobs.with_columns(device_type=np.full(len(jobs), "", object)), int(demanding.sum())


def unmet_types(jobs: Jobs, cluster: Cluster) -> list[str]:
    """Return a sentence if jobs demand device types that a cluster lacks."""
    asked = Counter(jobs.device_type.tolist())
    lacking = {
        name: n for name, n in asked.items() if name and not any(meets(name, kind) for kind in cluster.device_types)
    }
    if not lacking:
        return []
    shown = ", ".join(
        f"{name} ({n:,} of {len(jobs):,} jobs)" for name, n in sorted(lacking.items(), key=lambda item: -item[1])[:5]
    )
    return [
        f"device types that jobs demand and {cluster.name} lacks: {shown}; these jobs may run on any of its types "
        f"({', '.join(cluster.device_types)})."
    ]

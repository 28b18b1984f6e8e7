"""Use of cores and PCIe by model, the load beside each task, and the slowdown among running jobs that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, Floats, Ints
from labkit.core.running import Running
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.profile import NO_LOAD

if TYPE_CHECKING:
    from labkit.speed.interference.model import InterferenceModel


def co_load(
    group: Ints, *, count: Ints, cpu_cores: Floats, pcie_gbps: Floats, group_machine: Ints, group_cores: Floats
) -> tuple[Floats, Floats]:
    """Return U_C and P_C beside one task of each row, (P,) each.

    U_C is what the other tasks of its device group use, and what the machine's other groups use beyond their own cores
    [1]_: tasks whose processor is full run on over to the next one. P_C is what the other tasks of its group move over
    the PCIe bus. Tasks of the same job count too.

    Parameters
    ----------
    group, count : array
        (P,) the device group of each row, and how many equal tasks it stands for.
    cpu_cores, pcie_gbps : array
        (P,) what one task of the row uses alone; for columns by job, index them by the row's job.
    group_machine, group_cores : array
        (G,) the machine and the cores of each device group (of a `Cluster`: `group_machine`, `capacity[:, CPUS]`).

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. V-B.
    """
    n_groups = len(group_machine)
    cores = np.bincount(group, count * cpu_cores, n_groups)
    moved = np.bincount(group, count * pcie_gbps, n_groups)
    overflow = np.maximum(cores - group_cores, 0.0)
    elsewhere = np.bincount(group_machine, overflow)[group_machine] - overflow
    co_cpu = cores[group] - cpu_cores + elsewhere[group]
    co_pcie = moved[group] - pcie_gbps
    return np.where(co_cpu > NO_LOAD, co_cpu, 0.0), np.where(co_pcie > NO_LOAD, co_pcie, 0.0)


def slowdowns(
    model: InterferenceModel,
    group: Ints,
    *,
    count: Ints,
    cpu_cores: Floats,
    pcie_gbps: Floats,
    group_machine: Ints,
    group_cores: Floats,
) -> Floats:
    """Return how much slower one task of each row runs than alone, (P,) >= 1; parameters as `co_load`."""
    co_cpu, co_pcie = co_load(
        group, count=count, cpu_cores=cpu_cores, pcie_gbps=pcie_gbps, group_machine=group_machine,
        group_cores=group_cores,
    )  # fmt: skip
    return model.slowdown(cpu_cores, pcie_gbps, co_cpu_cores=co_cpu, co_pcie_gbps=co_pcie)


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What the tasks of a model use when alone.

    Raise InputError if one of them is negative or not a number.
    """

    worker_cores: float
    ps_cores: float | None = 0.0
    """`worker_cores` and `ps_cores`: cores that one worker, one parameter server keeps busy; None: a server keeps those
    busy that it asks for."""
    pcie_gbps: float = 0.0
    """What one worker moves over its PCIe bus; parameter servers move nothing there."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name} of a task is {getattr(self, name)}; expected a number >= 0.")


def task_use(jobs: Jobs, *, uses: Mapping[str, ModelUse] | None = None) -> tuple[Floats, Floats]:
    """Return the cores and the PCIe Gbps of one worker (row 0) and one PS (row 1) of each job, (2, N) each.

    Parameters
    ----------
    jobs : Jobs
        N jobs.
    uses : mapping, optional
        By model name. A model that is not in it is looked up in `labkit.workloads.catalogue`; a job of a model that
        the catalogue does not know either uses the cores it asks for, and no PCIe.
    """
    cores = np.stack([jobs.worker_demand[:, CPUS], jobs.ps_demand[:, CPUS]])
    pcie = np.zeros_like(cores)
    for k, name in enumerate(jobs.models):
        use = (uses or {}).get(name) or _published(name)
        if use is not None:
            cores[0, jobs.model == k] = use.worker_cores
            if use.ps_cores is not None:
                cores[1, jobs.model == k] = use.ps_cores
            pcie[0, jobs.model == k] = use.pcie_gbps
    return cores, pcie


def _published(name: str) -> ModelUse | None:
    from labkit.workloads import catalogue

    try:
        model = catalogue.model(name)
    except InputError:
        return None
    return ModelUse(model.worker_cores, model.ps_cores, model.pcie_gbps)


@dataclass(frozen=True, eq=False, slots=True)
class GroupUse:
    """What the tasks of each device group use together."""

    cpu_cores: Floats
    pcie_gbps: Floats
    """`cpu_cores` and `pcie_gbps`: (G,) cores that they would keep busy if each were alone, and what they move over the
    PCIe bus."""
    slowdown: Floats
    """(G,) of the slowest task there, >= 1; 1 where there is none."""


class Interference:
    """The slowdown of each running task by those beside it, as `labkit.speed.step_time.StepTime` takes it.

    Parameters
    ----------
    model : InterferenceModel
        A fitted one.
    jobs, cluster : Jobs, Cluster
        Which jobs run, and where.
    uses : mapping, optional
        As for `task_use`.
    """

    def __init__(
        self, model: InterferenceModel, jobs: Jobs, cluster: Cluster, *, uses: Mapping[str, ModelUse] | None = None
    ) -> None:
        self.model, self.cluster = model, cluster
        self.cores, self.pcie_gbps = task_use(jobs, uses=uses)

    def groups(self, running: Running) -> GroupUse:
        """Return the use of each device group, and the slowdown of its slowest task."""
        job, n_groups = running.job[running.row_job()], self.cluster.n_groups
        slowest = np.ones(n_groups)
        np.maximum.at(slowest, running.group, self(running))
        cores = np.bincount(running.group, running.count * self.cores[running.role, job], n_groups)
        moved = np.bincount(running.group, running.count * self.pcie_gbps[running.role, job], n_groups)
        return GroupUse(np.asarray(cores, np.float64), np.asarray(moved, np.float64), slowest)

    def __call__(self, running: Running) -> Floats:
        """Return D >= 1 of one task of each row, (P,)."""
        job = running.job[running.row_job()]
        return slowdowns(
            self.model,
            running.group,
            count=running.count,
            cpu_cores=self.cores[running.role, job],
            pcie_gbps=self.pcie_gbps[running.role, job],
            group_machine=self.cluster.group_machine,
            group_cores=self.cluster.capacity[:, CPUS],
        )

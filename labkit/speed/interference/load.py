"""What the tasks of a cluster share: the load beside each task, and the slowdown that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.resources import Floats, Ints
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

"""A cluster: machines, their device groups, and the network between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.gpu_kinds import GpuKind
from labkit.core.resources import Bools, Floats, Ints

Route = Callable[[Ints, Ints, Ints], Ints]
"""(source machine (F,), destination machine (F,), hash (F,)) -> links of each flow (F, H), padded with L."""


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes, directed links, and the router between machines.

    Node numbers 0..M-1 are the machines in the cluster's order; switches follow.

    Attributes
    ----------
    kind : str
        Name of the builder: "fat_tree", "vl2", ...
    nodes : tuple of str
        (V,) names.
    tier : array
        (V,) 0 for machines, 1 for edge or top-of-rack switches, and so on upwards.
    link_from, link_to : array
        (L,) node numbers; a cable is two directed links.
    link_gbps : array
        (L,) capacity in Gbps.
    route : Route
        Paths of flows by equal-cost multi-path; the hash chooses among equal paths.
    """

    kind: str
    nodes: tuple[str, ...]
    tier: Ints
    link_from: Ints
    link_to: Ints
    link_gbps: Floats
    route: Route = field(repr=False)

    @property
    def n_links(self) -> int:
        """Number of directed links, L."""
        return len(self.link_gbps)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Machines and their device groups (the GPUs under one CPU socket).

    Attributes
    ----------
    name : str
        What made it, e.g. "fat_tree(4)".
    machines : tuple of str
        (M,) names.
    device_types : tuple of str
        (T,) kinds of GPU, e.g. ("v100", "p100", "k80"); a group without GPUs has the type of its neighbours.
    group_machine : array
        (G,) the machine of each device group, never decreasing.
    group_type : array
        (G,) index into `device_types`.
    capacity : array
        (G, R) what each group offers: GPUs, cores, memory in GB.
    group_pcie_gbps : array
        (G,) bandwidth of the PCIe bus under each socket.
    machine_socket_gbps : array
        (M,) bandwidth between the sockets of a machine.
    partition : array
        (M,) the pod of each machine, for several schedulers side by side.
    network : Network or None
        None: the network costs nothing.
    partitions : mapping
        Name of a partition (virtual cluster) -> (M,) which machines it has; machines may be in several. A job that
        names one is placed there only. See `with_partitions`; not to be mistaken for `partition`.
    features : mapping
        Name of a feature that jobs may ask for (`Jobs.constraint`) -> (M,) which machines have it.
    gpu_kinds : mapping
        Device type -> what is known of its GPUs: memory, whether tasks share one, slices of MIG.
    """

    name: str
    machines: tuple[str, ...]
    device_types: tuple[str, ...]
    group_machine: Ints
    group_type: Ints
    capacity: Floats
    group_pcie_gbps: Floats
    machine_socket_gbps: Floats
    partition: Ints
    network: Network | None = None
    partitions: Mapping[str, Bools] = field(default_factory=dict)
    features: Mapping[str, Bools] = field(default_factory=dict)
    gpu_kinds: Mapping[str, GpuKind] = field(default_factory=dict)

    @property
    def n_machines(self) -> int:
        """Number of machines, M."""
        return len(self.machines)

    @property
    def n_groups(self) -> int:
        """Number of device groups, G."""
        return len(self.group_machine)

    @property
    def n_gpus(self) -> int:
        """Number of GPUs in all."""
        return int(self.capacity[:, 0].sum())

    @property
    def gpu_types(self) -> list[str]:
        """Device types of which it has GPUs: not those of machines without one."""
        return [kind for kind, n in zip(self.device_types, self.gpus_of_type(), strict=True) if n > 0]

    def gpus_of_type(self) -> Floats:
        """Return the number of GPUs of each device type, (T,)."""
        counts: Floats = np.bincount(self.group_type, self.capacity[:, 0], len(self.device_types)).astype(np.float64)
        return counts

    def machines_of(self, groups: Bools) -> Bools:
        """Return which machines have one of some device groups (G,), (M,)."""
        machines: Bools = np.bincount(self.group_machine, groups, self.n_machines) > 0
        return machines

    def part(self, pod: int) -> Self:
        """Return the cluster of one partition, without its network."""
        inside = self.partition == pod
        groups = inside[self.group_machine]
        renumbered = np.cumsum(inside, dtype=np.int32) - 1
        return replace(
            self,
            name=f"{self.name}[{pod}]",
            machines=tuple(name for name, keep in zip(self.machines, inside, strict=True) if keep),
            group_machine=renumbered[self.group_machine[groups]].astype(np.int32),
            group_type=self.group_type[groups],
            capacity=self.capacity[groups],
            group_pcie_gbps=self.group_pcie_gbps[groups],
            machine_socket_gbps=self.machine_socket_gbps[inside],
            partition=self.partition[inside],
            network=None,
            partitions={name: hosts[inside] for name, hosts in self.partitions.items()},
            features={name: hosts[inside] for name, hosts in self.features.items()},
        )

    def with_partitions(self, hosts: Mapping[str, Iterable[str]]) -> Self:
        """Return the same cluster with partitions: name -> names of machines.

        >>> from labkit.topology import no_network
        >>> cluster = no_network(3)
        >>> made = cluster.with_partitions({"vision": cluster.machines[:2], "all": cluster.machines})
        >>> {name: int(hosts.sum()) for name, hosts in made.partitions.items()}
        {'vision': 2, 'all': 3}

        Raises
        ------
        InputError
            If a partition has no machines, or one that the cluster does not have.
        """
        masks: dict[str, Bools] = {}
        for name, named in hosts.items():
            if not (listed := list(named)):
                raise InputError(f"partition '{name}' has no machines; name at least one, or leave it out.")
            if odd := next((host for host in listed if host not in self.machines), None):
                raise unknown(f"host of partition {name}", odd, list(self.machines)[:20])
            masks[name] = np.isin(np.array(self.machines), listed)
        return replace(self, partitions=masks)

    def __repr__(self) -> str:
        return f"<cluster {self}>"

    def __str__(self) -> str:
        kinds = ", ".join(f"{n:.0f} {kind}" for kind, n in zip(self.device_types, self.gpus_of_type(), strict=True))
        return f"{self.name}: {self.n_machines} machines, {self.n_gpus} GPUs ({kinds})"

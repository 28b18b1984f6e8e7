"""BCube: machines with k + 1 ports that relay for each other, and levels of n-port switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from labkit.core.bounds import whole
from labkit.core.cluster import Cluster
from labkit.core.resources import Ints
from labkit.topology.links import Cables, bandwidths, check_size, network
from labkit.topology.servers import DEFAULT, Servers, assemble, assign

MAX_K = 5  # 720 orders of the digits


@dataclass(frozen=True)
class BCubeRoute:
    """Shortest routes of BCube: the address of the source turns into that of the destination digit by digit.

    The hash chooses the order of the digits, so that every shortest path is as likely as any other. Cable l M + m
    links machine m to its switch of level l, the one whose number is m without digit l.
    """

    n: int
    k: int
    units_per_partition: int

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:
        """Return the links of each flow, (F, 2k + 2), with L in the place of each digit that is right already."""
        n_machines = self.n ** (self.k + 1)
        n_links = 2 * n_machines * (self.k + 1)
        order = self._orders[flow_hash % len(self._orders)]
        paths = np.empty((len(source), 2 * self.k + 2), dtype=np.int32)
        here = source
        for step in range(self.k + 1):
            level = order[:, step]
            place = self._places[level]
            change = destination // place % self.n - here // place % self.n
            there = (here + change * place).astype(np.int32)
            paths[:, 2 * step] = np.where(change, 2 * (level * n_machines + here), n_links)
            paths[:, 2 * step + 1] = np.where(change, 2 * (level * n_machines + there) + 1, n_links)
            here = there
        return paths

    def switch_partition(self) -> Ints:
        """Return the pod of each switch, level by level; -1 for those that connect units."""
        switch, inside = np.arange(self.n**self.k, dtype=np.int32), _unit_digits(self.k)
        pod = switch // self.n ** (inside - 1) // self.units_per_partition
        levels = [pod if level < inside else np.full_like(pod, -1) for level in range(self.k + 1)]
        return np.concatenate(levels)

    @cached_property
    def _places(self) -> Ints:
        return np.array([self.n**level for level in range(self.k + 1)], dtype=np.int32)

    @cached_property
    def _orders(self) -> Ints:
        return np.array(list(permutations(range(self.k + 1))), dtype=np.int32)


def bcube(
    n: int, k: int, *, servers: Servers = DEFAULT, gbps: Sequence[float] | None = None, units_per_partition: int = 2
) -> Cluster:
    """Return a BCube_k [1]_ of n^(k+1) machines and (k + 1) n^k switches of n ports.

    Parameters
    ----------
    n : int
        Ports of each switch.
    k : int
        The highest level; a machine has k + 1 ports.
    servers : Server or sequence of (share, Server)
        The machines.
    gbps : sequence of float, optional
        Bandwidth of the links of each level; by default 10, 20, 40, 40, ...
    units_per_partition : int
        BCube_(k-2) units, of n^(k-1) machines, in each partition (BCube_0 where k < 2); two as in [2]_.

    Raises
    ------
    InputError
        If a number is out of range, or a bandwidth is not positive.

    References
    ----------
    .. [1] Guo et al., "BCube: a high performance, server-centric network architecture for modular data centers",
       SIGCOMM 2009.
    .. [2] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-D.
    """
    whole("bcube", at_least=2, n=n)
    whole("bcube", at_least=0, at_most=MAX_K, k=k)
    whole("bcube", units_per_partition=units_per_partition)
    name = f"bcube({n}, {k})"
    check_size(name, n ** (k + 1))
    levels = [f"level {level}" for level in range(k + 1)]
    speed = bandwidths("bcube", [10, 20, *[40] * k][: k + 1] if gbps is None else gbps, levels=levels)
    machines = n ** (k + 1)
    machine = np.arange(machines, dtype=np.int32)
    cables = []
    for level in range(k + 1):
        place = n**level
        switch = machine // (place * n) * place + machine % place  # the address without digit `level`
        cables.append(Cables(machine, machines + level * n**k + switch, speed[level]))
    links = network(
        "bcube",
        n_machines=machines,
        switches=[(f"level{level}-", n**k) for level in range(k + 1)],
        cables=cables,
        route=BCubeRoute(n, k, units_per_partition),
    )
    kinds, kind = assign(machines, servers)
    unit = machine // n ** _unit_digits(k)
    return assemble(name, kinds=kinds, kind=kind, partition=unit // units_per_partition, network=links)


def _unit_digits(k: int) -> int:
    """Return how many digits of an address count inside a unit, so that there are n^2 units where k allows it."""
    return max(k - 1, 1)

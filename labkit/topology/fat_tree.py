"""Fat tree of k-port switches: k pods, (k/2)^2 core switches, k^3/4 machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.core.bounds import whole
from labkit.core.cluster import Cluster
from labkit.core.resources import Ints
from labkit.topology.links import Cables, bandwidths, check_size, network, up_down
from labkit.topology.servers import DEFAULT, Servers, assemble, assign


@dataclass(frozen=True, slots=True)
class FatTreeRoute:
    """Equal-cost multi-path routes of a fat tree: the hash chooses the aggregation switch, then the core switch.

    Machine m sits under edge switch m // h of pod m // h^2, h = k / 2. Cables: h^2 k from machines to edges, as many
    from edge e to the h aggregation switches of its pod, as many from aggregation switch a to cores a h .. a h + h - 1.
    """

    k: int

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:
        """Return the links of each flow, (F, 6)."""
        h, n = self.k // 2, self.k**3 // 4
        aggregation, core = flow_hash % h, flow_hash // h % h
        sides = []
        for machine in (source, destination):
            edge, pod = machine // h, machine // (h * h)
            sides.append((machine, n + edge * h + aggregation, 2 * n + (pod * h + aggregation) * h + core))
        same = [source // (h**level) == destination // (h**level) for level in range(3)]
        turn = 3 - np.sum(same, axis=0)
        return up_down(sides[0], down=sides[1], turn=turn, n_links=6 * n)

    def switch_partition(self) -> Ints:
        """Return the pod of each switch: edges, aggregation, core."""
        pods = np.repeat(np.arange(self.k, dtype=np.int32), self.k // 2)
        return np.concatenate([pods, pods, np.full((self.k // 2) ** 2, -1, np.int32)])


def fat_tree(k: int, *, servers: Servers = DEFAULT, gbps: Sequence[float] = (10, 20, 40)) -> Cluster:
    """Return a fat tree [1]_; a pod is a partition.

    Parameters
    ----------
    k : int
        Ports of each switch, even.
    servers : Server or sequence of (share, Server)
        The machines.
    gbps : sequence of float
        Bandwidth of the links machine-edge, edge-aggregation, aggregation-core.

    Raises
    ------
    InputError
        If k is odd or less than 2, or a bandwidth is not positive.

    References
    ----------
    .. [1] Al-Fares, Loukissas and Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008.

    Examples
    --------
    >>> print(fat_tree(4))
    fat_tree(4): 16 machines, 64 GPUs (64 v100)
    """
    whole("fat_tree", at_least=2, multiple_of=2, k=k)
    check_size(f"fat_tree({k})", k**3 // 4)
    speed = bandwidths("fat_tree", gbps, levels=("machine-edge", "edge-aggregation", "aggregation-core"))
    h, n = k // 2, k**3 // 4
    machine = np.arange(n, dtype=np.int32)
    edges, aggregations, cores = n, n + k * h, n + 2 * k * h  # first node of each tier
    upper = machine // h  # the switch that the c-th cable of a level leaves upwards
    pod, port = upper // h, machine % h
    links = network(
        "fat_tree",
        n_machines=n,
        switches=[("edge", k * h), ("agg", k * h), ("core", h * h)],
        cables=[
            Cables(machine, edges + upper, speed[0]),
            Cables(edges + upper, aggregations + pod * h + port, speed[1]),
            Cables(aggregations + upper, cores + (upper % h) * h + port, speed[2]),
        ],
        route=FatTreeRoute(k),
    )
    kinds, kind = assign(n, servers)
    return assemble(f"fat_tree({k})", kinds=kinds, kind=kind, partition=machine // (h * h), network=links)

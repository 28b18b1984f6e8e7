"""VL2: a folded Clos of top-of-rack, aggregation and intermediate switches with valiant load balancing; small pods."""

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
class Vl2Route:
    """Valiant load balancing: traffic between racks bounces off an intermediate switch that the hash chooses.

    The hash also chooses which of its two aggregation switches each rack uses. Cables: one per machine, two per rack
    (to its own aggregation switch and to the next one), one from each aggregation to each intermediate switch.
    """

    d_a: int
    d_i: int
    per_rack: int

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:
        """Return the links of each flow, (F, 6)."""
        n_middle, n_racks, rest = self.d_a // 2, self.d_a * self.d_i // 4, flow_hash // 4
        n_machines = n_racks * self.per_rack
        middle = rest % n_middle
        sides = []
        for machine, uplink in ((source, flow_hash % 2), (destination, flow_hash // 2 % 2)):
            rack = machine // self.per_rack
            aggregation = (rack // (self.d_a // 4) + uplink) % self.d_i
            over = n_machines + 2 * n_racks + aggregation * n_middle + middle
            sides.append((machine, n_machines + 2 * rack + uplink, over))
        same_rack = source // self.per_rack == destination // self.per_rack
        turn = np.where(source == destination, 0, np.where(same_rack, 1, 3))
        n_links = 2 * (n_machines + 2 * n_racks + self.d_i * n_middle)
        return up_down(sides[0], down=sides[1], turn=turn, n_links=n_links)

    def switch_partition(self) -> Ints:
        """Return the pod of each switch: racks, aggregation, intermediate."""
        pods = np.arange(self.d_i, dtype=np.int32)
        return np.concatenate([np.repeat(pods, self.d_a // 4), pods, np.full(self.d_a // 2, -1, np.int32)])


def vl2(
    d_a: int, d_i: int, *, per_rack: int = 20, servers: Servers = DEFAULT, gbps: Sequence[float] = (1, 10, 10)
) -> Cluster:
    """Return a VL2 network [1]_: d_a / 2 intermediate, d_i aggregation and d_a d_i / 4 top-of-rack switches.

    A partition is one aggregation switch with the d_a / 4 racks that have it as their first uplink; their second uplink
    goes to the next one, our reading of "each managing 1 aggregation switch" [2]_.

    Parameters
    ----------
    d_a, d_i : int
        Ports of an aggregation switch (a multiple of 4) and of an intermediate switch.
    per_rack : int
        Machines under each top-of-rack switch.
    servers : Server or sequence of (share, Server)
        The machines.
    gbps : sequence of float
        Bandwidth of the links machine-rack, rack-aggregation, aggregation-intermediate.

    Raises
    ------
    InputError
        If a number is out of range, or a bandwidth is not positive.

    References
    ----------
    .. [1] Greenberg et al., "VL2: a scalable and flexible data center network", SIGCOMM 2009.
    .. [2] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-D.
    """
    whole("vl2", at_least=4, multiple_of=4, d_a=d_a)
    whole("vl2", at_least=2, d_i=d_i)
    whole("vl2", per_rack=per_rack)
    name, n_racks, n_middle = f"vl2({d_a}, {d_i})", d_a * d_i // 4, d_a // 2
    n = n_racks * per_rack
    check_size(name, n)
    speed = bandwidths("vl2", gbps, levels=("machine-rack", "rack-aggregation", "aggregation-intermediate"))
    machine, uplink, over = (np.arange(count, dtype=np.int32) for count in (n, 2 * n_racks, d_i * n_middle))
    aggregations, middles = n + n_racks, n + n_racks + d_i
    rack = uplink // 2
    links = network(
        "vl2",
        n_machines=n,
        switches=[("rack", n_racks), ("agg", d_i), ("mid", n_middle)],
        cables=[
            Cables(machine, n + machine // per_rack, speed[0]),
            Cables(n + rack, aggregations + (rack // (d_a // 4) + uplink % 2) % d_i, speed[1]),
            Cables(aggregations + over // n_middle, middles + over % n_middle, speed[2]),
        ],
        route=Vl2Route(d_a, d_i, per_rack),
    )
    kinds, kind = assign(n, servers)
    pod = machine // per_rack // (d_a // 4)
    return assemble(name, kinds=kinds, kind=kind, partition=pod, network=links)


def pods(
    n_pods: int, n_machines: int, *, servers: Servers = DEFAULT, gbps: Sequence[float] = (10, 20, 40)
) -> Cluster:  # fmt: skip
    """Return pods of as many machines each: a VL2 network with two racks a pod, one where the machines are odd.

    Parameters
    ----------
    n_pods, n_machines : int
        Pods, at least 2, and machines of each.
    servers : Server or sequence of (share, Server)
        The machines; each pod holds a mix in proportion.
    gbps : sequence of float
        Bandwidth of the links machine-rack, rack-aggregation, aggregation-intermediate.

    Raises
    ------
    InputError
        If a number is out of range, or a bandwidth is not positive.

    Examples
    --------
    >>> print(pods(3, 8))
    vl2(8, 3): 24 machines, 96 GPUs (96 v100)
    """
    whole("pods", at_least=2, n_pods=n_pods)
    whole("pods", n_machines=n_machines)
    racks = 1 if n_machines % 2 else 2
    return vl2(4 * racks, n_pods, per_rack=n_machines // racks, servers=servers, gbps=gbps)

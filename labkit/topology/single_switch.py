"""All machines on one switch, or without a network that costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.core.bounds import whole
from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.topology.links import Cables, bandwidths, check_size, network, up_down
from labkit.topology.servers import DEFAULT, Server, Servers, assemble, assign


@dataclass(frozen=True, slots=True)
class SingleSwitchRoute:
    """Up one cable and down another; there is nothing to choose."""

    n: int

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:  # noqa: ARG002
        """Return the links of each flow, (F, 2)."""
        turn = np.asarray(source != destination, dtype=np.int32)
        return up_down([source], down=[destination], turn=turn, n_links=2 * self.n)

    def switch_partition(self) -> Ints:
        """Return the pod of the switch: none."""
        return np.array([-1], dtype=np.int32)


def star(n: int, *, gbps: float | Floats) -> Network:
    """Return the network of n machines on one switch, each with its own bandwidth (M,) if need be."""
    machine = np.arange(n, dtype=np.int32)
    return network(
        "single_switch",
        n_machines=n,
        switches=[("switch", 1)],
        cables=[Cables(machine, np.full_like(machine, n), gbps)],
        route=SingleSwitchRoute(n),
    )


def single_switch(n: int, *, servers: Servers = DEFAULT, gbps: float = 10, partitions: int = 1) -> Cluster:
    """Return n machines on one switch that never blocks.

    Parameters
    ----------
    n : int
        Number of machines.
    servers : Server or sequence of (share, Server)
        The machines.
    gbps : float
        Bandwidth of each machine's link.
    partitions : int
        Pods of neighbouring machines, as even as possible.

    Raises
    ------
    InputError
        If a number is not positive, or there are more partitions than machines.
    """
    whole("single_switch", n=n)
    whole("single_switch", at_most=n, partitions=partitions)
    check_size(f"single_switch({n})", n)
    (speed,) = bandwidths("single_switch", gbps if isinstance(gbps, Sequence) else [gbps], levels=("machine-switch",))
    kinds, kind = assign(n, servers)
    pod = np.arange(n, dtype=np.int64) * partitions // n
    return assemble(
        f"single_switch({n})", kinds=kinds, kind=kind, partition=pod.astype(np.int32), network=star(n, gbps=speed)
    )


def no_network(n: int, *, servers: Server | Sequence[tuple[int, Server]] = DEFAULT) -> Cluster:
    """Return n machines in one partition, without a network.

    Parameters
    ----------
    n : int
        Number of machines.
    servers : Server or sequence of (count, Server)
        The machines; of a mix, those of the first kind come first.

    Raises
    ------
    InputError
        If n is not positive, or the counts do not add up to it.

    Examples
    --------
    >>> print(no_network(2, servers=[(1, DEFAULT), (1, DEFAULT)]))
    no_network(2): 2 machines, 8 GPUs (8 v100)
    """
    whole("no_network", n=n)
    check_size(f"no_network({n})", n)
    mix = [(n, servers)] if isinstance(servers, Server) else list(servers)
    counts = [count for count, _ in mix]
    whole(f"no_network({n})", at_least=0, **{f"servers[{i}]": count for i, count in enumerate(counts)})
    if sum(counts) != n or min(counts) < 0:
        raise InputError(f"no_network({n}): the servers are {counts}; expected counts that add up to {n}.")
    kind = np.repeat(np.arange(len(mix), dtype=np.int32), counts)
    return assemble(
        f"no_network({n})", kinds=tuple(server for _, server in mix), kind=kind, partition=np.zeros(n, np.int32)
    )

"""Leaf-spine: every leaf switch is linked to every spine switch."""

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
class LeafSpineRoute:
    """Equal-cost multi-path routes of a leaf-spine network: the hash chooses the spine.

    Cables: one per machine, then one from each leaf to each spine.
    """

    leaves: int
    spines: int
    per_leaf: int

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:
        """Return the links of each flow, (F, 4)."""
        n_machines, spine = self.leaves * self.per_leaf, flow_hash % self.spines
        leaf = [machine // self.per_leaf for machine in (source, destination)]
        over = [n_machines + number * self.spines + spine for number in leaf]
        turn = np.where(source == destination, 0, np.where(leaf[0] == leaf[1], 1, 2))
        n_links = 2 * (n_machines + self.leaves * self.spines)
        return up_down([source, over[0]], down=[destination, over[1]], turn=turn, n_links=n_links)

    def switch_partition(self) -> Ints:
        """Return the pod of each switch: leaves, spines."""
        return np.concatenate([np.arange(self.leaves), np.full(self.spines, -1)]).astype(np.int32)


def leaf_spine(
    leaves: int, spines: int, per_leaf: int, *, servers: Servers = DEFAULT, gbps: Sequence[float] = (25, 100)
) -> Cluster:
    """Return a leaf-spine network; a leaf and its machines are a partition.

    Parameters
    ----------
    leaves, spines, per_leaf : int
        Number of leaf switches, of spine switches, and of machines under each leaf.
    servers : Server or sequence of (share, Server)
        The machines.
    gbps : sequence of float
        Bandwidth of the links machine-leaf and leaf-spine.

    Raises
    ------
    InputError
        If a number is not positive.

    Examples
    --------
    >>> print(leaf_spine(4, 2, 3))
    leaf_spine(4, 2, 3): 12 machines, 48 GPUs (48 v100)
    """
    whole("leaf_spine", leaves=leaves, spines=spines, per_leaf=per_leaf)
    name, n = f"leaf_spine({leaves}, {spines}, {per_leaf})", leaves * per_leaf
    check_size(name, n + leaves * spines)
    speed = bandwidths("leaf_spine", gbps, levels=("machine-leaf", "leaf-spine"))
    machine, over = np.arange(n, dtype=np.int32), np.arange(leaves * spines, dtype=np.int32)
    links = network(
        "leaf_spine",
        n_machines=n,
        switches=[("leaf", leaves), ("spine", spines)],
        cables=[
            Cables(machine, n + machine // per_leaf, speed[0]),
            Cables(n + over // spines, n + leaves + over % spines, speed[1]),
        ],
        route=LeafSpineRoute(leaves, spines, per_leaf),
    )
    kinds, kind = assign(n, servers)
    return assemble(name, kinds=kinds, kind=kind, partition=machine // per_leaf, network=links)

"""What a topology must pass."""

from __future__ import annotations

import numpy as np

from labkit.core import Cluster, Network
from labkit.core.resources import Ints
from labkit.testing.placements import require
from labkit.topology.links import Router, fault_of_routes

MAX_FLOWS = 4000


def check_topology(cluster: Cluster, *, seed: int = 0) -> None:
    """Check that a cluster is what it says, and that its router finds the way.

    Machines have device groups, which have one of the device types and a capacity; buses and sockets have a bandwidth.
    Links connect nodes that are there, each has a bandwidth and a link back; machines are the first nodes, of tier 0.
    Between all pairs of machines, or 4,000 drawn ones, a path's links join in the direction of the flow, none is used
    twice, and they begin at the source and end at the destination, with any hash; within a machine there are none; and
    the same question has the same answer. A router that knows pods knows that of each switch.

    Parameters
    ----------
    seed : int
        Of the pairs and hashes.

    Raises
    ------
    ConformanceError
        In one sentence, with the cluster's name.

    Examples
    --------
    >>> from labkit.topology import leaf_spine
    >>> check_topology(leaf_spine(2, 2, 2))
    """
    what = f"cluster '{cluster.name}'"
    _check_machines(what, cluster)
    if cluster.network is not None:
        _check_links(what, cluster.network, cluster.n_machines)
        _check_routes(what, cluster.network, cluster.n_machines, np.random.default_rng(seed))


def _check_machines(what: str, cluster: Cluster) -> None:
    n_machines, n_groups, of = cluster.n_machines, cluster.n_groups, cluster.group_machine
    for name, shape in (
        ("group_type", (n_groups,)),
        ("capacity", (n_groups, 3)),
        ("group_pcie_gbps", (n_groups,)),
        ("machine_socket_gbps", (n_machines,)),
        ("partition", (n_machines,)),
    ):
        got = np.shape(getattr(cluster, name))
        require(got == shape, f"{what} has {name} of the shape {got}; expected {shape}.")
    require(
        np.array_equal(np.unique(of), np.arange(n_machines)) and (np.diff(of) >= 0).all(),
        f"{what} has a group_machine that does not count through its {n_machines} machines, each with a group or more.",
    )
    kinds = (cluster.group_type >= 0) & (cluster.group_type < len(cluster.device_types))
    require(kinds.all(), f"{what} has groups {np.flatnonzero(~kinds).tolist()} of a device type that it does not name.")
    bad = np.flatnonzero(~((cluster.capacity >= 0) & np.isfinite(cluster.capacity)).all(axis=1))
    require(not len(bad), f"{what} has groups {bad.tolist()} with a capacity that is negative or no number.")
    for name in ("group_pcie_gbps", "machine_socket_gbps"):
        slow = np.flatnonzero(~(getattr(cluster, name) > 0))
        require(not len(slow), f"{what} has a {name} that is not above 0 at {slow.tolist()}.")


def _check_links(what: str, network: Network, n_machines: int) -> None:
    n_nodes, tier = len(network.nodes), network.tier
    require(tier.shape == (n_nodes,), f"{what} has tiers of {tier.shape} for {n_nodes} nodes.")
    require(
        not tier[:n_machines].any() and (tier[n_machines:] > 0).all(),
        f"{what}: its {n_machines} machines must be the first nodes, of tier 0, and switches of tier 1 and above.",
    )
    ends = np.stack([network.link_from, network.link_to])
    require(ends.shape == (2, network.n_links), f"{what} has link_from, link_to and link_gbps of different lengths.")
    lost = np.flatnonzero(((ends < 0) | (ends >= n_nodes)).any(axis=0) | (ends[0] == ends[1]))
    require(not len(lost), f"{what} has links {lost.tolist()} that connect no two nodes.")
    idle = np.flatnonzero(~((network.link_gbps > 0) & np.isfinite(network.link_gbps)))
    require(not len(idle), f"{what} has links {idle.tolist()} without a finite bandwidth above 0.")
    there = set(zip(*ends.tolist(), strict=True))
    one_way = [link for link, (a, b) in enumerate(ends.T.tolist()) if (b, a) not in there]
    require(not one_way, f"{what} has links {one_way} without one back; a cable is two links.")


def _check_routes(what: str, network: Network, n_machines: int, rng: np.random.Generator) -> None:
    source, destination = _pairs(n_machines, rng)
    flow_hash = rng.integers(0, 2**31 - 1, len(source), dtype=np.int32)
    fault = fault_of_routes(network, source=source, destination=destination, flow_hash=flow_hash)
    require(fault is None, f"{what}: {fault}.")
    require(
        np.array_equal(network.route(source, destination, flow_hash), network.route(source, destination, flow_hash)),
        f"{what}: its router answers the same question differently the second time.",
    )
    if isinstance(network.route, Router):
        shape, expected = np.shape(network.route.switch_partition()), (len(network.nodes) - n_machines,)
        require(shape == expected, f"{what}: its router tells pods of the shape {shape}; expected {expected}.")


def _pairs(n_machines: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return all ordered pairs of machines as often as fit, or some at random."""
    if n_machines**2 > MAX_FLOWS:
        drawn: Ints = rng.integers(0, n_machines, (2, MAX_FLOWS), dtype=np.int32)
        return drawn[0], drawn[1]
    pairs = np.indices((n_machines, n_machines)).reshape(2, -1).astype(np.int32)
    times = min(MAX_FLOWS // n_machines**2, 16)
    return np.tile(pairs[0], times), np.tile(pairs[1], times)

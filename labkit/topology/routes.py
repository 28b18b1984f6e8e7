"""Whether the routes of a network lead where they should."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError
from labkit.core.resources import Ints

N_TRIED: Final = 32
"""Flows that are tried before a simulation."""


def fault_of_routes(network: Network, *, source: Ints, destination: Ints, flow_hash: Ints) -> str | None:
    """Return what is wrong with the routes of some flows between machines, None if nothing is."""
    paths = network.route(source, destination, flow_hash)
    n_links, expected = network.n_links, "expected int32 links of each flow (F, H)"
    if not isinstance(paths, np.ndarray) or paths.ndim != 2 or len(paths) != len(source):
        got = f"{type(paths).__name__} of the shape {np.shape(paths)} for {len(source)} flows"
        return f"its router returns {got}; {expected}, {n_links} where there is none"
    if paths.dtype.kind != "i" or (paths.size and not (paths.min() >= 0 and paths.max() <= n_links)):
        return f"its router returns links that are not there; {expected} from 0 to {n_links} (none)"
    for s, d, links in zip(source.tolist(), destination.tolist(), paths, strict=True):
        fault = _fault_of_path(network, s, d, links[links < n_links].tolist())
        if fault is not None:
            return f"the path from {network.nodes[s]} to {network.nodes[d]} {fault}"
    return None


def _fault_of_path(network: Network, source: int, destination: int, links: list[int]) -> str | None:
    if source == destination and links:
        return f"leaves the machine by link {links[0]}; expected no link"
    if len(set(links)) < len(links):
        return f"uses a link twice: {links}"
    at = source
    for link in links:
        begin, end = int(network.link_from[link]), int(network.link_to[link])
        if begin != at:
            told = f"link {link}, which leads from {network.nodes[begin]} to {network.nodes[end]}"
            return (
                f"is at {network.nodes[at]} and goes on with {told}; its links must join, in the direction of the flow"
            )
        at = end
    if at != destination:
        return f"ends at {network.nodes[at]}"
    return None


@lru_cache(maxsize=16)
def refuse_unsound_network(cluster: Cluster) -> None:
    """Raise if a link has no bandwidth, or a few routes, drawn at random, do not lead from source to destination.

    `labkit.testing.check_topology` looks at more.

    Raises
    ------
    InputError
        It names the cluster and the first such link or path.
    """
    network = cluster.network
    if network is None:
        return
    idle = np.flatnonzero(~((network.link_gbps > 0) & np.isfinite(network.link_gbps)))
    if len(idle):
        raise InputError(
            f"cluster '{cluster.name}': link {idle[0]} has {network.link_gbps[idle[0]]} Gbps; expected a finite number "
            "> 0."
        )
    rng = np.random.default_rng(0)
    source, destination = rng.integers(0, cluster.n_machines, (2, N_TRIED), dtype=np.int32)
    flow_hash = rng.integers(0, 2**31 - 1, N_TRIED, dtype=np.int32)
    fault = fault_of_routes(network, source=source, destination=destination, flow_hash=flow_hash)
    if fault is not None:
        raise InputError(f"cluster '{cluster.name}': {fault}. See labkit.testing.check_topology.")

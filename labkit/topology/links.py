"""Cables, networks and the routes of trees: what the builders share, and a check that routes lead where they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.bounds import MAX_MACHINES
from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError
from labkit.core.resources import Ints


@runtime_checkable
class Router(Protocol):
    """What a builder puts into `Network.route`: a route that also knows which pod each switch belongs to."""

    def __call__(self, source: Ints, destination: Ints, flow_hash: Ints, /) -> Ints:
        """Return the links of each flow, (F, H), L where there is none."""
        ...

    def switch_partition(self) -> Ints:
        """Return the pod of each switch, (V - M,); -1 for switches that connect pods."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Cables:
    """Cables of one level: cable c is link 2c from `low` to `high` and link 2c + 1 back.

    Attributes
    ----------
    low, high : array
        (C,) node numbers, `low` on the side of the machines.
    gbps : float or array
        Bandwidth each way.
    """

    low: Ints
    high: Ints
    gbps: ArrayLike


def network(
    kind: str, *, n_machines: int, switches: Sequence[tuple[str, int]], cables: Sequence[Cables], route: Router
) -> Network:
    """Return a network of machines, switches tier by tier, and cables.

    Parameters
    ----------
    kind : str
        Name of the builder.
    n_machines : int
        Number of machines; their nodes come first.
    switches : sequence of (name, count)
        One entry per tier, upwards from tier 1.
    cables : sequence of Cables
        Level by level; the router relies on this order.
    route : Router
        The router over these links.
    """
    counts = [n_machines, *(count for _, count in switches)]
    names = [f"m{i}" for i in range(n_machines)] + [f"{name}{i}" for name, n in switches for i in range(n)]
    ends = [np.column_stack([level.low, level.high]) for level in cables]
    gbps = [np.broadcast_to(np.asarray(level.gbps, np.float64), (len(level.low),)) for level in cables]
    both = np.concatenate(ends).astype(np.int32)
    return Network(
        kind=kind,
        nodes=tuple(names),
        tier=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        link_from=both.ravel(),
        link_to=both[:, ::-1].ravel(),
        link_gbps=np.repeat(np.concatenate(gbps), 2),
        route=route,
    )


def up_down(up: Sequence[Ints], *, down: Sequence[Ints], turn: Ints, n_links: int) -> Ints:
    """Return the paths of flows that climb a tree, turn, and descend.

    Parameters
    ----------
    up, down : sequence of arrays
        Cables (F,) of level i, counted from the machines, on the side of the source and of the destination.
    turn : array
        (F,) how many levels each flow climbs; 0: it stays in its machine.
    n_links : int
        L, which fills the levels that a flow does not reach.

    Returns
    -------
    array
        (F, 2 * levels) directed links.
    """
    levels = len(up)
    paths = np.full((len(turn), 2 * levels), n_links, dtype=np.int32)
    for level in range(levels):
        climbs = turn > level
        paths[climbs, level] = 2 * up[level][climbs]
        paths[climbs, -1 - level] = 2 * down[level][climbs] + 1
    return paths


def bandwidths(builder: str, gbps: Sequence[float], *, levels: Sequence[str]) -> tuple[float, ...]:
    """Return one bandwidth per level.

    Raises
    ------
    InputError
        If their number is not that of the levels, or one is not a positive number.
    """
    expected = f"expected {len(levels)} positive numbers: {', '.join(levels)}"
    try:
        values = tuple(float(value) for value in gbps)
    except (TypeError, ValueError):
        raise InputError(f"{builder}: gbps is {gbps!r}; {expected}.") from None
    if len(values) != len(levels) or not all(0 < value < np.inf for value in values):
        raise InputError(f"{builder}: gbps is {gbps!r}; {expected}.")
    return values


def check_size(name: str, n_machines: int) -> None:
    """Refuse clusters that would not fit in memory.

    Raises
    ------
    InputError
        Above 500,000 machines.
    """
    if n_machines > MAX_MACHINES:
        raise InputError(f"{name} has {n_machines:,} machines; at most {MAX_MACHINES:,} can be built.")


N_TRIED: Final = 32
"""Flows that are tried before a simulation."""


def fault_of_routes(network: Network, *, source: Ints, destination: Ints, flow_hash: Ints) -> str | None:
    """Return the first fault of the routes of some flows between machines, None if they have none."""
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
            ends = f"link {link}, which leads from {network.nodes[begin]} to {network.nodes[end]}"
            where = f"is at {network.nodes[at]} and continues with {ends}"
            return f"{where}; its links must join, in the direction of the flow"
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

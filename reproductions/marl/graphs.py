"""What an agent's network is made for, and the graphs of a cluster as arrays of edges, built once (sec. IV-A).

An inner graph is what one scheduler looks after: groups of GPUs, CPUs and the switches of its pod, or servers in their
place. The inter graph joins the schedulers by the switches between pods. An edge is directed; a cable is two of them.

References
----------
Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph reinforcement learning", IEEE TNSM
2021, sec. IV-A and VI-A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, unknown
from labkit.core.resources import Bools, Floats, Ints
from labkit.topology.export import switch_partition

Numbers = NDArray[np.float32]
LEVELS: Final = ("device", "server")
AGENTS: Final = ("many", "one")
FULL_GBPS: Final = 128.0
"""Bandwidths of edges are told as parts of this one: PCIe's."""
TIERS: Final = 3.0
"""Tiers are told as parts of this one."""
N_EDGE: Final = 3
"""Numbers of an edge: bandwidth, load, tier."""
GROUP, CPU, SERVER, SWITCH, POD = range(5)
"""Kinds of nodes."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and directed edges."""

    kind: Ints
    """(V,) kinds of nodes; those that take tasks come first, P of them: groups of GPUs, or servers."""
    source: Ints
    target: Ints
    """`source` and `target`: (E,) nodes, by target."""
    gbps: Floats
    tier: Ints
    """`gbps` and `tier`: (E,) bandwidth, parallel links summed, and the tier of the upper end: 0 inside servers."""
    first: Ints
    """(V + 1,) edges into node v are `first[v]:first[v + 1]`."""
    edge: Ints
    link: Ints
    link_gbps: Floats
    """`edge`, `link` and `link_gbps`: (K,) edges, and links of the network that each is made of, with their
    bandwidths."""
    bus: Ints
    bus_group: Ints
    """`bus` and `bus_group`: (B,) edges that are PCIe buses, and the device group of each."""
    groups: Ints
    first_group: Ints
    """`groups` and `first_group`: device groups of the nodes that take tasks, node p's from `first_group[p]` to
    `first_group[p + 1]`."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes, V."""
        return len(self.kind)

    @property
    def n_edges(self) -> int:
        """Number of directed edges, E."""
        return len(self.source)

    @property
    def n_places(self) -> int:
        """Number of nodes that take tasks, P."""
        return len(self.first_group) - 1

    def features(self, link_load: Floats, bus_load: Floats) -> Numbers:
        """Return bandwidth, load and tier of each edge, (E, 3), each about 0 to 1.

        `link_load`: (L,) part of its bandwidth that each link of the network carries; `bus_load`: (G,) the same of the
        PCIe bus of each device group.
        """
        load = np.zeros(self.n_edges)
        if len(self.edge):
            carried = np.bincount(self.edge, link_load[self.link] * self.link_gbps, self.n_edges)
            load = carried / self.gbps
        load[self.bus] = bus_load[self.bus_group]
        return np.column_stack([self.gbps / FULL_GBPS, np.minimum(load, 1.0), self.tier / TIERS]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Graphs:
    """What the schedulers of a cluster see: an inner graph each, and the graph among them."""

    inner: tuple[Graph, ...]
    """Of each scheduler, N of them."""
    inter: Graph
    """The schedulers come first."""
    agent_of_group: Ints
    """(G,) the scheduler that looks after each device group."""

    @property
    def n_agents(self) -> int:
        """Number of schedulers, N."""
        return len(self.inner)


@lru_cache(maxsize=16)
def graphs_of(cluster: Cluster, *, level: str = "device", agents: str = "many") -> Graphs:
    """Return the graphs of a cluster; always the same object for the same cluster.

    Raise InputError if a pod has no device group.

    Parameters
    ----------
    level : str
        "device": groups of GPUs and CPUs are nodes; "server": servers are.
    agents : str
        "many": a scheduler for each pod; "one": one of the whole cluster, whose graph has all switches (sec. VI-E).
    """
    for name, value, known in (("level", level, LEVELS), ("agents", agents, AGENTS)):
        if value not in known:
            raise unknown(name, value, known)
    pods = cluster.partition if agents == "many" else np.zeros_like(cluster.partition)
    agent_of_group: Ints = pods[cluster.group_machine].astype(np.int32)
    n = int(pods.max()) + 1
    empty = np.setdiff1d(np.arange(n), agent_of_group)
    if len(empty):
        raise InputError(f"pod {empty[0]} of {cluster.name} has no machine; expected pods 0 to {n - 1} to have some.")
    inner = tuple(inner_graph(cluster, pod if agents == "many" else None, level=level) for pod in range(n))
    inter = inter_graph(cluster) if agents == "many" else _without_edges(1)
    return Graphs(inner, inter, agent_of_group)


def inner_graph(cluster: Cluster, pod: int | None, *, level: str = "device") -> Graph:
    """Return the graph of one pod, or of the whole cluster (None).

    Switches of a pod that no machine is attached to are fused into one, their links summed [1]_: the aggregation
    switches of a fat tree. Sockets of a machine are joined to each other, and each to the machine's links.

    References
    ----------
    .. [1] Zhao and Wu, sec. VI-A.
    """
    mine = np.ones(cluster.n_machines, np.bool_) if pod is None else cluster.partition == pod
    groups = np.flatnonzero(mine[cluster.group_machine]).astype(np.int32)
    machine = cluster.group_machine[groups]
    if level == "server":
        machines, begins = np.unique(machine, return_index=True)
        kind, first_group = np.full(len(machines), SERVER), np.append(begins, len(groups))
        port, of = np.arange(len(machines), dtype=np.int32), machines
        inside = _no_edges()
    else:
        g = len(groups)
        kind, first_group = np.repeat([GROUP, CPU], g), np.arange(g + 1)
        port, of = np.arange(g, 2 * g, dtype=np.int32), machine
        inside = _inside_servers(cluster, groups)
    switch = _switch_nodes(cluster, pod, n_before=len(kind))
    outside = _network_edges(cluster, port, of, switch)
    n_switches = int(switch.max(initial=len(kind) - 1)) + 1 - len(kind)
    whole = np.concatenate([kind, np.full(n_switches, SWITCH)]).astype(np.int32)
    return _graph(whole, inside, outside, groups=groups, first_group=first_group.astype(np.int32))


def inter_graph(cluster: Cluster) -> Graph:
    """Return the schedulers and the switches between their pods, parallel links summed."""
    n = int(cluster.partition.max()) + 1
    if cluster.network is None:
        return _without_edges(n)
    within = switch_partition(cluster)
    between = np.flatnonzero(within < 0)
    node = np.concatenate([cluster.partition, within]).astype(np.int32)
    node[cluster.n_machines + between] = n + np.arange(len(between))
    kind = np.repeat([POD, SWITCH], [n, len(between)]).astype(np.int32)
    none = np.zeros(0, np.int32)
    link = np.arange(cluster.network.n_links)
    ends = node[cluster.network.link_from], node[cluster.network.link_to]
    apart = ends[0] != ends[1]
    outside = _Edges.of_links(cluster, ends[0][apart], ends[1][apart], link[apart])
    return _graph(kind, _no_edges(), outside, groups=none, first_group=np.zeros(1, np.int32))


# --- inside


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges, parallel ones apart: nodes, bandwidth, tier, the link of the network and the PCIe bus, or -1."""

    source: Ints
    target: Ints
    gbps: Floats
    tier: Ints
    link: Ints
    bus: Ints

    @classmethod
    def of_links(cls, cluster: Cluster, source: Ints, target: Ints, link: Ints) -> _Edges:
        """Return edges that are links of the network."""
        assert cluster.network is not None
        network = cluster.network
        tier = np.maximum(network.tier[network.link_from[link]], network.tier[network.link_to[link]])
        return cls(source, target, network.link_gbps[link], tier, link, np.full(len(link), -1))


def _no_edges() -> _Edges:
    none = np.zeros(0, np.int32)
    return _Edges(none, none, np.zeros(0), none, none, none)


def _without_edges(n: int) -> Graph:
    """Return N schedulers that nothing joins."""
    none = np.zeros(0, np.int32)
    kind = np.full(n, POD, np.int32)
    return _graph(kind, _no_edges(), _no_edges(), groups=none, first_group=np.zeros(1, np.int32))


def _inside_servers(cluster: Cluster, groups: Ints) -> _Edges:
    """Return PCIe between each group and its CPU, and what joins the CPUs of a machine; both ways."""
    g, machine = len(groups), cluster.group_machine[groups]
    group, cpu = np.arange(g, dtype=np.int32), np.arange(g, 2 * g, dtype=np.int32)
    begins = np.searchsorted(machine, machine)
    pairs = [(i, j) for j in range(g) for i in range(int(begins[j]), j)]
    low, high = np.array(pairs, np.int32).reshape(-1, 2).T
    source = np.concatenate([group, cpu, g + low, g + high])
    target = np.concatenate([cpu, group, g + high, g + low])
    pcie, socket = cluster.group_pcie_gbps[groups], cluster.machine_socket_gbps[machine[low]]
    gbps = np.concatenate([pcie, pcie, socket, socket])
    bus = np.concatenate([groups, groups, np.full(2 * len(low), -1)])
    return _Edges(source, target, gbps, np.zeros(len(gbps), np.int32), np.full(len(gbps), -1), bus)


def _switch_nodes(cluster: Cluster, pod: int | None, *, n_before: int) -> Ints:
    """Return the node of each switch, (V - M,), -1 for those of others; upper ones of a pod are one node."""
    if cluster.network is None:
        return np.zeros(0, np.int32)
    network, m = cluster.network, cluster.n_machines
    within = switch_partition(cluster)
    near: Bools = np.zeros(len(network.nodes), np.bool_)
    near[network.link_to[network.link_from < m]] = True
    label = np.where(~near[m:] & (within >= 0), len(within) + within, np.arange(len(within)))
    mine = np.ones(len(within), np.bool_) if pod is None else within == pod
    node = np.full(len(within), -1, np.int32)
    _, first, place = np.unique(label[mine], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))  # nodes in the order of their first switch
    node[mine] = n_before + order[place.ravel()]
    return node


def _network_edges(cluster: Cluster, port: Ints, machine: Ints, switch: Ints) -> _Edges:
    """Return the links among some switches and machines, of which `machine` (Q,) have the nodes `port` (Q,)."""
    if cluster.network is None:
        return _no_edges()
    network, m = cluster.network, cluster.n_machines
    a, b = network.link_from, network.link_to
    parts = []
    for low, high, upwards in ((a, b, True), (b, a, False)):  # between a machine's ports and a switch
        links = np.flatnonzero((low < m) & (high >= m))
        begins, ends = (np.searchsorted(machine, low[links], side=side) for side in ("left", "right"))
        n_ports = ends - begins
        link = np.repeat(links, n_ports)
        nth = np.arange(len(link)) - np.repeat(np.cumsum(n_ports) - n_ports, n_ports)
        mine, theirs = port[np.repeat(begins, n_ports) + nth], switch[high[link] - m]
        kept = theirs >= 0
        ends_of = (mine[kept], theirs[kept]) if upwards else (theirs[kept], mine[kept])
        parts.append((*ends_of, link[kept]))
    links = np.flatnonzero((a >= m) & (b >= m))
    one, other = switch[a[links] - m], switch[b[links] - m]
    kept = (one >= 0) & (other >= 0) & (one != other)
    parts.append((one[kept], other[kept], links[kept]))
    source, target, link = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Edges.of_links(cluster, source, target, link)


def _graph(kind: Ints, inside: _Edges, outside: _Edges, *, groups: Ints, first_group: Ints) -> Graph:
    """Return the graph of some edges: parallel ones as one, by target."""
    both = {
        name: np.concatenate([getattr(inside, name), getattr(outside, name)]) for name in _Edges.__dataclass_fields__
    }
    v = max(len(kind), 1)
    key = both["target"].astype(np.int64) * v + both["source"]
    edges, first, of = np.unique(key, return_index=True, return_inverse=True)
    of = of.ravel()
    gbps = np.bincount(of, both["gbps"], len(edges)).astype(np.float64)
    target = (edges // v).astype(np.int32)
    linked, buses = np.flatnonzero(both["link"] >= 0), np.flatnonzero(both["bus"] >= 0)
    return Graph(
        kind=kind, source=(edges % v).astype(np.int32), target=target, gbps=gbps, tier=both["tier"][first],
        first=np.searchsorted(target, np.arange(len(kind) + 1)).astype(np.int32),
        edge=of[linked].astype(np.int32), link=both["link"][linked].astype(np.int32),
        link_gbps=both["gbps"][linked],
        bus=of[buses].astype(np.int32), bus_group=both["bus"][buses].astype(np.int32), groups=groups,
        first_group=first_group,
    )  # fmt: skip


def relabelled(graph: Graph, order: Ints) -> Graph:
    """Return the same graph with its nodes in another order: new node i is the old `order[i]`; places stay first."""
    new = np.argsort(order)
    target = new[graph.target]
    by = np.argsort(target, kind="stable")
    back = np.argsort(by)
    return replace(
        graph, kind=graph.kind[order], source=new[graph.source][by].astype(np.int32),
        target=target[by].astype(np.int32), gbps=graph.gbps[by], tier=graph.tier[by],
        first=np.searchsorted(target[by], np.arange(len(order) + 1)).astype(np.int32),
        edge=back[graph.edge].astype(np.int32), bus=back[graph.bus].astype(np.int32),
    )  # fmt: skip


N_KINDS: Final = 2
"""R: GPUs and cores are told of; memory is not."""
HEADS: Final = ("equivariant", "flat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a network; sections are those of the text [1]_, widths that it does not give are our choice.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. IV.
    """

    models: tuple[str, ...]
    """(M,) names of models that it tells apart."""
    n_jobs: int = 32
    """J: jobs of a scheduler that are seen at once, the one that is placed among them; later ones are not seen."""
    level: str = "device"
    """"device": a task goes to a group of GPUs; "server": to a server, there to a group at random (sec. VI-A)."""
    agents: str = "many"
    """"many": one for each pod; "one": one for the whole cluster, without an inter graph (sec. VI-E)."""
    head: str = "equivariant"
    """"equivariant": each place and each scheduler has its score from its own embedding, by weights that all share, so
    that they fit pods of any size. "flat": embeddings of all places side by side go into the encoder, and each action
    has weights of its own, as the text literally says: for `n_places` and `n_agents` alone."""
    current_first: bool = True
    """The job that is placed is the first of the J; False: all by arrival, and nothing tells which of them it is (C has
    its model and demand alone)."""
    n_places: int = 0
    n_agents: int = 0
    """`n_places` and `n_agents`: P and N that a flat head is for; 0: of an equivariant one."""
    inner_layers: int = 4
    inter_layers: int = 2
    """`inner_layers` and `inter_layers`: 4 and 2 (sec. VI-A)."""
    width: int = 16
    n_state: int = 32
    n_encoder: int = 128
    n_hidden: int = 128
    """`width`, `n_state`, `n_encoder` and `n_hidden`: of an inner layer; of the encoder's outcome and an inter layer;
    hidden units of the encoder, and of actor and critic: 128 (sec. VI-A)."""

    def __post_init__(self) -> None:
        for name, known in (("level", LEVELS), ("agents", AGENTS), ("head", HEADS)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name, least in (("n_jobs", 1), ("inner_layers", 1), ("inter_layers", 0), ("width", 1), ("n_state", 1),
                            ("n_encoder", 1), ("n_hidden", 1)):  # fmt: skip
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)}; expected a whole number >= {least}.")

    @property
    def n_node(self) -> int:
        """Numbers of a node, R + 2 J."""
        return N_KINDS + 2 * self.n_jobs

    @property
    def n_task(self) -> int:
        """Numbers of C, M + R + 2."""
        return len(self.models) + N_KINDS + 2

    @property
    def n_demand(self) -> int:
        """Numbers of a row of D, 2 R + 2."""
        return 2 * N_KINDS + 2

    @property
    def n_seen(self) -> int:
        """Numbers of an observation, which the encoder takes."""
        embedded = self.width * (self.n_places if self.head == "flat" else 2)
        return self.n_jobs * (len(self.models) + self.n_demand) + embedded + self.n_task

    @property
    def n_layers_of_state(self) -> int:
        """Parts of the state: the encoder's outcome, and each inter layer's; one agent has no inter graph."""
        return 1 + (self.inter_layers if self.agents == "many" else 0)

    @property
    def n_whole(self) -> int:
        """Numbers of the state s = h0 || h1 || h2."""
        return self.n_state * self.n_layers_of_state

"""Clusters as networkx graphs: whole, one pod from within, and the pods among each other."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.resources import Ints
from labkit.topology.links import Router

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.DiGraph[str]


def to_networkx(cluster: Cluster, *, groups: bool = False) -> Graph:
    """Return the cluster as a directed graph; a cable is two edges.

    Parameters
    ----------
    cluster : Cluster
        Any cluster; one without a network gives machines without edges between them.
    groups : bool
        Put in the place of each machine what is inside: one node per CPU socket and one per group of GPUs, joined by
        PCIe; sockets of a machine joined to each other, and each to the machine's network links.

    Returns
    -------
    networkx.DiGraph
        Nodes with `kind` ("machine", "cpu", "gpus" or "switch"), `tier` (0 inside machines) and `partition` (-1:
        between pods); machines and gpus with `n_gpus`. Edges with `gbps` and `tier` of their upper end.
    """
    import networkx as nx

    graph: Graph = nx.DiGraph(name=cluster.name)
    _add_machines(graph, cluster, groups=groups)
    if cluster.network is None:
        return graph
    network, m = cluster.network, cluster.n_machines
    names = [*cluster.machines, *network.nodes[m:]]
    for i, pod in enumerate(switch_partition(cluster), start=m):
        graph.add_node(names[i], kind="switch", tier=int(network.tier[i]), partition=int(pod))
    ports = _ports(cluster) if groups else [[name] for name in cluster.machines]
    inside = [*ports, *([name] for name in names[m:])]
    for a, b, gbps in zip(network.link_from, network.link_to, network.link_gbps, strict=True):
        tier = int(max(network.tier[a], network.tier[b]))
        for low in inside[a]:
            for high in inside[b]:
                _add(graph, low, high, gbps=float(gbps), tier=tier)
    return graph


def inner_graph(cluster: Cluster, partition: int, *, fused: bool = True) -> Graph:
    """Return one pod from within: groups of GPUs, sockets and the switches of the pod.

    Parameters
    ----------
    cluster : Cluster
        A cluster with a network.
    partition : int
        Which pod.
    fused : bool
        Merge the switches that no machine is attached to into one, its links summed, as for the aggregation switches
        of a fat tree [1]_.

    Raises
    ------
    InputError
        If there is no such pod.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.
    """
    if not 0 <= partition <= cluster.partition.max():
        raise InputError(f"{cluster.name} has no partition {partition}; it has 0 to {cluster.partition.max()}.")
    return _inner(cluster, partition, fused).copy()


@lru_cache(maxsize=64)
def _inner(cluster: Cluster, partition: int, fused: bool) -> Graph:
    """Return one pod from within, built once."""
    graph = _pod(cluster, partition)
    kind = {node: data["kind"] for node, data in graph.nodes.items()}
    upper = [n for n in graph if kind[n] == "switch" and all(kind[near] == "switch" for near in graph.successors(n))]
    return contract(graph, dict.fromkeys(upper, f"agg-of-{partition}")) if fused and len(upper) > 1 else graph


def _pod(cluster: Cluster, partition: int) -> Graph:
    """Return the part of `to_networkx` with groups that lies in one pod."""
    import networkx as nx

    graph: Graph = nx.DiGraph(name=cluster.name)
    groups, ports = np.flatnonzero(cluster.partition[cluster.group_machine] == partition), dict[int, list[str]]()
    _add_groups(graph, cluster, groups)
    for machine in cluster.group_machine[groups].tolist():
        sockets = ports.setdefault(machine, [])
        sockets.append(f"{cluster.machines[machine]}.cpu{len(sockets)}")
    if cluster.network is None:
        return graph
    network, m = cluster.network, cluster.n_machines
    pods = np.concatenate([cluster.partition, switch_partition(cluster)])
    for i in m + np.flatnonzero(pods[m:] == partition):
        graph.add_node(network.nodes[i], kind="switch", tier=int(network.tier[i]), partition=partition)
    for link in np.flatnonzero((pods[network.link_from] == partition) & (pods[network.link_to] == partition)):
        a, b = int(network.link_from[link]), int(network.link_to[link])
        tier, gbps = int(max(network.tier[a], network.tier[b])), float(network.link_gbps[link])
        for low in ports.get(a) or [network.nodes[a]]:
            for high in ports.get(b) or [network.nodes[b]]:
                _add(graph, low, high, gbps=gbps, tier=tier)
    return graph


def inter_graph(cluster: Cluster) -> Graph:
    """Return the pods among each other: one node per pod, the switches between pods, parallel links summed."""
    whole = to_networkx(cluster)
    pods = {node: f"pod{data['partition']}" for node, data in whole.nodes.items() if data["partition"] >= 0}
    return contract(whole, pods)


def contract(graph: Graph, into: dict[str, str]) -> Graph:
    """Return the graph with some nodes merged: each goes `into` the named one; parallel links add up.

    A merged node has the attributes of its first member, kind "pod" where it holds machines, and `n_merged`.
    """
    import networkx as nx

    small: Graph = nx.DiGraph(**graph.graph)
    for node, data in graph.nodes(data=True):
        name = into.get(node, node)
        if name not in small:
            small.add_node(name, **dict(data, n_gpus=0, n_merged=0) if node in into else data)
            if node in into and data["kind"] != "switch":
                small.nodes[name]["kind"] = "pod"
        if node in into:
            small.nodes[name]["n_merged"] += 1
            small.nodes[name]["n_gpus"] += data.get("n_gpus", 0)
    for a, b, data in graph.edges(data=True):
        low, high = into.get(a, a), into.get(b, b)
        if low != high:
            _add(small, low, high, gbps=data["gbps"], tier=data["tier"])
    return small


def switch_partition(cluster: Cluster) -> Ints:
    """Return the pod of each switch, (V - M,); -1 where it joins pods, or where the router does not say."""
    if cluster.network is None:
        return np.zeros(0, np.int32)
    route: Any = cluster.network.route
    if isinstance(route, Router):
        return route.switch_partition()
    return np.full(len(cluster.network.nodes) - cluster.n_machines, -1, np.int32)


def _add(graph: Graph, a: str, b: str, *, gbps: float, tier: int) -> None:
    """Add a link, or its bandwidth to the one that is there."""
    if graph.has_edge(a, b):
        graph.edges[a, b]["gbps"] += gbps
    else:
        graph.add_edge(a, b, gbps=gbps, tier=tier)


def _ports(cluster: Cluster) -> list[list[str]]:
    """Return the socket nodes of each machine."""
    ports: list[list[str]] = [[] for _ in cluster.machines]
    for machine in cluster.group_machine:
        ports[machine].append(f"{cluster.machines[machine]}.cpu{len(ports[machine])}")
    return ports


def _add_machines(graph: Graph, cluster: Cluster, *, groups: bool) -> None:
    """Add machines, or what is inside them."""
    if not groups:
        gpus = np.bincount(cluster.group_machine, weights=cluster.capacity[:, 0], minlength=cluster.n_machines)
        for name, pod, n in zip(cluster.machines, cluster.partition, gpus, strict=True):
            graph.add_node(name, kind="machine", tier=0, partition=int(pod), n_gpus=float(n))
        return
    _add_groups(graph, cluster, np.arange(cluster.n_groups))


def _add_groups(graph: Graph, cluster: Cluster, groups: Ints) -> None:
    """Add the sockets and the GPUs of some device groups."""
    first = np.searchsorted(cluster.group_machine, cluster.group_machine)
    for group in groups.tolist():
        machine = int(cluster.group_machine[group])
        socket = group - int(first[group])
        name, pod = cluster.machines[machine], int(cluster.partition[machine])
        cpu, gpus_of = f"{name}.cpu{socket}", f"{name}.gpus{socket}"
        graph.add_node(cpu, kind="cpu", tier=0, partition=pod)
        graph.add_node(gpus_of, kind="gpus", tier=0, partition=pod, n_gpus=float(cluster.capacity[group, 0]))
        _cable(graph, cpu, gpus_of, gbps=float(cluster.group_pcie_gbps[group]))
        for other in range(socket):
            _cable(graph, f"{name}.cpu{other}", cpu, gbps=float(cluster.machine_socket_gbps[machine]))


def _cable(graph: Graph, a: str, b: str, *, gbps: float) -> None:
    """Add a link each way inside a machine."""
    _add(graph, a, b, gbps=gbps, tier=0)
    _add(graph, b, a, gbps=gbps, tier=0)

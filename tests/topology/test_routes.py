"""Routes against a generic router: shortest paths of networkx on the exported graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from labkit.topology import bcube, fat_tree, leaf_spine, single_switch, vl2

CLUSTERS = [fat_tree(4), fat_tree(6), vl2(4, 3, per_rack=3), vl2(8, 4, per_rack=2), bcube(3, 0), bcube(4, 1)]
CLUSTERS += [bcube(3, 2), leaf_spine(3, 4, 2), single_switch(4)]
named = pytest.mark.parametrize("cluster", CLUSTERS, ids=str)


def graph_of(network):
    graph = nx.DiGraph()
    graph.add_edges_from(zip(network.link_from.tolist(), network.link_to.tolist(), strict=True))
    return graph


def all_pairs(cluster, hashes=7):
    ends = np.indices((cluster.n_machines, cluster.n_machines)).reshape(2, -1).astype(np.int32)
    flow_hash = np.random.default_rng(1).integers(0, 2**31 - 1, ends.shape[1] * hashes, dtype=np.int32)
    return np.repeat(ends[0], hashes), np.repeat(ends[1], hashes), flow_hash


def walk(network, links):
    """Return the nodes that a path visits; fails where its links do not join."""
    links = links[links < network.n_links]
    assert np.array_equal(network.link_to[links[:-1]], network.link_from[links[1:]])
    return [*network.link_from[links].tolist(), *network.link_to[links[-1:]].tolist()]


@named
def test_routes_join_and_lead_from_source_to_destination(cluster):
    source, destination, flow_hash = all_pairs(cluster)
    paths = cluster.network.route(source, destination, flow_hash)
    assert paths.dtype == np.int32
    for s, d, links in zip(source, destination, paths, strict=True):
        nodes = walk(cluster.network, links)
        assert nodes == [] if s == d else (nodes[0], nodes[-1]) == (s, d)


@pytest.mark.parametrize("cluster", [c for c in CLUSTERS if c.network.kind != "vl2"], ids=str)
def test_routes_are_shortest_paths_as_networkx_finds_them(cluster):
    source, destination, flow_hash = all_pairs(cluster)
    paths = cluster.network.route(source, destination, flow_hash)
    length = dict(nx.all_pairs_shortest_path_length(graph_of(cluster.network)))
    hops = (paths < cluster.network.n_links).sum(axis=1)
    assert hops.tolist() == [length[s][d] for s, d in zip(source.tolist(), destination.tolist(), strict=True)]


@pytest.mark.parametrize("cluster", [c for c in CLUSTERS if c.network.kind != "vl2"], ids=str)
def test_the_hash_reaches_every_shortest_path(cluster):
    graph, last = graph_of(cluster.network), cluster.n_machines - 1
    every = {tuple(path) for path in nx.all_shortest_paths(graph, 0, last)}
    hashes = np.arange(5000, dtype=np.int32)
    paths = cluster.network.route(np.zeros_like(hashes), np.full_like(hashes, last), hashes)
    assert {tuple(walk(cluster.network, links)) for links in np.unique(paths, axis=0)} == every


@pytest.mark.parametrize("cluster", [c for c in CLUSTERS if c.network.kind == "vl2"], ids=str)
def test_vl2_bounces_all_traffic_between_racks_off_every_intermediate_switch(cluster):
    network, d_a, d_i = cluster.network, cluster.network.route.d_a, cluster.network.route.d_i
    hashes = np.arange(500, dtype=np.int32)
    paths = network.route(np.zeros_like(hashes), np.full_like(hashes, cluster.n_machines - 1), hashes)
    visited = [walk(network, links) for links in np.unique(paths, axis=0)]
    assert {tuple(network.tier[nodes].tolist()) for nodes in visited} == {(0, 1, 2, 3, 2, 1, 0)}
    assert len({nodes[3] for nodes in visited}) == d_a // 2
    assert len({tuple(nodes) for nodes in visited}) == 4 * (d_a // 2)
    assert d_i == (network.tier == 2).sum()


def test_bcube_crosses_each_level_where_the_addresses_differ():
    network = bcube(4, 2).network
    links = network.route(*(np.array([value], np.int32) for value in (0o00, 4 + 2, 3)))[0]
    nodes = walk(network, links)
    assert [int(network.tier[node]) for node in nodes if network.tier[node]] in ([1, 2], [2, 1])


def test_hashed_routes_load_the_cores_evenly():
    """One path for all would send every flow over one core; the hash must not (facts: 0.20 against 2.52 Gbps)."""
    cluster = fat_tree(8)
    rng = np.random.default_rng(5)
    n = 16_000
    source = rng.integers(0, 64, n, dtype=np.int32)
    paths = cluster.network.route(source, source + 64, rng.integers(0, 2**31 - 1, n, dtype=np.int32))
    core = cluster.network.link_to[paths[:, 2]]
    load = np.unique(core, return_counts=True)[1]
    assert len(load) == 16
    assert load.max() < 1.2 * load.mean()

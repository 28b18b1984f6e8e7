"""Exported graphs: nothing lost, and the graphs of the MARL text."""

from __future__ import annotations

import networkx as nx
import pytest

from labkit.core.errors import InputError
from labkit.topology import bcube, build, fat_tree, leaf_spine, no_network, vl2
from labkit.topology.export import inner_graph, inter_graph, to_networkx


@pytest.mark.parametrize("cluster", [fat_tree(4), vl2(8, 4), bcube(4, 1), leaf_spine(3, 2, 4)], ids=str)
def test_export_keeps_every_node_link_and_bandwidth(cluster):
    graph = to_networkx(cluster)
    assert graph.number_of_nodes() == len(cluster.network.nodes)
    assert graph.number_of_edges() == cluster.network.n_links
    assert graph.size(weight="gbps") == pytest.approx(cluster.network.link_gbps.sum())
    assert nx.is_strongly_connected(graph)
    assert sum(dict(graph.nodes(data="n_gpus", default=0)).values()) == cluster.n_gpus


def test_a_pod_of_fat_tree_20_is_the_inner_graph_of_the_marl_text():
    """200 groups of GPUs + 200 CPUs + 10 edges + 1 fused aggregation; 1020 directed edges; 10 x 20 Gbps fused."""
    graph = inner_graph(fat_tree(20), 7)
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"gpus": 200, "cpu": 200, "switch": 11}
    assert graph.number_of_edges() == 1020
    assert {gbps for *_, gbps in graph.in_edges("agg-of-7", data="gbps")} == {200.0}
    assert nx.is_strongly_connected(graph)


def test_the_pods_of_fat_tree_20_are_the_inter_graph_of_the_marl_text():
    """20 pods + 100 cores, 2000 links of 40 Gbps."""
    graph = inter_graph(fat_tree(20))
    assert graph.number_of_nodes() == 120
    assert graph.number_of_edges() == 2 * 2000
    assert {gbps for *_, gbps in graph.edges(data="gbps")} == {40.0}
    assert graph.nodes["pod3"]["kind"] == "pod"
    assert graph.nodes["pod3"]["n_gpus"] == 400


def test_a_pod_of_vl2_20_20_has_406_nodes():
    assert inner_graph(vl2(20, 20), 0).number_of_nodes() == 406
    assert inter_graph(vl2(20, 20)).number_of_nodes() == 20 + 10


def test_a_pod_of_bcube_holds_two_whole_units():
    graph = inner_graph(bcube(6, 3), 4)
    switches = [node for node, kind in graph.nodes(data="kind") if kind == "switch"]
    assert len(switches) == 2 * (6 + 6)
    assert all(graph.in_degree(switch) == 6 * 2 for switch in switches)
    assert nx.number_weakly_connected_components(graph) == 2


def test_inside_a_default_machine():
    """PCIe 128 Gbps under each socket, 300 Gbps between them."""
    graph = to_networkx(build("single_switch(2)"), groups=True)
    assert graph.edges["m0.cpu0", "m0.gpus0"]["gbps"] == 128
    assert graph.edges["m0.cpu0", "m0.cpu1"]["gbps"] == 300
    assert graph.edges["m0.cpu1", "switch0"]["gbps"] == 10
    assert not graph.has_edge("m0.gpus0", "switch0")


def test_without_a_network_machines_stand_alone():
    graph = to_networkx(no_network(3))
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (3, 0)


def test_a_pod_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"fat_tree\(4\) has no partition 4; it has 0 to 3"):
        inner_graph(fat_tree(4), 4)


@pytest.mark.parametrize("name", ["fat_tree(4)", "vl2(8, 4, per_rack=2)", "bcube(3, 2)", "marl-testbed"])
def test_a_pod_from_within_is_that_part_of_the_whole_and_is_not_changed_for_others(name):
    cluster = build(name)
    for pod in range(int(cluster.partition.max()) + 1):
        whole = to_networkx(cluster, groups=True)
        part = whole.subgraph([node for node, data in whole.nodes.items() if data["partition"] == pod])
        built = inner_graph(cluster, pod, fused=False)
        assert dict(built.nodes(data=True)) == dict(part.nodes(data=True))
        assert {(a, b): data for a, b, data in built.edges(data=True)} == {
            (a, b): data for a, b, data in part.edges(data=True)
        }
        built.clear()
        assert len(inner_graph(cluster, pod, fused=False)) == len(part)

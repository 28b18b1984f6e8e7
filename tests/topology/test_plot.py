"""The picture of a cluster: nothing left out silently."""

from __future__ import annotations

import pytest

from labkit.plots.topology import plot_topology, topology_layout
from labkit.topology import available, build


@pytest.mark.parametrize("name", ["fat_tree(4)", "bcube(4, 1)", "demo", "dl2-testbed", "vl2(4, 3, per_rack=3)"])
def test_small_clusters_are_drawn_whole(name):
    cluster = build(name)
    layout = topology_layout(cluster)
    assert len(layout.nodes) == len(cluster.network.nodes)
    assert len(layout.links) == cluster.network.n_links // 2
    assert layout.notes == ()
    assert len(layout.nodes[["x", "y"]].drop_duplicates()) == len(layout.nodes)


def test_large_clusters_are_drawn_pod_by_pod_and_say_so():
    layout = topology_layout(build("marl-fat-tree"))
    pods = layout.nodes[layout.nodes["kind"] == "pod"]
    assert (len(pods), set(pods["n_machines"]), set(pods["n_gpus"])) == (20, {100}, {400.0})
    assert len(layout.links) == 20 * 12
    assert "drawn pod by pod" in layout.notes[0]
    assert layout.notes[1] == "12 of 100 core switches are drawn"
    assert layout.tiers["label"].tolist() == ["20 pods of 100 machines", "100 core switches"]


def test_pods_of_vl2_have_links_that_are_not_drawn():
    assert "links from pod to pod are not drawn" in topology_layout(build("marl-vl2")).notes


def test_machines_without_a_network_show_their_device_types():
    nodes = topology_layout(build("gavel-36x3")).nodes
    assert nodes["device_type"].value_counts().to_dict() == {"v100": 9, "p100": 9, "k80": 9}


def test_bandwidths_stand_beside_the_switches():
    notes = topology_layout(build("fat_tree(4)")).tiers["note"].tolist()
    assert notes == ["4 GPUs each", "10 Gbps each link", "20 Gbps each link", "40 Gbps each link"]


@pytest.mark.parametrize("name", available())
def test_every_preset_can_be_drawn(name):
    chart = plot_topology(build(name)).to_dict()
    assert chart["layer"]
    assert sum(len(rows) for rows in chart["datasets"].values()) < 5000

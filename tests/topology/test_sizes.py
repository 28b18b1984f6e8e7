"""Published sizes, and what every cluster must be."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.topology import bcube, build, fat_tree, leaf_spine, no_network, pods, single_switch, vl2
from labkit.topology.servers import ARCHITECTURES, DEFAULT, Server, assign, server


def switches(cluster):
    return np.bincount(cluster.network.tier)[1:].tolist()


def cables(cluster):
    return len(cluster.network.link_gbps) // 2


def test_fat_tree_20_has_the_size_of_the_marl_text():
    cluster = fat_tree(20)
    assert (cluster.n_machines, cluster.n_gpus, cluster.n_groups) == (2000, 8000, 4000)
    assert switches(cluster) == [200, 200, 100]
    assert np.bincount(cluster.partition).tolist() == [100] * 20


def test_fat_tree_has_k_ports_on_every_switch():
    cluster = fat_tree(6)
    degree = np.bincount(cluster.network.link_from)
    assert (degree[: cluster.n_machines] == 1).all()
    assert (degree[cluster.n_machines :] == 6).all()


def test_vl2_20_20_has_the_size_of_the_marl_text():
    cluster = vl2(20, 20)
    assert cluster.n_machines == 2000
    assert switches(cluster) == [100, 20, 10]
    assert np.bincount(cluster.partition).tolist() == [100] * 20
    degree = np.bincount(cluster.network.link_from)
    assert (degree[2000:2100] == 20 + 2).all()
    assert (degree[2100:2120] == 20).all()
    assert (degree[2120:] == 20).all()
    tiers = cluster.network.tier[cluster.network.link_to[::2]]
    assert [set(cluster.network.link_gbps[::2][tiers == t]) for t in (1, 2, 3)] == [{1.0}, {10.0}, {10.0}]


@pytest.mark.parametrize(("n", "k"), [(4, 0), (4, 1), (3, 2), (6, 2), (6, 3), (13, 2)])
def test_bcube_has_the_size_of_its_paper(n, k):
    cluster = bcube(n, k)
    assert cluster.n_machines == n ** (k + 1)
    assert switches(cluster) == [n**k] * (k + 1)
    degree = np.bincount(cluster.network.link_from)
    assert (degree[: cluster.n_machines] == k + 1).all()
    assert (degree[cluster.n_machines :] == n).all()


@pytest.mark.parametrize(("name", "machines"), [("marl-bcube-1296", 1296), ("marl-bcube-216", 216)])
def test_bcube_presets_have_18_schedulers_of_equal_size(name, machines):
    assert np.bincount(build(name).partition).tolist() == [machines // 18] * 18


def test_leaf_spine_and_single_switch():
    cluster = leaf_spine(4, 2, 8)
    assert (cluster.n_machines, cables(cluster), switches(cluster)) == (32, 32 + 8, [4, 2])
    cluster = single_switch(5, partitions=2)
    assert (cables(cluster), cluster.partition.tolist()) == (5, [0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("name", "gpus", "machines", "n_pods"),
    [
        ("gavel-36x3", [36, 36, 36], 27, 1),
        ("gavel-8-16-24", [8, 16, 24], 12, 1),
        ("dl2-testbed", [26], 13, 1),
        ("dl2-8n", [16], 8, 1),
        ("dl2-12n", [24], 12, 1),
        ("dl2-16n", [32], 16, 1),
        ("dl2-24n", [48], 24, 1),
        ("dl2-48n", [96], 48, 1),
        ("dl2-500n", [1000], 500, 1),
        ("philly-480", [480], 60, 1),
        ("alibaba-6500", [6500], 813, 1),
        ("marl-testbed", [48], 12, 2),
        ("marl-fat-tree-dgx1", [16000], 2000, 20),
        ("marl-fat-tree-uneven", [12000], 2000, 20),
        ("marl-fat-tree-mixed", [400 * 2 + 800 * 4 + 800 * 8], 2000, 20),
        ("marl-fat-tree", [8000], 2000, 20),
        ("marl-vl2", [8000], 2000, 20),
        ("marl-4x20", [320], 80, 4),
        ("marl-2x40", [320], 80, 2),
        ("marl-4x20-oversubscribed", [320], 80, 4),
        ("marl-4x20-dgx1", [640], 80, 4),
        ("marl-4x20-uneven", [480], 80, 4),
        ("marl-4x20-mixed", [4 * (4 * 2 + 8 * 4 + 8 * 8)], 80, 4),
    ],
)
def test_presets_have_their_published_sizes(name, gpus, machines, n_pods):
    cluster = build(name)
    assert cluster.name == name
    assert (cluster.gpus_of_type().tolist(), cluster.n_machines, cluster.partition.max() + 1) == (
        gpus,
        machines,
        n_pods,
    )


def test_gavel_types_come_in_gavels_order():
    assert build("gavel-36x3").device_types == ("v100", "p100", "k80")


def test_dl2_nodes_are_one_group_of_2_gpus_and_8_cores():
    cluster = build("dl2-48n")
    assert cluster.n_groups == 48
    assert (cluster.capacity[:, :2] == [2, 8]).all()


@pytest.mark.parametrize(("name", "machines"), [("marl-fat-tree-mixed", 100), ("marl-4x20-mixed", 20)])
def test_every_pod_of_the_mixed_clusters_has_the_mix_20_40_40(name, machines):
    cluster = build(name)
    gpus = np.bincount(cluster.group_machine, weights=cluster.capacity[:, 0])
    for pod in np.unique(cluster.partition):
        sizes, counts = np.unique(gpus[cluster.partition == pod], return_counts=True)
        assert (sizes.tolist(), counts.tolist()) == ([2, 4, 8], [machines // 5, 2 * machines // 5, 2 * machines // 5])


@pytest.mark.parametrize("kind", ["marl-4x20", "marl-fat-tree"])
def test_servers_of_the_mixes_are_those_of_the_marl_text(kind):
    """(i) 4 GPUs and 16 cores under each processor; (ii) 4 and 16 under one, 2 and 8 under the other."""
    assert build(f"{kind}-dgx1").capacity[:2, :2].tolist() == [[4, 16], [4, 16]]
    assert build(f"{kind}-uneven").capacity[:2, :2].tolist() == [[4, 16], [2, 8]]


@pytest.mark.parametrize(("n_pods", "n_machines"), [(2, 1), (2, 5), (3, 8), (4, 20)])
def test_pods_have_the_machines_that_were_asked_for(n_pods, n_machines):
    cluster = pods(n_pods, n_machines)
    assert np.bincount(cluster.partition).tolist() == [n_machines] * n_pods
    assert cluster.network.link_gbps[: 2 * cluster.n_machines].tolist() == [10] * (2 * cluster.n_machines)


def test_pods_4_20_is_the_vl2_of_the_small_study():
    ours, network = pods(4, 20).network, vl2(8, 4, per_rack=10, gbps=(10, 20, 40)).network
    assert (ours.link_to == network.link_to).all()
    assert (ours.link_gbps == network.link_gbps).all()
    with pytest.raises(InputError, match="pods: n_pods is 1; expected a whole number from 2"):
        pods(1, 20)


def test_default_server_is_that_of_the_marl_text():
    cluster = single_switch(1)
    assert cluster.capacity[:, :2].tolist() == [[2, 8], [2, 8]]
    assert (cluster.group_pcie_gbps.tolist(), cluster.machine_socket_gbps.tolist()) == ([128, 128], [300])


def test_clusters_travel_to_other_processes():
    cluster = pickle.loads(pickle.dumps(bcube(3, 1)))
    ends = np.array([0], np.int32), np.array([8], np.int32), np.array([5], np.int32)
    assert np.array_equal(cluster.network.route(*ends), bcube(3, 1).network.route(*ends))


def test_mixes_of_servers_lag_less_than_one_machine_behind_their_shares():
    mix = [(3, DEFAULT), (1, server("dgx1")), (2.5, server("2gpu"))]
    _, kind = assign(200, mix)
    so_far = np.cumsum(kind[:, None] == np.arange(3), axis=0)
    wanted = np.arange(1, 201)[:, None] * np.array([3, 1, 2.5]) / 6.5
    assert (np.abs(so_far - wanted) < 1 + 1e-9).all()


def test_socketless_machines_and_bad_mixes_are_refused():
    with pytest.raises(InputError, match=r"server 'x' has sockets \(\)"):
        Server("x", sockets=())
    with pytest.raises(InputError, match="pcie_gbps = 0; expected more than 0"):
        Server("x", sockets=((1, 1, 1),), pcie_gbps=0)
    with pytest.raises(InputError, match=r"shares \[0\.0\]; expected one or more, each above 0"):
        single_switch(2, servers=[(0, DEFAULT)])
    with pytest.raises(InputError, match="expected counts that add up to 3"):
        no_network(3, servers=[(2, DEFAULT)])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("fat_tree(5)", "fat_tree: k is 5; expected a whole number from 2 to 500000, a multiple of 2"),
        ("fat_tree('four')", "fat_tree: k is 'four'"),
        ("fat_tree(1000)", r"fat_tree\(1000\) has 250,000,000 machines"),
        ("fat_tree()", "missing a required argument: 'k'; expected fat_tree"),
        ("fat_tree(4, speed=3)", "unexpected keyword argument 'speed'; expected .* with options servers, gbps"),
        ("fat_tree(4, gbps=(1, 2))", "expected 3 positive numbers: machine-edge, edge-aggregation, aggregation-core"),
        ("fat_tree(4, gbps=7)", "gbps is 7; expected 3 positive numbers"),
        ("fat_tree(4, servers='dgx')", "unknown server 'dgx'. Did you mean 'dgx1'"),
        ("fat_tree(4, servers=3)", r"servers is 3; expected a name such as 'dgx1', or a list of \(share, name\)"),
        ("fat_tree(4, servers=[(1, 2)])", r"servers is \[\(1, 2\)\]; expected a name"),
        ("fat_tree(4, servers=[('a', 'dgx1')])", "expected a name such as 'dgx1'"),
        ("fat_tree(4, servers=[])", r"a mix of servers has shares \[\]"),
        ("bcube(2, 1, gbps=0)", "gbps is 0; expected 2 positive numbers: level 0, level 1"),
        ("bcube(2, 6)", "k is 6; expected a whole number from 0 to 5"),
        ("vl2(6, 4)", "d_a is 6; expected a whole number from 4 to 500000, a multiple of 4"),
        ("fattree(4)", "unknown topology 'fattree'. Did you mean 'fat_tree'"),
        ("fat_tree", r"unknown cluster 'fat_tree'. Did you mean 'fat_tree\(k\)'"),
        ("gavel-36x", "unknown cluster 'gavel-36x'. Did you mean 'gavel-36x3'"),
        ("fat_tree(__import__('os'))", "expected a call with plain values"),
        ("fat_tree(*[4])", "expected a call with plain values"),
        ("fat_tree(4)(5)", "expected a call with plain values"),
        ("os.remove('a')", "expected a call with plain values"),
        ("fat_tree(" + "(" * 300, "expected a call with plain values"),
        ("single_switch(3, partitions=4)", "partitions is 4; expected a whole number from 1 to 3"),
        ("single_switch(True)", "n is True"),
        ("leaf_spine(2, 0, 2)", "spines is 0; expected a whole number from 1"),
    ],
)
def test_wrong_clusters_are_refused_with_a_remedy(what, message):
    with pytest.raises(InputError, match=message):
        build(what)


def test_expressions_build_what_they_say():
    assert build("leaf_spine(4, 2, 8)").n_machines == 32
    assert build("fat_tree(4, servers='dgx1', gbps=(25, 50, 100))").n_gpus == 128
    assert build("fat_tree(4, servers=[(3, '2gpu'), (1, 'dgx1')])").n_gpus == 12 * 2 + 4 * 8


def test_architectures_have_their_own_names():
    assert all(name == architecture.name for name, architecture in ARCHITECTURES.items())

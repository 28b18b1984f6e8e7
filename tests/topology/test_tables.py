"""Tables of clusters, against the published sizes."""

from __future__ import annotations

from labkit.topology import architectures, fat_tree, no_network, sizes
from labkit.topology.servers import ARCHITECTURES


def test_a_fat_tree_of_20_has_the_published_size_and_a_cluster_without_a_network_no_switches():
    table = sizes({"tree": fat_tree(20), "none": no_network(3)})
    assert table["tree"][["machines", "GPUs", "switches", "pods"]].tolist() == [2000, 8000, 500, 20]
    assert table["none"][["machines", "switches", "cables", "cable speeds (Gbps)"]].tolist() == [3, 0, 0, ""]


def test_every_architecture_has_a_row():
    table = architectures()
    assert list(table.index) == list(ARCHITECTURES)
    assert table.loc["uneven", "GPUs per socket"] == "4 + 2"

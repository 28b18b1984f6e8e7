"""Clusters to build: each a function that returns a `Cluster`, in a file with its router.

To add one, write a file with a builder (machines from `servers.assemble`, links from `links.network`) and a router: a
frozen dataclass called with (source, destination, hash) that returns links. Then name it in `presets.BUILDERS`.
"""

from labkit.topology.bcube import bcube
from labkit.topology.fat_tree import fat_tree
from labkit.topology.inventory import from_inventory
from labkit.topology.leaf_spine import leaf_spine
from labkit.topology.presets import available, build
from labkit.topology.servers import Server, Servers, architectures, sizes
from labkit.topology.single_switch import no_network, single_switch
from labkit.topology.vl2 import pods, vl2

__all__ = [
    "Server", "Servers", "architectures", "available", "bcube", "build", "fat_tree", "from_inventory", "leaf_spine",
    "no_network", "pods", "single_switch", "sizes", "vl2",
]  # fmt: skip

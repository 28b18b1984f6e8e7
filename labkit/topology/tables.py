"""Tables to look at: what is inside the machines, and how large clusters are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.topology.servers import ARCHITECTURES

if TYPE_CHECKING:
    import pandas as pd


def architectures() -> pd.DataFrame:
    """Return a row for each server architecture: GPUs and cores by socket, bandwidths in Gbps, GPU type."""
    import pandas as pd

    rows = {
        name: {
            "GPUs per socket": " + ".join(f"{gpus:g}" for gpus, _, _ in kind.sockets),
            "cores per socket": " + ".join(f"{cores:g}" for _, cores, _ in kind.sockets),
            "PCIe (Gbps)": f"{kind.pcie_gbps:g}",
            "between sockets (Gbps)": f"{kind.socket_gbps:g}",
            "GPU type": kind.device_type,
        }
        for name, kind in ARCHITECTURES.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def sizes(clusters: Mapping[str, Cluster]) -> pd.DataFrame:
    """Return a column for each cluster: how many machines, GPUs, device groups, switches, cables and pods it has.

    Switches and cables are 0, and cable speeds empty, where there is no network.
    """
    import pandas as pd

    columns: dict[str, dict[str, int | str]] = {}
    for name, cluster in clusters.items():
        net = cluster.network
        speeds = [] if net is None else np.unique(net.link_gbps).tolist()
        columns[name] = {
            "machines": cluster.n_machines,
            "GPUs": int(cluster.n_gpus),
            "device groups": cluster.n_groups,
            "switches": len(net.nodes) - cluster.n_machines if net is not None else 0,
            "cables": net.n_links // 2 if net is not None else 0,
            "pods": int(cluster.partition.max()) + 1,
            "cable speeds (Gbps)": ", ".join(f"{speed:g}" for speed in speeds),
        }
    return pd.DataFrame(columns)

"""How fast random flows are on a network: with one path for all or hashed, links shared equally or max-min."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.solvers.maxmin import equal_share_rates, max_min_rates

if TYPE_CHECKING:
    import pandas as pd

ONE_PATH, HASHED = "one path", "hashed (ECMP)"
SHARES: Final = {"equal": equal_share_rates, "max-min": max_min_rates}


def random_flows(clusters: Mapping[str, Cluster], *, n_flows: int = 5000, seed: int = 0) -> pd.DataFrame:
    """Return the rates of flows between random pairs of machines, all at once.

    Parameters
    ----------
    clusters : mapping
        Name -> cluster with a network.
    n_flows : int
        Flows, each from one machine to another one.
    seed : int
        Of the pairs and of the hashes.

    Returns
    -------
    DataFrame
        cluster, way ("one path": all flows have the same hash; "hashed (ECMP)"), share ("equal": each flow gets the
        tightest of its links' equal shares; "max-min"), mean and slowest in Gbps.

    Raises
    ------
    InputError
        If a cluster has no network or one machine.
    """
    import pandas as pd

    rng, rows = np.random.default_rng(seed), []
    for name, cluster in clusters.items():
        net, n = cluster.network, cluster.n_machines
        if net is None or n < 2:
            raise InputError(f"cluster {name} has {n} machines, network {net}; flows need two machines and a network.")
        source = rng.integers(n, size=n_flows).astype(np.int32)
        target = (source + rng.integers(1, n, size=n_flows)).astype(np.int32) % n
        same = np.zeros(n_flows, np.int32)
        for way, flow_hash in {ONE_PATH: same, HASHED: rng.integers(2**31 - 1, size=n_flows).astype(np.int32)}.items():
            paths = net.route(source, target, flow_hash)
            for share, solve in SHARES.items():
                gbps = solve(paths, net.link_gbps)
                rows.append((name, way, share, gbps.mean(), gbps.min()))
    return pd.DataFrame(rows, columns=["cluster", "way", "share", "mean", "slowest"])

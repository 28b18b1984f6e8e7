"""Machines whose network costs nothing, as in simulators that have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.core.bounds import whole
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.topology.links import check_size
from labkit.topology.servers import DEFAULT, Server, assemble


def no_network(n: int, *, servers: Server | Sequence[tuple[int, Server]] = DEFAULT) -> Cluster:
    """Return n machines in one partition, without a network.

    Parameters
    ----------
    n : int
        Number of machines.
    servers : Server or sequence of (count, Server)
        The machines; of a mix, those of the first kind come first.

    Raises
    ------
    InputError
        If n is not positive, or the counts do not add up to it.

    Examples
    --------
    >>> print(no_network(2, servers=[(1, DEFAULT), (1, DEFAULT)]))
    no_network(2): 2 machines, 8 GPUs (8 v100)
    """
    whole("no_network", n=n)
    check_size(f"no_network({n})", n)
    mix = [(n, servers)] if isinstance(servers, Server) else list(servers)
    counts = [count for count, _ in mix]
    whole(f"no_network({n})", at_least=0, **{f"servers[{i}]": count for i, count in enumerate(counts)})
    if sum(counts) != n or min(counts) < 0:
        raise InputError(f"no_network({n}): the servers are {counts}; expected counts that add up to {n}.")
    kind = np.repeat(np.arange(len(mix), dtype=np.int32), counts)
    return assemble(
        f"no_network({n})", kinds=tuple(server for _, server in mix), kind=kind, partition=np.zeros(n, np.int32)
    )

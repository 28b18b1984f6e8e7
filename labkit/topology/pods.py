"""P pods of n machines: small copies of a cluster with several schedulers, for studies."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.core.bounds import whole
from labkit.core.cluster import Cluster
from labkit.topology.servers import DEFAULT, Servers
from labkit.topology.vl2 import vl2


def pods(
    n_pods: int, n_machines: int, *, servers: Servers = DEFAULT, gbps: Sequence[float] = (10, 20, 40)
) -> Cluster:  # fmt: skip
    """Return pods of as many machines each: a VL2 network with two racks a pod, one where the machines are odd.

    Parameters
    ----------
    n_pods, n_machines : int
        Pods, at least 2, and machines of each.
    servers : Server or sequence of (share, Server)
        The machines; each pod holds a mix in proportion.
    gbps : sequence of float
        Bandwidth of the links machine-rack, rack-aggregation, aggregation-intermediate.

    Raises
    ------
    InputError
        If a number is out of range, or a bandwidth is not positive.

    Examples
    --------
    >>> print(pods(3, 8))
    vl2(8, 3): 24 machines, 96 GPUs (96 v100)
    """
    whole("pods", at_least=2, n_pods=n_pods)
    whole("pods", n_machines=n_machines)
    racks = 1 if n_machines % 2 else 2
    return vl2(4 * racks, n_pods, per_rack=n_machines // racks, servers=servers, gbps=gbps)

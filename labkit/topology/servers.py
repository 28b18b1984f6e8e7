"""Server architectures, machines made of them, and tables of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError, unknown
from labkit.core.gpu_kinds import GpuKind, memory_of, refuse_geometry, slices_of
from labkit.core.resources import Ints

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Server:
    """What one kind of machine consists of.

    Attributes
    ----------
    name : str
        Its name among the architectures.
    sockets : tuple
        One (GPUs, cores, memory in GB) per CPU socket; each becomes a device group.
    device_type : str
        The kind of its GPUs.
    pcie_gbps, socket_gbps : float
        Bandwidth of the PCIe bus under each socket, and between sockets.
    gpu_memory_gb : float
        Memory of each GPU; NaN: not known.
    exclusive : bool
        A GPU belongs to one task: none may take a part of it.
    mig : tuple of str
        The slices into which MIG has cut each GPU, as ("3g.20gb", "2g.10gb", "2g.10gb"). They are GPUs of device types
        of their own ("a100-3g.20gb"), for jobs that demand one ("3g.20gb"); each kind is a device group of its socket.

    Raises
    ------
    InputError
        Without sockets, with negative amounts, with a bandwidth or memory that is not positive, or with slices that no
        GPU can be cut into.
    """

    name: str
    sockets: tuple[tuple[float, float, float], ...]
    device_type: str = "v100"
    pcie_gbps: float = 128.0
    socket_gbps: float = 300.0
    gpu_memory_gb: float = nan
    exclusive: bool = False
    mig: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.sockets or any(len(socket) != 3 or min(socket) < 0 for socket in self.sockets):
            raise InputError(
                f"server '{self.name}' has sockets {self.sockets}; expected one (GPUs, cores, memory in GB) or more."
            )
        if any(gpus % 1 for gpus, _, _ in self.sockets):
            raise InputError(f"server '{self.name}' has sockets {self.sockets}; expected whole GPUs in each.")
        for key in ("pcie_gbps", "socket_gbps", "gpu_memory_gb"):
            if getattr(self, key) <= 0 or (key != "gpu_memory_gb" and isnan(getattr(self, key))):
                raise InputError(f"server '{self.name}' has {key} = {getattr(self, key)}; expected more than 0.")
        if self.mig:
            refuse_geometry(self.mig, memory_gb=self.gpu_memory_gb, where=f"server '{self.name}'")

    @property
    def groups(self) -> list[tuple[tuple[float, float, float], str]]:
        """What each device group offers (GPUs, cores, memory in GB), with its device type: sockets, or their slices."""
        if self.mig:
            return slices_of(self.sockets, self.mig, self.device_type)
        return [(socket, self.device_type) for socket in self.sockets]

    @property
    def gpu_kinds(self) -> dict[str, GpuKind]:
        """What is known of the GPUs of its device types."""
        if self.mig:
            kinds = {name: GpuKind(memory_of(name), self.exclusive, name) for name in self.mig}
            return {f"{self.device_type}-{name}": kind for name, kind in kinds.items()}
        return {} if isnan(self.gpu_memory_gb) and not self.exclusive else {
            self.device_type: GpuKind(self.gpu_memory_gb, self.exclusive)
        }  # fmt: skip

    @property
    def gpus(self) -> float:
        """GPUs of the whole machine."""
        return sum(offers[0] for offers, _ in self.groups)


Servers = Server | Sequence[tuple[float, Server]]
"""One architecture for all machines, or a mix of (share, architecture)."""

DEFAULT: Final = Server("4gpu", sockets=((2, 8, 128), (2, 8, 128)))
"""Two sockets of 8 cores and 2 GPUs, PCIe 128 Gbps, 300 Gbps between sockets [1]_.

The text gives no memory; 128 GB per socket is ours.

.. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.
"""

ARCHITECTURES: Final = {
    server.name: server
    for server in (
        DEFAULT,
        Server("dgx1", sockets=((4, 16, 256), (4, 16, 256))),  # [1] VI-C (i)
        Server("uneven", sockets=((4, 16, 128), (2, 8, 128))),  # [1] VI-C (ii)
        Server("2gpu", sockets=((2, 8, 128),)),  # [1] VI-C (iii), the smallest kind
        # AWS g4dn.12xlarge: 4 T4, 48 vCPU, 192 GB, PCIe about 15 GB/s ([1] VII)
        Server("g4dn.12xlarge", sockets=((2, 24, 96), (2, 24, 96)), device_type="t4", pcie_gbps=120),
        # DL2's testbed: one E5-1660 v4 (8 cores), two GTX 1080 Ti, 48 GB; its simulator counts the same
        Server("dl2", sockets=((2, 8, 48),), device_type="gtx1080ti"),
        # Gavel's simulator: 4 GPUs of one type per server, no sockets
        Server("gavel-v100", sockets=((4, 16, 256),), device_type="v100"),
        Server("gavel-p100", sockets=((4, 16, 256),), device_type="p100"),
        Server("gavel-k80", sockets=((4, 16, 256),), device_type="k80"),
    )
}
"""The architectures by name."""


def server(name: str) -> Server:
    """Return the architecture of that name.

    Raises
    ------
    InputError
        If there is none; the message names the nearest.
    """
    if name not in ARCHITECTURES:
        raise unknown("server", name, ARCHITECTURES)
    return ARCHITECTURES[name]


def assign(n_machines: int, servers: Servers) -> tuple[tuple[Server, ...], Ints]:
    """Return the architectures, and which of them each machine has, (M,).

    Every stretch of machines holds the mix in proportion: the next machine is of the kind that lags furthest
    behind its share, the first one in a tie.

    Raises
    ------
    InputError
        If the mix is empty or a share is not positive.

    Examples
    --------
    >>> assign(5, [(0.2, server("2gpu")), (0.4, DEFAULT), (0.4, server("dgx1"))])[1].tolist()
    [1, 2, 0, 1, 2]
    """
    if isinstance(servers, Server):
        return (servers,), np.zeros(n_machines, np.int32)
    shares = np.array([share for share, _ in servers], dtype=np.float64)
    if not len(shares) or not (shares > 0).all() or not np.isfinite(shares).all():
        raise InputError(f"a mix of servers has shares {shares.tolist()}; expected one or more, each above 0.")
    shares /= shares.sum()
    lag = np.zeros(len(shares))
    kind = np.empty(n_machines, np.int32)
    for machine in range(n_machines):
        lag += shares
        kind[machine] = np.argmax(lag.round(9))
        lag[kind[machine]] -= 1
    return tuple(kind_of for _, kind_of in servers), kind


def assemble(
    name: str,
    *,
    kinds: tuple[Server, ...],
    kind: Ints,
    partition: Ints,
    machines: tuple[str, ...] | None = None,
    network: Network | None = None,
) -> Cluster:
    """Return the cluster of these machines.

    Parameters
    ----------
    name : str
        What made it.
    kinds, kind : tuple, array
        The architectures, and (M,) which of them each machine has.
    partition : array
        (M,) the pod of each machine.
    machines : tuple of str, optional
        (M,) names; by default m0, m1, ...
    network : Network, optional
        The links between them; without, the network costs nothing.
    """
    groups = [server.groups for server in kinds]
    n_groups = np.array([len(of) for of in groups], dtype=np.int32)[kind]
    machine = np.repeat(np.arange(len(kind), dtype=np.int32), n_groups)
    group = np.arange(len(machine)) - np.repeat(np.cumsum(n_groups) - n_groups, n_groups)
    types = tuple(dict.fromkeys(device_type for of in groups for _, device_type in of))
    offers, type_of = (
        np.zeros((len(kinds), max(map(len, groups)), 3)),
        np.zeros((len(kinds), max(map(len, groups))), np.int32),
    )
    for k, of in enumerate(groups):
        offers[k, : len(of)] = [offered for offered, _ in of]
        type_of[k, : len(of)] = [types.index(device_type) for _, device_type in of]
    return Cluster(
        name=name,
        machines=machines or tuple(f"m{i}" for i in range(len(kind))),
        device_types=types,
        group_machine=machine,
        group_type=type_of[kind[machine], group],
        capacity=offers[kind[machine], group],
        group_pcie_gbps=np.array([server.pcie_gbps for server in kinds], dtype=np.float64)[kind[machine]],
        machine_socket_gbps=np.array([server.socket_gbps for server in kinds], dtype=np.float64)[kind],
        partition=partition.astype(np.int32),
        network=network,
        gpu_kinds=_gpu_kinds(name, kinds),
    )


def _gpu_kinds(name: str, kinds: tuple[Server, ...]) -> dict[str, GpuKind]:
    """Return the specification of the GPUs of each device type of some architectures."""
    found: dict[str, GpuKind] = {}
    for server in kinds:
        for device_type in dict.fromkeys(of_type for _, of_type in server.groups):
            kind = server.gpu_kinds.get(device_type, GpuKind())
            if repr(found.setdefault(device_type, kind)) != repr(kind):
                raise InputError(
                    f"{name}: GPUs of device type '{device_type}' differ in memory or mode between machines "
                    f"({found[device_type]} and {kind}); give them device types of their own."
                )
    return {device_type: kind for device_type, kind in found.items() if repr(kind) != repr(GpuKind())}


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

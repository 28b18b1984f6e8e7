"""Clusters from an inventory: a TOML file that lists the hosts of a testbed."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from annotated_types import Ge, Gt, Le, Len, Lt

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.faults import fault_report
from labkit.core.files import refuse_unreadable
from labkit.core.gpu_kinds import refuse_geometry
from labkit.core.host_names import expanded, groups_of, has_range
from labkit.topology.servers import Server, assemble
from labkit.topology.single_switch import star

PROCESSORS: Final = ("laptop", "cpu", "none")
"""Device types whose "GPUs" are processor cores: jobs are counted by them, and compute on the CPU."""

Positive = Annotated[float, Gt(0)]
Amount = Annotated[float, Ge(0)]
MAX_PER_HOST = 1024
"""The most GPUs, and the most sockets, that a host is believed to have."""
MAX_HOSTS: Final = 10_000
"""The most hosts that an inventory is believed to list."""
MAX_PODS: Final = 1024
"""The most schedulers that are believed to share a testbed."""


@dataclass(frozen=True, slots=True)
class Host:
    """One [[hosts]] entry of an inventory.

    Attributes
    ----------
    name : str
        Unique name.
    gpus, cpus, memory_gb : float
        What the host has.
    device_type : str
        The kind of its GPUs; laptop, cpu and none say that there are none, and `gpus` counts workers.
    sockets : int
        CPU sockets; GPUs, cores and memory are split over them, the first ones get what is left over.
    link_gbps, pcie_gbps, socket_gbps : float
        Bandwidth of its network link, of the PCIe bus under a socket, and between sockets.
    pod : int
        The scheduler whose machine it is, where several share the cluster: 0, 1, ...
    ssh : dict
        How to reach it; not looked at here.
    features, taints : tuple of str
        What jobs can ask for (`--constraint` of Slurm), and what keeps pods away that do not tolerate it.
    gpu_memory_gb, exclusive, mig : float, bool, tuple of str
        Memory of each GPU, whether tasks may share one, and the slices into which MIG has cut each: see `Server`.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    name: Annotated[str, Len(1)]
    gpus: Annotated[int, Ge(0), Le(MAX_PER_HOST)]
    cpus: Positive
    memory_gb: Positive
    device_type: Annotated[str, Len(1)] = "gpu"
    sockets: Annotated[int, Ge(1), Le(MAX_PER_HOST)] = 1
    link_gbps: Positive = 10.0
    pcie_gbps: Positive = 128.0
    socket_gbps: Positive = 300.0
    pod: Annotated[int, Ge(0), Lt(MAX_PODS)] = 0
    ssh: dict[str, Any] | None = None
    features: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    gpu_memory_gb: Positive | None = None
    exclusive: bool = False
    mig: tuple[str, ...] = ()

    @property
    def real_gpus(self) -> int:
        """How many GPUs it should have that are not processor cores in truth."""
        return 0 if self.device_type.casefold() in PROCESSORS else self.gpus

    def server(self) -> Server:
        """Return the host as an architecture."""
        gpus = [self.gpus // self.sockets + (s < self.gpus % self.sockets) for s in range(self.sockets)]
        return Server(
            self.name,
            sockets=tuple((n, self.cpus / self.sockets, self.memory_gb / self.sockets) for n in gpus),
            device_type=self.device_type,
            pcie_gbps=self.pcie_gbps,
            socket_gbps=self.socket_gbps,
            gpu_memory_gb=nan if self.gpu_memory_gb is None else self.gpu_memory_gb,
            exclusive=self.exclusive,
            mig=self.mig,
        )


def from_inventory(path: str | Path) -> Cluster:
    """Return the cluster that an inventory describes: its hosts on one switch, each with its own link.

    Parameters
    ----------
    path : str or Path
        A TOML file with one [[hosts]] table per host; its keys are the attributes of `Host`. `count = 4` in one
        stands for four such hosts, with a number after their name; so does `name = "gpu[01-04]"`. A table [ssh] for all
        hosts, and tables [groups] and [partitions] of names for some of them, may stand beside them.

    Raises
    ------
    InputError
        With every fault of the file: which host, which key, what was expected.
    """
    content = read_content(path)
    cluster = cluster_of(content.hosts, name=Path(path).stem).with_partitions(content.partitions)
    known = dict.fromkeys(feature for host in content.hosts for feature in host.features)
    features = {name: np.array([name in host.features for host in content.hosts], np.bool_) for name in known}
    return replace(cluster, features=features)


def cluster_of(hosts: Sequence[Host], *, name: str) -> Cluster:
    """Return the cluster of some hosts on one switch, each with its own link, in the pods that they name."""
    return assemble(
        name,
        kinds=tuple(host.server() for host in hosts),
        kind=np.arange(len(hosts), dtype=np.int32),
        partition=np.array([host.pod for host in hosts], np.int32),
        machines=tuple(host.name for host in hosts),
        network=star(len(hosts), gbps=np.array([host.link_gbps for host in hosts])),
    )


def read_content(path: str | Path) -> Content:
    """Return the content of an inventory, checked; errors are those of `from_inventory`."""
    content = parse(path)
    if content.faults:
        raise InputError(fault_report(str(path), content.faults))
    return content


@dataclass(frozen=True, slots=True)
class Content:
    """What stands in an inventory.

    Attributes
    ----------
    hosts : list of Host
        Empty where one of them has a fault.
    ssh : dict
        The table [ssh]; not looked at here.
    faults : list of str
        All that is wrong with the hosts and around them.
    groups : dict
        The table [groups]: name -> hosts, each once, in the order of the file.
    partitions : dict
        The table [partitions], alike: hosts to which jobs of a partition (virtual cluster) are kept.
    """

    hosts: list[Host]
    ssh: dict[str, Any]
    faults: list[str]
    groups: dict[str, list[str]] = field(default_factory=dict)
    partitions: dict[str, list[str]] = field(default_factory=dict)


def parse(path: str | Path) -> Content:
    """Return the content of an inventory, with its faults.

    Raises
    ------
    InputError
        If it cannot be read, or is not TOML.
    """
    from pydantic import TypeAdapter, ValidationError

    rows, ssh, group_table, partition_table, faults = _tables(path)
    rows, counts, wrong = _counted(rows)
    faults += [*wrong, *_odd_ranges(rows, counts)]
    hosts: list[Host] = []
    try:
        hosts = TypeAdapter(list[Host]).validate_python(rows, strict=False)
    except ValidationError as error:
        faults += [_fault(rows, dict(fault)) for fault in error.errors()]
    faults += [fault for number, row in enumerate(rows, start=1) for fault in _not_finite(number, row)]
    faults += [fault for host in hosts for fault in _odd_slices(host)]
    names = Counter(str(row.get("name", "")) for row in rows if isinstance(row, dict))
    if hosts and not faults:
        hosts = [one for host, count in zip(hosts, counts, strict=True) for one in _each(host, count)]
        names = Counter(host.name for host in hosts)
    faults += [
        f"host name '{name}' occurs {times} times; names must be unique"
        for name, times in names.items()
        if times > 1 and name
    ]
    known = [host.name for host in hosts]
    groups, odd = groups_of(group_table, known) if not faults else ({}, [])
    partitions, wrong = groups_of(partition_table, known, kind="partition", groups=groups) if not faults else ({}, [])
    return Content(hosts, ssh, [*faults, *_empty_pods(hosts), *odd, *wrong], groups, partitions)


def _counted(rows: Sequence[Any]) -> tuple[list[Any], list[int], list[str]]:
    """Return the [[hosts]] tables without their `count`, the counts, and what is wrong with these."""
    plain: list[Any] = []
    counts: list[int] = []
    faults: list[str] = []
    for number, row in enumerate(rows, start=1):
        count = row.get("count", 1) if isinstance(row, dict) else 1
        where = f"host {number} ({row.get('name', '')})" if isinstance(row, dict) else ""
        plain.append({key: value for key, value in row.items() if key != "count"} if isinstance(row, dict) else row)
        if type(count) is not int or not 1 <= count <= MAX_HOSTS:
            faults.append(f"{where}: count is {count!r}; expected a whole number from 1 to {MAX_HOSTS:,}")
            count = 1
        elif count > 1 and isinstance(row.get("ssh"), dict) and "address" in row["ssh"]:
            faults.append(f"{where}: count is {count}, and they have one ssh.address; give each host its own table")
        counts.append(count)
    if sum(counts) > MAX_HOSTS:
        faults.append(f"it counts {sum(counts):,} hosts; expected {MAX_HOSTS:,} at most")
    return plain, counts, faults


def _each(host: Host, count: int) -> list[Host]:
    """Return the hosts that a table stands for: those of a range, or so many, or one.

    >>> [host.name for host in _each(Host("gpu[09-10]", gpus=8, cpus=64, memory_gb=512), 1)]
    ['gpu09', 'gpu10']
    """
    if not has_range(host.name):
        return _numbered(host, count)
    names, address = expanded(host.name), (host.ssh or {}).get("address")
    if address is None:
        return [replace(host, name=name) for name in names]
    addresses = expanded(str(address))
    pairs = zip(names, addresses, strict=True)
    return [replace(host, name=name, ssh={**(host.ssh or {}), "address": address}) for name, address in pairs]


def _odd_ranges(rows: Sequence[Any], counts: Sequence[int]) -> list[str]:
    """Return the faults of ranges in names and addresses."""
    faults = []
    for number, (row, count) in enumerate(zip(rows, counts, strict=True), start=1):
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str) or not has_range(name):
            continue
        where, ssh = f"host {number} ({name})", row.get("ssh")
        address = ssh.get("address") if isinstance(ssh, dict) else None
        try:
            n = len(expanded(name))
            n_addresses = n if address is None else len(expanded(str(address)))
        except InputError as error:
            faults.append(f"{where}: {str(error).rstrip('.')}")
            continue
        if count > 1:
            faults.append(f"{where}: count is {count}, and its name is a range; leave one of them out")
        if n_addresses != n:
            faults.append(
                f"{where}: it stands for {n} hosts, and ssh.address {address!r} for {n_addresses}; expected as many"
            )
    return faults


def _numbered(host: Host, count: int) -> list[Host]:
    """Return so many hosts that are alike, with a number after the name of each; the host itself if it is one.

    >>> [host.name for host in _numbered(Host("gpu", gpus=8, cpus=64, memory_gb=512), 2)]
    ['gpu1', 'gpu2']
    """
    digits = len(str(count))
    return [host] if count == 1 else [replace(host, name=f"{host.name}{i:0{digits}}") for i in range(1, count + 1)]


def _empty_pods(hosts: Sequence[Host]) -> list[str]:
    """Return the pods that no host is in, although one with a higher number has hosts."""
    named = {host.pod for host in hosts}
    last = max(named, default=0)
    missing = sorted(set(range(last)) - named)
    return [f"no host is in pod {pod}, and one is in pod {last}; pods are numbered 0, 1, ..." for pod in missing[:1]]


def _tables(path: str | Path) -> tuple[list[Any], dict[str, Any], Any, Any, list[str]]:
    """Return the tables [[hosts]], [ssh], [groups] and [partitions], and what is wrong with the file around them."""
    refuse_unreadable(path, expected="a TOML file of [[hosts]]")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"inventory {path}: {error.strerror}; expected a TOML file of [[hosts]].") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"inventory {path} is not TOML: {error}.") from None
    except (RecursionError, ValueError) as error:  # brackets too deep, numbers too long
        raise InputError(f"inventory {path} cannot be read: {error}.") from None
    hosts, ssh, groups = content.pop("hosts", []), content.pop("ssh", {}), content.pop("groups", {})
    partitions = content.pop("partitions", {})
    faults = [f"unknown table or key '{key}'; expected [[hosts]], [ssh], [groups], [partitions]" for key in content]
    if not isinstance(ssh, dict):
        faults, ssh = [*faults, f"ssh is {ssh!r}; expected a table [ssh]"], {}
    if not isinstance(hosts, list) or not hosts:
        return [], ssh, {}, {}, [*faults, "it has no hosts; expected one [[hosts]] table per host"]
    return hosts, ssh, groups, partitions, faults


def _odd_slices(host: Host) -> list[str]:
    """Return why the GPUs of a host cannot be cut as it says."""
    try:
        if host.mig:
            memory_gb = host.gpu_memory_gb or nan
            refuse_geometry(host.mig, memory_gb=memory_gb, device_type=host.device_type, where=f"host {host.name}")
    except InputError as error:
        return [str(error).rstrip(".")]
    return []


def _not_finite(number: int, row: object) -> list[str]:
    """Return the keys whose number is none; TOML can write nan and inf, and no bound refuses nan."""
    found = row.items() if isinstance(row, dict) else ()
    odd = [(key, value) for key, value in found if isinstance(value, float) and not math.isfinite(value)]
    return [f"host {number}: {key} is {value}; expected a finite number" for key, value in odd]


def _fault(rows: list[Any], fault: dict[str, Any]) -> str:
    """Return one fault that pydantic found in a host, in our words."""
    number, *keys = fault["loc"]
    row = rows[number]
    name = f" ({row['name']})" if isinstance(row, dict) and row.get("name") else ""
    return fault_in_words(
        f"host {number + 1}{name}", keys, fault, known=[*(field.name for field in fields(Host)), "count"]
    )


def fault_in_words(where: str, keys: Sequence[object], fault: Mapping[str, Any], *, known: Sequence[str]) -> str:
    """Return one fault that pydantic found in a table, in our words: where, which key, what was expected."""
    key = ".".join(str(part) for part in keys)
    if fault["type"] == "unexpected_keyword_argument":
        near = get_close_matches(key, known, n=1)
        return f"{where}: unknown key '{key}'" + (
            f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
        )
    if fault["type"] == "missing":
        return f"{where}: {key} is missing"
    expected = re.sub(r"^Input should be ", "", fault["msg"])
    return f"{where}: {key or 'entry'} is {fault['input']!r}; expected {expected[0].lower() + expected[1:]}"

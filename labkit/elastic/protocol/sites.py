"""Sites of members: hosts, cores and GPUs, the network between them, and the placement of members on them."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from socket import socket
from threading import Lock
from typing import Any, Final, NamedTuple

from labkit.core.errors import InputError, unknown
from labkit.elastic.protocol.messages.codec import Hello, greeted
from labkit.elastic.protocol.messages.struct import HERE, Role
from labkit.elastic.transport import AccessError, Address, AddressError, Peer, Scheme, bound

CONTROLLER = "controller"
"""Name and role of the controller."""
HOST = "host"
"""Role of the launcher of another host."""


class NetworkMode(StrEnum):
    """Transport between the processes of a job."""

    LOCAL = "local"
    """Sockets and shared memory of this machine, in a folder that only its owner can enter."""
    TLS = "tls"
    """TCP, all of it mutual TLS 1.3 with certificates made for the job."""
    TCP = "tcp"
    """Parameters and gradients over TCP in clear, for an isolated network; connections of the controller over TLS."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Addresses and ports of the processes of a job."""

    network: NetworkMode = NetworkMode.LOCAL
    hosts: tuple[str, ...] = ()
    """Addresses in turn: server i and worker i have `hosts[i % len(hosts)]`; the controller has the first."""
    ports: tuple[int, int] = (0, 0)
    """First and last port for listeners; (0, 0): any free port."""
    job: str = ""
    """Name of the job in its certificates."""

    @classmethod
    def checked(cls, network: str, addresses: Sequence[str], ports: Sequence[int] | None, *, job: str) -> NetworkConfig:
        """Return the configuration that a user asks for.

        Raise InputError if there is no such network, or addresses or ports are not allowed with it.
        """
        if network not in list(NetworkMode):
            raise unknown("network", network, list(NetworkMode))
        mode = NetworkMode(network)
        if mode == NetworkMode.LOCAL:
            if addresses or ports:
                setting = f"addresses {', '.join(addresses)}" if addresses else f"ports {ports}"
                raise InputError(
                    f'{setting} for network="local", which has none; say network="tls", or leave them out.'
                )
            return cls()
        return cls(mode, tuple(map(checked_host, addresses or ("127.0.0.1",))), _checked_ports(ports or (0, 0)), job)

    def host_of(self, name: str) -> str:
        """Return the address for a process whose name ends with its number."""
        number = name.rpartition("-")[2]
        return self.hosts[int(number) % len(self.hosts) if number.isdigit() else 0]

    def listen(self, scheme: Scheme, name: str) -> tuple[Address, socket]:
        """Return an address for a process, and a socket that is bound to it.

        Raise AddressError if no port is free, or this machine does not have the address.
        """
        host, (first, last) = self.host_of(name), self.ports
        why = ""
        for port in range(first, last + 1):
            try:
                sock = bound(Address(scheme, host=host, port=port))
            except AddressError as error:
                why = str(error)
            else:
                return Address(scheme, host=host, port=sock.getsockname()[1]), sock
        if first == last:
            raise AddressError(why)
        raise AddressError(f"no port from {first} to {last} is free on {host}: {why}")

    def check_free(self, *, servers: int, controller: bool = True) -> None:
        """Raise AddressError unless this machine has the addresses, and ports for the controller and the servers."""
        if self.network == NetworkMode.LOCAL:
            return
        with ExitStack() as stack:
            for name in (*([CONTROLLER] if controller else []), *(f"ps-{i}" for i in range(servers))):
                stack.callback(self.listen(Scheme.TLS, name)[1].close)


def checked_host(host: str, *, of: str = "") -> str:
    """Return the address of a machine; InputError if peers cannot connect to it. `of` is added to the message."""
    try:
        nowhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        nowhere = not host.strip() or "/" in host or ":" in host
    if nowhere:
        message = f"'{host}' {of}".rstrip()
        raise InputError(f"{message} is no address that others can connect to; give one of a machine, as 10.0.0.7.")
    return host


def _checked_ports(ports: Sequence[int]) -> tuple[int, int]:
    first, last = ports
    if (first, last) != (0, 0) and not 1 <= first <= last <= 65535:
        raise InputError(f"ports {first} to {last} cannot be listened at; expected first and last of 1 to 65535.")
    return first, last


def ports_of(text: str) -> tuple[int, int] | None:
    """Return the ports of a text FIRST-LAST or PORT; InputError if it is neither.

    >>> ports_of("5000-5010"), ports_of("5000"), ports_of("")
    ((5000, 5010), (5000, 5000), None)
    """
    if not text:
        return None
    first, _, last = text.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InputError(f"ports '{text}' cannot be read; expected FIRST-LAST, as 5000-5010.") from None


def certificate_name(name: str, role: str) -> str:
    """Return the name in the certificate of a process: it binds both name and role."""
    return f"{name}.{role}"


def claimed(peer: Peer) -> Hello:
    """Return the greeting of a peer.

    Raise AccessError if it is malformed or of another version, or its certificate is for another name or role.
    """
    hello = greeted(peer)
    kind, _, proved = peer.proved.partition(" ")
    named = certificate_name(hello.name, hello.role)
    if kind == "certificate" and proved != named:
        raise AccessError(f"{proved}, as its certificate says, claims to be {named[:100]}.")
    return hello


def checked_address(text: str, *, network: str) -> str:
    """Return the address that a member reports; AccessError if its scheme is not that of the job's network."""
    schemes = {
        NetworkMode.LOCAL: (Scheme.UNIX, Scheme.SHM),
        NetworkMode.TLS: (Scheme.TLS,),
        NetworkMode.TCP: (Scheme.TCP,),
    }
    try:
        good = not text or Address.parse(text).scheme in schemes[NetworkMode(network)]
    except InputError:
        good = False
    if not good:
        raise AccessError(f"'{text[:200]}' is no address of a job with network '{network}'.")
    return text


class Refusals:
    """Counts refused connections, and reports the 1st, 2nd, 4th, 8th, ...: reports must not fill the disk.

    `report`: takes the columns of an event by keyword: reason, n, why.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report, self._n, self._lock = report, 0, Lock()

    def __call__(self, reason: str, why: str) -> None:
        """Count one refusal."""
        with self._lock:
            self._n += 1
            n = self._n
        if n & (n - 1) == 0:
            self._report(reason=reason, n=n, why=why[:300])


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?|gpu:\d+")


@dataclass(frozen=True, slots=True)
class Site:
    """A device group of a host that can hold members of a job.

    Attributes
    ----------
    name : str
        Unique among the sites of a job: letters, digits and `_ . : / -`.
    host : str
        Name of the machine, the same for all its sites; the first site's machine is the job's home.
    address : str
        Network address of its members; "" with network="local".
    devices : sequence of str
        Devices of workers, "cpu" or "cuda:0"; a new worker takes the one with the fewest workers. "gpu:3" is GPU 3 of
        the host, in order of the PCI bus, where an agent allots GPUs: see `labkit.elastic.protocol.sites`.
    cores : sequence of int
        Processor cores that its members may use; empty: those of the process that starts them.

    Raises
    ------
    InputError
        If a field is invalid.

    Examples
    --------
    >>> Site("a/0", "a", "10.0.0.7", devices=("cuda:0", "cuda:1"), cores=range(8)).cores
    (0, 1, 2, 3, 4, 5, 6, 7)
    """

    name: str
    host: str
    address: str = ""
    devices: Sequence[str] = ("cpu",)
    cores: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InputError(
                f"a site named {self.name!r}; expected a letter or digit, then up to 99 letters, digits and _ . : / -."
            )
        if not isinstance(self.host, str) or not self.host.isprintable() or not 0 < len(self.host) <= 253:
            raise InputError(f"site '{self.name}' is on a host named {self.host!r}; expected a name that can be read.")
        object.__setattr__(self, "devices", self._checked_devices())
        object.__setattr__(self, "cores", self._checked_cores())

    def _checked_devices(self) -> tuple[str, ...]:
        devices = (self.devices,) if isinstance(self.devices, str) else tuple(self.devices)
        for device in devices or ("",):
            if not isinstance(device, str) or not _DEVICE.fullmatch(device):
                raise InputError(f"site '{self.name}' has a device {device!r}; expected 'cpu', 'cuda:0' or 'gpu:0'.")
        return devices

    def _checked_cores(self) -> tuple[int, ...]:
        cores = tuple(self.cores)
        if len(set(cores)) < len(cores) or not all(isinstance(core, int) and core >= 0 for core in cores):
            raise InputError(f"site '{self.name}' has cores {cores}; expected different numbers from 0.")
        return cores


NOWHERE_ELSE = Site(HERE, HERE)
"""Site of all members of a job without sites."""


def hosts_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """Return the hosts of sites; the first one is the home.

    >>> hosts_of([Site("a/0", "a"), Site("a/1", "a"), Site("b/0", "b")])
    ('a', 'b')
    """
    return tuple(dict.fromkeys(site.host for site in sites))


def launcher_name(host: str, sites: Iterable[Site]) -> str:
    """Return the name of the launcher of a host in its certificate: names of hosts may have characters that it may not.

    >>> launcher_name("gpu_2.rack 7", [Site("a/0", "a"), Site("b/0", "gpu_2.rack 7")])
    'host-1'
    """
    return f"host-{hosts_of(sites).index(host)}"


def checked_sites(
    sites: Sequence[Site], *, network: str, addresses: Sequence[str], devices: Sequence[str]
) -> list[Site]:
    """Return the sites of a job.

    Raise InputError if names repeat, or sites are combined with a network, addresses or devices that exclude them.
    """
    names = [site.name for site in sites]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{names.count(name)} sites are named '{name}'; names must be unique.")
    if sites and (addresses or devices):
        setting = f"addresses {', '.join(addresses)}" if addresses else f"devices {', '.join(devices)}"
        raise InputError(f"{setting} beside sites; say it in the sites, or leave them out.")
    if network == NetworkMode.LOCAL:
        _check_local(sites)
    else:
        for site in sites:
            checked_host(site.address, of=f"of site '{site.name}'")
    return list(sites)


def _check_local(sites: Sequence[Site]) -> None:
    if len(hosts_of(sites)) > 1:
        raise InputError(
            f'sites on hosts {", ".join(hosts_of(sites))} with network="local"; expected "tls", or "tcp" on an '
            "isolated network."
        )
    for site in sites:
        if site.address:
            raise InputError(
                f"site '{site.name}' has the address {site.address}, and network=\"local\" has none; "
                'say network="tls", or leave it out.'
            )


VARIABLE: Final = "LABKIT_GPUS"
"""Environment variable with the path of the file."""
NUMBERED: Final = "gpu:"
"""Prefix of the number of a GPU of the host, among the devices of a site."""
LOCAL: Final = "cuda:0"
"""Name of the only GPU that a process sees."""


def allotted() -> dict[str, str]:
    """Return the GPUs that the job has on this host now, by number.

    The file is JSON, identifiers by number: {"0": "GPU-5f...", "1": "GPU-77..."}. It may change while the job runs.
    Without a file, a job uses the devices of its sites as the process that started it numbers them. Raise OSError if
    the file cannot be read.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        return {}
    try:
        return {str(number): str(uuid) for number, uuid in dict(json.loads(Path(path).read_text())).items()}
    except (ValueError, TypeError) as error:
        raise OSError(f"{path} is no list of GPUs: {error}") from None


def devices_of(site: Site) -> list[str]:
    """Return the devices of a site on this host: "cpu", "cuda:0", or identifiers of GPUs.

    Raise OSError if the site has GPUs, and the job has none of them here.
    """
    if not any(device.startswith(NUMBERED) for device in site.devices):
        return list(site.devices)
    mine = allotted()
    numbers = [device.removeprefix(NUMBERED) for device in site.devices]
    uuids = [mine[number] for number in numbers if number in mine]
    if not uuids:
        where = (
            f"{os.environ[VARIABLE]} has {', '.join(mine) or 'none'}"
            if VARIABLE in os.environ
            else "no agent hands them out"
        )
        raise OSError(f"site '{site.name}': the job has none of the GPUs {', '.join(numbers)} of this host ({where})")
    return uuids


def is_identifier(device: str) -> bool:
    """Return whether a device is the identifier of a GPU.

    >>> is_identifier("GPU-5f0c"), is_identifier("cuda:0"), is_identifier("cpu")
    (True, False, False)
    """
    return device.startswith("GPU-")


def bound_to(device: str) -> Mapping[str, str]:
    """Return environment variables with which a worker sees only this GPU; none for other devices."""
    if not is_identifier(device):
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device}


def local_name(device: str) -> str:
    """Return the name of a device within the worker that has it.

    >>> local_name("GPU-5f0c"), local_name("cpu")
    ('cuda:0', 'cpu')
    """
    return LOCAL if is_identifier(device) else device


JobPlacement = Mapping[str, tuple[int, int]]
"""Workers and servers of each site; a site that is not named has no member."""

ROLES: tuple[Role, Role] = ("server", "worker")


class MemberPlacement(NamedTuple):
    """A member, and its site."""

    name: str
    role: Role
    site: str


class MembershipChange(NamedTuple):
    """Members to start, (role, site) each, and names of the members that leave."""

    starts: list[tuple[Role, str]]
    going: list[str]

    def net(self, role: Role, sitting: Iterable[MemberPlacement]) -> int:
        """Return by how many members of a role the job grows."""
        gone = sum(one.role == role and one.name in self.going for one in sitting)
        return sum(started == role for started, _ in self.starts) - gone


def of_role(place: JobPlacement, role: Role) -> dict[str, int]:
    """Return the number of members of a role on each site.

    >>> of_role({"a": (2, 1), "b": (0, 1)}, "server")
    {'a': 1, 'b': 1}
    """
    return {site: (servers if role == "server" else workers) for site, (workers, servers) in place.items()}


def checked(place: Mapping[str, Sequence[int]], *, sites: Mapping[str, str], lost: Collection[str]) -> JobPlacement:
    """Return the placement that a user asks for, checked.

    Raise InputError if there is no such site, its host is lost, or a number is no whole number, 0 or more. `place`:
    workers and servers by name of the site.
    """
    for site, numbers in place.items():
        if site not in sites:
            raise unknown("site", str(site), tuple(sites))
        if not _are_numbers(numbers):
            raise InputError(f"site '{site}' is to have {numbers!r}; expected how many workers and how many servers.")
        if any(numbers) and sites[site] in lost:
            raise InputError(f"site '{site}' is on host {sites[site]}, which is lost; give another one.")
    return {site: (numbers[0], numbers[1]) for site, numbers in place.items()}


def first_members(
    place: Mapping[str, Sequence[int]], *, sites: Mapping[str, str], n_blocks: int
) -> list[tuple[Role, str]]:
    """Return role and site of each member that a job starts with, servers first.

    Raise InputError as `checked` does, and if a role has no member, or there are more servers than blocks.
    """
    seats = checked(place, sites=sites, lost=())
    for role in ROLES:
        if sum(of_role(seats, role).values()) < 1:
            raise InputError(f"a job with {sum(of_role(seats, role).values())} {role}s; expected at least one.")
    n_servers = sum(of_role(seats, "server").values())
    if n_servers > n_blocks:
        raise InputError(f"{n_servers} servers for {n_blocks} blocks; expected at most one per block.")
    return [(role, site) for role in ROLES for site, n in of_role(seats, role).items() for _ in range(n)]


def _are_numbers(numbers: Any) -> bool:
    pair = isinstance(numbers, (list, tuple)) and len(numbers) == 2
    return pair and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)


def to_place(place: JobPlacement, sitting: Sequence[MemberPlacement]) -> MembershipChange:
    """Return the fewest changes that lead to a placement; on each site the newest members leave first.

    >>> seats = [MemberPlacement("worker-0", "worker", "a"), MemberPlacement("worker-1", "worker", "a")]
    >>> to_place({"b": (1, 0)}, seats)
    MembershipChange(starts=[('worker', 'b')], going=['worker-0', 'worker-1'])
    """
    change = MembershipChange([], [])
    for role in ROLES:
        wanted = of_role(place, role)
        for site in dict.fromkeys((*wanted, *(one.site for one in sitting))):
            here = [one.name for one in sitting if (one.role, one.site) == (role, site)]
            n = wanted.get(site, 0)
            change.starts.extend((role, site) for _ in range(n - len(here)))
            change.going.extend(here[n:])
    return change


def by_numbers(
    more: Mapping[Role, int], sitting: Sequence[MemberPlacement], *, replace: Collection[str], sites: Sequence[str]
) -> MembershipChange:
    """Return the changes that add members of each role (or remove the newest, below 0) and replace some.

    A replacement starts on the site of the member that it replaces, if that is one of `sites`; other new members start
    on the site with the fewest of their role.
    """
    again = [one for one in sitting if one.name in replace]
    change = MembershipChange([], [one.name for one in again])
    for role in ROLES:
        stay = [one for one in sitting if one.role == role and one.name not in replace]
        change.going.extend(one.name for one in (stay[more[role] :] if more[role] < 0 else []))
        counts = Counter(one.site for one in stay)
        anywhere = [""] * max(more[role], 0)
        for site in (*(one.site for one in again if one.role == role), *anywhere):
            chosen = site if site in sites else fewest(counts, sites)
            counts[chosen] += 1
            change.starts.append((role, chosen))
    return change


def fewest(counts: Mapping[str, int], sites: Sequence[str]) -> str:
    """Return the site with the fewest members, the first one of several.

    >>> fewest({"a": 2, "b": 1}, ["a", "b", "c"])
    'c'
    """
    return min(sites, key=lambda site: counts.get(site, 0))

"""Sites of a job: device groups of hosts that may hold its members."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.core.errors import InputError
from labkit.elastic.protocol.network import NetworkMode, checked_host
from labkit.elastic.protocol.roles import HERE

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
        the host, in order of the PCI bus, where an agent allots GPUs: see `labkit.elastic.process.gpus`.
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
        given = (self.devices,) if isinstance(self.devices, str) else tuple(self.devices)
        for device in given or ("",):
            if not isinstance(device, str) or not _DEVICE.fullmatch(device):
                raise InputError(f"site '{self.name}' has a device {device!r}; expected 'cpu', 'cuda:0' or 'gpu:0'.")
        return given

    def _checked_cores(self) -> tuple[int, ...]:
        given = tuple(self.cores)
        if len(set(given)) < len(given) or not all(isinstance(core, int) and core >= 0 for core in given):
            raise InputError(f"site '{self.name}' has cores {given}; expected different numbers from 0.")
        return given


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

    Raises
    ------
    InputError
        If names repeat, or sites are combined with a network, addresses or devices that exclude them.
    """
    names = [site.name for site in sites]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{names.count(name)} sites are named '{name}'; names must be unique.")
    if sites and (addresses or devices):
        given = f"addresses {', '.join(addresses)}" if addresses else f"devices {', '.join(devices)}"
        raise InputError(f"{given} beside sites; say it in the sites, or leave them out.")
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

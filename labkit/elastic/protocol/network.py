"""Over what the processes of a job talk: sockets of this machine, or TCP between addresses, encrypted or in clear."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from socket import socket
from threading import Lock

from labkit.core.errors import InputError, unknown
from labkit.elastic.transport import AccessError, Address, AddressError, Peer, Scheme, bound

CONTROLLER = "controller"
"""Name and role of the controller."""
HOST = "host"
"""Role of the launcher of another host."""


class NetworkMode(StrEnum):
    """Over what the processes of a job talk."""

    LOCAL = "local"
    """Sockets and shared memory of this machine, in a folder that only its owner can enter."""
    TLS = "tls"
    """TCP, all of it mutual TLS 1.3 with certificates made for the job."""
    TCP = "tcp"
    """Parameters and gradients over TCP in clear, for an isolated network; what the controller says still over TLS."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Where the processes of a job can be reached.

    Attributes
    ----------
    network : str
        See `NetworkMode`.
    hosts : sequence of str
        Addresses in turn: server i has `hosts[i % len(hosts)]`, and so has worker i; the controller the first.
    ports : (int, int)
        First and last port that may be listened at; (0, 0): any that is free.
    job : str
        Name of the job in its certificates.
    """

    network: str = NetworkMode.LOCAL
    hosts: Sequence[str] = ()
    ports: Sequence[int] = (0, 0)
    job: str = ""

    @classmethod
    def checked(cls, network: str, hosts: Sequence[str], ports: Sequence[int] | None, *, job: str) -> NetworkConfig:
        """Return what a user asks for.

        Raises
        ------
        InputError
            If there is no such network, or it does not go with the hosts or ports.
        """
        if network not in list(NetworkMode):
            raise unknown("network", network, list(NetworkMode))
        if network == NetworkMode.LOCAL:
            if hosts or ports:
                given = f"hosts {', '.join(hosts)}" if hosts else f"ports {ports}"
                raise InputError(f'{given} for network="local", which has none; say network="tls", or leave them out.')
            return cls()
        return cls(network, tuple(map(checked_host, hosts or ("127.0.0.1",))), _checked_ports(ports or (0, 0)), job)

    def host_of(self, name: str) -> str:
        """Return the address of the machine of a process, whose name ends with its number."""
        number = name.rpartition("-")[2]
        return self.hosts[int(number) % len(self.hosts) if number.isdigit() else 0]

    def listen(self, scheme: Scheme, name: str) -> tuple[Address, socket]:
        """Return an address at which a process can be reached, and a socket that listens there.

        Raises
        ------
        AddressError
            If no port is free, or this machine does not have the address.
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
    """Return the address of a machine; InputError if others cannot connect to it. `of` tells whose it is."""
    try:
        nowhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        nowhere = not host.strip() or "/" in host or ":" in host
    if nowhere:
        told = f"'{host}' {of}".rstrip()
        raise InputError(f"{told} is no address that others can connect to; give one of a machine, as 10.0.0.7.")
    return host


def _checked_ports(ports: Sequence[int]) -> tuple[int, int]:
    first, last = ports
    if (first, last) != (0, 0) and not 1 <= first <= last <= 65535:
        raise InputError(f"ports {first} to {last} cannot be listened at; expected first and last of 1 to 65535.")
    return first, last


def ports_of(text: str) -> tuple[int, int] | None:
    """Read ports as a user writes them; InputError if that cannot be.

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
    """Return what the certificate of a process says: neither its name nor its role can be another's."""
    return f"{name}.{role}"


def claimed(peer: Peer) -> tuple[str, str]:
    """Return the name and role that a peer says it has.

    Raises
    ------
    AccessError
        If its certificate says something else.
    """
    name, role = str(peer.hello.get("name", "")), str(peer.hello.get("role", ""))
    kind, _, proved = peer.proved.partition(" ")
    if kind == "certificate" and proved != certificate_name(name, role):
        raise AccessError(f"{proved}, as its certificate says, claims to be {certificate_name(name, role)[:100]}.")
    return name, role


def checked_address(text: str, *, network: str) -> str:
    """Return the address that a member says it can be reached at; AccessError if it is none of this job's network."""
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
    """Counts strangers that were refused, and tells of the 1st, 2nd, 4th, 8th: they cannot fill the disk.

    Parameters
    ----------
    tell : callable
        Is told columns of an event: reason, n, why.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._n, self._lock = tell, 0, Lock()

    def __call__(self, reason: str, why: str) -> None:
        """Count one more."""
        with self._lock:
            self._n += 1
            n = self._n
        if n & (n - 1) == 0:
            self._tell(reason=reason, n=n, why=why[:300])

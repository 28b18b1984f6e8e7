"""The network of a job: sockets of one machine, or TCP between addresses, encrypted or in clear."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from socket import socket
from threading import Lock

from labkit.core.errors import InputError, unknown
from labkit.elastic.protocol.messages.greeting import Hello, greeted
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
    """Addresses and ports of the processes of a job.

    Attributes
    ----------
    network : NetworkMode
        Transport between the processes.
    hosts : tuple of str
        Addresses in turn: server i and worker i have `hosts[i % len(hosts)]`; the controller has the first.
    ports : (int, int)
        First and last port for listeners; (0, 0): any free port.
    job : str
        Name of the job in its certificates.
    """

    network: NetworkMode = NetworkMode.LOCAL
    hosts: tuple[str, ...] = ()
    ports: tuple[int, int] = (0, 0)
    job: str = ""

    @classmethod
    def checked(cls, network: str, addresses: Sequence[str], ports: Sequence[int] | None, *, job: str) -> NetworkConfig:
        """Return the configuration that a user asks for.

        Raises
        ------
        InputError
            If there is no such network, or addresses or ports are not allowed with it.
        """
        if network not in list(NetworkMode):
            raise unknown("network", network, list(NetworkMode))
        mode = NetworkMode(network)
        if mode == NetworkMode.LOCAL:
            if addresses or ports:
                given = f"addresses {', '.join(addresses)}" if addresses else f"ports {ports}"
                raise InputError(f'{given} for network="local", which has none; say network="tls", or leave them out.')
            return cls()
        return cls(mode, tuple(map(checked_host, addresses or ("127.0.0.1",))), _checked_ports(ports or (0, 0)), job)

    def host_of(self, name: str) -> str:
        """Return the address for a process whose name ends with its number."""
        number = name.rpartition("-")[2]
        return self.hosts[int(number) % len(self.hosts) if number.isdigit() else 0]

    def listen(self, scheme: Scheme, name: str) -> tuple[Address, socket]:
        """Return an address for a process, and a socket that is bound to it.

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
    """Return the address of a machine; InputError if peers cannot connect to it. `of` is added to the message."""
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

    Raises
    ------
    AccessError
        If it is malformed or of another version, or its certificate is for another name or role.
    """
    said = greeted(peer)
    kind, _, proved = peer.proved.partition(" ")
    named = certificate_name(said.name, said.role)
    if kind == "certificate" and proved != named:
        raise AccessError(f"{proved}, as its certificate says, claims to be {named[:100]}.")
    return said


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

    Parameters
    ----------
    report : callable
        Takes the columns of an event by keyword: reason, n, why.
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

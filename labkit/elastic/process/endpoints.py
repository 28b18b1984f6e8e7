"""Addresses and credentials of a member of a job: of the controller, of servers, and its own."""

from __future__ import annotations

from pathlib import Path
from socket import socket
from typing import Any

from labkit.elastic.process.credentials import ADDRESS
from labkit.elastic.protocol.messages.greeting import greeted
from labkit.elastic.protocol.network import CONTROLLER, NetworkConfig, NetworkMode, certificate_name
from labkit.elastic.protocol.spec import CONTROLLER_SOCKET
from labkit.elastic.transport import Access, Address, AddressError, Certificates, Listener, Peer, Scheme, bound


class Endpoints:
    """Addresses and credentials of one member, for every transport.

    Parameters
    ----------
    folder : Path
        Home of the member.
    reach : NetworkConfig
        Addresses and ports of the member.
    scheme : str
        Transport of connections other than that to the controller.
    name, role : str
        Name of the member, and "server", "worker" or "host" (a launcher).

    Attributes
    ----------
    address : str
        Address at which the member listens; "" for members that do not listen.
    unable : str
        Reason why it cannot listen though it should; "" otherwise.
    """

    def __init__(self, folder: Path, *, reach: NetworkConfig, scheme: str, name: str, role: str) -> None:
        self._folder, self._reach, self._name = folder, reach, name
        self.network = NetworkMode(reach.network)
        self.data = self._control = Access()
        if self.network is not NetworkMode.LOCAL:
            certificates = Certificates.of(certificate_name(name, role), job=reach.job, folder=folder)
            self.data = self._control = Access(certificates=certificates)
        self._scheme = Scheme(scheme)
        self._sock: socket | None = None
        self.address = self.unable = ""

    def to_controller(self) -> dict[str, Any]:
        """Return the controller's present address and the credentials for it: arguments of `connect`."""
        if self.network is NetworkMode.LOCAL:
            return {"address": Address.parse(f"unix:{self._folder / CONTROLLER_SOCKET}"), "access": self._control}
        where = Address.parse((self._folder / ADDRESS).read_text())
        return {"address": where, "access": self._control, "expected": certificate_name(CONTROLLER, CONTROLLER)}

    def to_server(self, name: str, address: str) -> dict[str, Any]:
        """Return a server's address and the credentials for it: arguments of `connect`."""
        found = {"address": Address.parse(address), "access": self.data}
        return found if self.network is not NetworkMode.TLS else {**found, "expected": certificate_name(name, "server")}

    def admitted(self, controller: Peer) -> None:
        """Take the token of connections in clear from the controller's greeting."""
        if self.network is NetworkMode.TCP:
            self.data = Access(token=bytes.fromhex(greeted(controller).token), plaintext=True)

    def reserve(self) -> None:
        """Bind the socket; peers that connect wait until `listen`, when this member can authenticate them."""
        try:
            if self.network is NetworkMode.LOCAL:
                address = Address.parse(f"{self._scheme}:{self._folder / self._name}.sock")
                self._sock = bound(address)
            else:
                address, self._sock = self._reach.listen(self._scheme, self._name)
        except AddressError as error:
            self.unable = str(error)
        else:
            self.address = str(address)

    def listen(self, **terms: Any) -> Listener | None:
        """Accept connections; `terms` are those of a `Listener`. None if the socket could not be bound."""
        if self._sock is None:
            return None
        return Listener(Address.parse(self.address), access=self.data, sock=self._sock, **terms)

"""How a member of a job finds the controller and the servers, shows who it is, and knows who they are."""

from __future__ import annotations

from pathlib import Path
from socket import socket
from typing import Any

from labkit.elastic.process.credentials import ADDRESS
from labkit.elastic.protocol.network import CONTROLLER, NetworkConfig, NetworkMode, certificate_name
from labkit.elastic.transport import Access, Address, AddressError, Certificates, Listener, Peer, Scheme, bound


class Endpoints:
    """The ways of one member, whatever carries them.

    Parameters
    ----------
    folder : Path
        Its home: what it may read.
    reach : NetworkConfig
        Where processes of the job can be reached.
    scheme : str
        Of connections that are not the controller's.
    name, role : str
        Who it is.

    Attributes
    ----------
    address : str
        Where it can be reached; empty for those who are not.
    unable : str
        Why it cannot be reached though it should be.
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
        """Return where the controller is now, and what opens its door: arguments of `connect`."""
        if self.network is NetworkMode.LOCAL:
            return {"address": Address.parse(f"unix:{self._folder / 'controller.sock'}"), "access": self._control}
        where = Address.parse((self._folder / ADDRESS).read_text())
        return {"address": where, "access": self._control, "expected": certificate_name(CONTROLLER, CONTROLLER)}

    def to_server(self, name: str, address: str) -> dict[str, Any]:
        """Return where a server is, and what opens its door: arguments of `connect`."""
        found = {"address": Address.parse(address), "access": self.data}
        return found if self.network is not NetworkMode.TLS else {**found, "expected": certificate_name(name, "server")}

    def admitted(self, controller: Peer) -> None:
        """Take what the controller hands out to its members: the token of connections in clear."""
        if self.network is NetworkMode.TCP:
            self.data = Access(token=bytes.fromhex(str(controller.hello["token"])), plaintext=True)

    def reserve(self) -> None:
        """Begin to listen; whoever connects waits until `listen`, when this member knows whom to let in."""
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
        """Let others in; `terms` are those of a Listener. None if it cannot be reached."""
        if self._sock is None:
            return None
        return Listener(Address.parse(self.address), access=self.data, sock=self._sock, **terms)

"""Credentials of the members of a job, and the connections to its controller that they open.

The key of the certificate authority, and the token of connections in clear, are only in the memory of the process that
started the job and of the controller. The former sends them through a pipe to each controller that it starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.codec import greeted, hello
from labkit.elastic.protocol.program import CONTROLLER_SOCKET
from labkit.elastic.protocol.sites import CONTROLLER, HOST, NetworkConfig, NetworkMode, certificate_name
from labkit.elastic.transport import (
    Access,
    Address,
    AddressError,
    Authority,
    Certificates,
    Listener,
    Peer,
    Scheme,
    bound,
    new_token,
    private_folder,
)
from labkit.system.private_files import write_private

MEMBERS, ADDRESS, CARD = "members", "controller.address", "host.json"
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
"""Pattern of names of files that are sent to another host."""
DAYS = 365
"""Days for which certificates are valid; they are accepted only within their job."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets that give access to all processes of a job."""

    authority: bytes = field(repr=False)
    """Key and certificate of the authority that signs the members' certificates (PEM)."""
    token: bytes = field(repr=False)
    """Authenticates connections in clear."""

    @classmethod
    def of(cls, reach: NetworkConfig) -> Secrets | None:
        """Make the secrets of a new job; None for a job on local sockets."""
        if reach.network == NetworkMode.LOCAL:
            return None
        return cls(Authority(reach.job, days=DAYS).dump(), new_token())

    def write(self) -> bytes:
        """Return them as JSON for a pipe."""
        return json.dumps({"authority": self.authority.decode(), "token": self.token.hex()}).encode()

    @classmethod
    def read(cls, raw: bytes) -> Secrets:
        """Return the secrets that `write` encoded."""
        values = json.loads(raw)
        return cls(values["authority"].encode(), bytes.fromhex(values["token"]))


def packed(content: Mapping[str, bytes]) -> bytes:
    """Return files, content by name, as a tar; their mode is 0600."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, raw in content.items():
            card = tarfile.TarInfo(name)
            card.size, card.mode = len(raw), 0o600
            archive.addfile(card, io.BytesIO(raw))
    return out.getvalue()


def unpack(raw: bytes, folder: Path) -> None:
    """Write the files of `packed` into a folder of mode 0700; InputError if the tar has any other entry."""
    private_folder(folder)
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for card in archive:
                file = archive.extractfile(card) if card.isfile() else None
                if file is None or not FILE.fullmatch(card.name):
                    raise InputError(
                        f"the archive of a launcher's home holds {card.name[:100]!r}, which does not belong there."
                    )
                write_private(folder / card.name, file.read())
    except tarfile.TarError as error:
        raise InputError(f"the archive of a launcher's home cannot be read: {error}.") from None


class Credentials:
    """The folders of the members of a job, on the host of its controller.

    `secrets`: None for a job on local sockets: all its processes use the folder of the job.
    """

    def __init__(self, folder: Path, *, reach: NetworkConfig, secrets: Secrets | None) -> None:
        self.folder, self._reach, self._secrets = folder, reach, secrets
        self._authority = None if secrets is None else Authority.parse(secrets.authority, job=reach.job)

    def of(self, name: str) -> Path:
        """Return the folder of a member."""
        return self.folder if self._authority is None else self.folder / MEMBERS / name

    def furnish(self, name: str, role: str, *, files: Iterable[str]) -> Path:
        """Make the folder of a member, with certificate, key, the controller's address and some files of the job."""
        home = self.of(name)
        if self._authority is None:
            return home
        private_folder(home.parent)
        shutil.rmtree(home, ignore_errors=True)
        self._issue(name, role)
        for file in (ADDRESS, *files):
            os.link(self.folder / file, home / file)
        return home

    def papers(self, name: str, role: str) -> dict[str, bytes]:
        """Return certificate and key of a member on another host, content by name of the file."""
        assert self._authority is not None
        return self._authority.papers(certificate_name(name, role))

    def archive(self, launcher: str, host: str, *, files: Iterable[str]) -> bytes:
        """Return the files of a launcher as a tar: certificate, key, the controller's address, files of the job."""
        content = {file: (self.folder / file).read_bytes() for file in (ADDRESS, *files)}
        content[CARD] = json.dumps({"name": launcher, "host": host}).encode()
        return packed({**content, **self.papers(launcher, HOST)})

    def _issue(self, name: str, role: str) -> Certificates:
        assert self._authority is not None
        return self._authority.issue(certificate_name(name, role), folder=self.of(name))

    def clear(self, name: str) -> None:
        """Remove the folder of a member that has ended, with its key."""
        if self._authority is not None:
            shutil.rmtree(self.of(name), ignore_errors=True)

    def close(self) -> None:
        """Remove the folders of all members, with their keys."""
        shutil.rmtree(self.folder / MEMBERS, ignore_errors=True)
        (self.folder / ADDRESS).unlink(missing_ok=True)

    def gate(self, **terms: Any) -> Listener | None:
        """Return the controller's listener on the network; None for local sockets. `terms` are those of a `Listener`.

        A controller that replaces another takes the same port, so that members on other hosts find it. If that port is
        in use by now, it takes another, and writes its address into the folders of the members on this host.
        """
        if self._secrets is None:
            return None
        private_folder(self.folder / MEMBERS)
        certificates = self._issue(CONTROLLER, CONTROLLER)
        address, sock = self._listen()
        for place in (self.folder, *(self.folder / MEMBERS).glob("*/")):
            write_private(place / ADDRESS, str(address).encode())
        token = ""
        if self._reach.network == NetworkMode.TCP:
            token = self._secrets.token.hex()  # over TLS, to authenticated members only
        return Listener(
            address,
            access=Access(certificates=certificates),
            sock=sock,
            hello=hello(CONTROLLER, CONTROLLER, token=token),
            **terms,
        )

    def _listen(self) -> tuple[Address, socket]:
        """Listen at the address of the former controller, if there was one and it is free."""
        before = self.folder / ADDRESS
        if before.exists():
            address = Address.parse(before.read_text())
            with contextlib.suppress(AddressError):
                return address, bound(address)
        return self._reach.listen(Scheme.TLS, CONTROLLER)


class Endpoints:
    """Addresses and credentials of one member, for every transport.

    `scheme`: transport of connections other than that to the controller. `name` and `role`: name of the member, and
    "server", "worker" or "host" (a launcher).
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
        # `address`: address at which the member listens; "" for members that do not listen; `unable`: reason why it
        # cannot listen though it should; "" otherwise
        self.address = self.unable = ""

    def to_controller(self) -> dict[str, Any]:
        """Return the controller's present address and the credentials for it: arguments of `connect`."""
        if self.network is NetworkMode.LOCAL:
            return {"address": Address.parse(f"unix:{self._folder / CONTROLLER_SOCKET}"), "access": self._control}
        where = Address.parse((self._folder / ADDRESS).read_text())
        return {"address": where, "access": self._control, "expected": certificate_name(CONTROLLER, CONTROLLER)}

    def to_server(self, name: str, address: str) -> dict[str, Any]:
        """Return a server's address and the credentials for it: arguments of `connect`."""
        options = {"address": Address.parse(address), "access": self.data}
        return (
            options
            if self.network is not NetworkMode.TLS
            else {**options, "expected": certificate_name(name, "server")}
        )

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

"""Addresses of processes, and the credentials that a connection to one needs."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from labkit.core.errors import unknown
from labkit.elastic.transport.certificates import Certificates
from labkit.elastic.transport.errors import AddressError
from labkit.system.unix_sockets import UNIX_PATH_BYTES, fits

TOKEN_BYTES = 32


class Scheme(StrEnum):
    """The transports."""

    SHM = "shm"
    """Shared memory, with a unix socket for small frames and notices: one host, one user."""
    UNIX = "unix"
    """A unix socket: one host, one user."""
    TLS = "tls"
    """TCP with mutual TLS 1.3, between hosts."""
    TCP = "tcp"
    """TCP without encryption, for an isolated network; both ends prove that they know the token."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a process listens.

    >>> Address.parse("tls://10.0.0.7:4000").port
    4000
    >>> str(Address.parse("unix:/run/job/ps-0"))
    'unix:/run/job/ps-0'
    """

    scheme: Scheme
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether both ends are on one host."""
        return self.scheme in (Scheme.SHM, Scheme.UNIX)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an address: shm:PATH, unix:PATH, tls://HOST:PORT, tcp://HOST:PORT."""
        name, colon, rest = text.partition(":")
        if not colon or name not in list(Scheme):
            raise unknown("scheme of an address", name, list(Scheme))
        scheme = Scheme(name)
        if scheme in (Scheme.SHM, Scheme.UNIX):
            return cls(scheme, path=_checked_path(rest, text))
        host, colon, port = rest.removeprefix("//").rpartition(":")
        if not rest.startswith("//") or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise AddressError(f"'{text}' is no address; expected for example {scheme}://10.0.0.7:4000.")
        return cls(scheme, host=host.removeprefix("[").removesuffix("]"), port=int(port))

    def __str__(self) -> str:
        if self.is_local:
            return f"{self.scheme}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def _checked_path(path: str, text: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise AddressError(f"'{text}' is no address; expected an absolute path, for example unix:/run/user/1000/ps-0.")
    if not fits(path):
        raise AddressError(
            f"'{text}': a unix socket's path has at most {UNIX_PATH_BYTES} bytes; this one has "
            f"{len(os.fsencode(path))}. Give it a shorter name or folder, for example /tmp/labkit-JOB."
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The credentials of one end of a connection.

    Attributes
    ----------
    certificates : Certificates, optional
        For tls: the certificate of this process, and the authority of the job.
    token : bytes, optional
        For tcp: a secret of the job, distributed by the launcher; at least 16 bytes.
    plaintext : bool
        Whether tcp may be used, although every host on the network can read and change it.
    uid : int
        For unix and shm: the user whose processes may connect.
    """

    certificates: Certificates | None = None
    token: bytes = field(default=b"", repr=False)
    plaintext: bool = False
    uid: int = field(default_factory=os.getuid)

    def check(self, address: Address) -> None:
        """Raise AddressError if an address needs credentials that are missing here."""
        if address.scheme is Scheme.TLS and self.certificates is None:
            raise AddressError(f"{address} needs certificates; make them with certificates.Authority for this job.")
        if address.scheme is not Scheme.TCP:
            return
        if not self.plaintext:
            raise AddressError(
                f"{address} would send everything in clear; use tls://, or say plaintext=True on an isolated network."
            )
        if len(self.token) < 16:
            raise AddressError(
                f"{address} needs a token of at least 16 bytes, this one has {len(self.token)}; new_token() makes one."
            )


def new_token() -> bytes:
    """Return a fresh secret from the operating system."""
    return secrets.token_bytes(TOKEN_BYTES)

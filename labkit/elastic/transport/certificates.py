"""Certificates of one job: its own authority, and a certificate and key for each process."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from labkit.core.errors import InputError
from labkit.elastic.transport.errors import AccessError
from labkit.system.private_files import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, KeyUsage, Name


CLOCK_SKEW = timedelta(days=1)
"""How long before its creation a certificate becomes valid, because the clocks of hosts differ."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of one process: its certificate, its key, and the authority that every process of the job trusts."""

    job: str
    """Name of the job, which every certificate contains; a client checks it."""
    authority: Path
    certificate: Path
    key: Path
    """`authority`, `certificate` and `key`: PEM files; the key has mode 0600."""

    @classmethod
    def of(cls, member: str, *, job: str, folder: Path) -> Self:
        """Return the paths of the files of a process in its folder."""
        return cls(job, folder / "authority.pem", folder / f"{member}.pem", folder / f"{member}.key")

    def check(self) -> None:
        """Raise AccessError if a file is missing, or other users can read the key."""
        for path in (self.authority, self.certificate, self.key):
            if not path.is_file():
                raise AccessError(f"{path} is not there; the launcher hands it out (certificates.Authority.issue).")
        check_private(self.key)


class Authority:
    """The authority of one job; its key stays in the memory of this process, and of one that it is handed to.

    `job`: name of the job: letters, digits, dots and hyphens. `now`: the time, for tests.
    """

    def __init__(self, job: str, *, days: int = 30, now: datetime | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.job = _checked_name(job)
        begin = now or datetime.now(UTC)
        self._valid = (begin - CLOCK_SKEW, begin + timedelta(days=days))
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign_itself()

    def issue(self, member: str, *, folder: Path) -> Certificates:
        """Write certificate and key of a process into a folder of mode 0700, and return where they are."""
        private_folder(folder)
        for name, content in self.papers(member).items():
            write_private(folder / name, content)
        return Certificates.of(member, job=self.job, folder=folder)

    def papers(self, member: str) -> dict[str, bytes]:
        """Make certificate and key of a process; return the content of each file of its folder, by name."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(key, _checked_name(member))
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        certificates = Certificates.of(member, job=self.job, folder=Path())
        return {
            certificates.authority.name: self.certificate.public_bytes(pem),
            certificates.certificate.name: certificate.public_bytes(pem),
            certificates.key.name: key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        }

    def dump(self) -> bytes:
        """Return the authority and its key as PEM, for a process that issues certificates."""
        from cryptography.hazmat.primitives import serialization

        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        key = self._key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        return key + self.certificate.public_bytes(pem)

    @classmethod
    def parse(cls, raw: bytes, *, job: str) -> Self:
        """Read what `dump` returned; raise AccessError if it is of another job."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        authority = cls(job)
        authority._key = serialization.load_pem_private_key(raw, password=None)  # type: ignore[assignment]
        authority.certificate = x509.load_pem_x509_certificate(raw)
        if authority.certificate.subject != authority._name():
            held = authority.certificate.subject.rfc4514_string()
            raise AccessError(f"what was handed over holds the {held}, not that of {job}.")
        authority._valid = authority.certificate.not_valid_before_utc, authority.certificate.not_valid_after_utc
        return authority

    def _name(self) -> Name:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {self.job}")])

    def _builder(self, key: EllipticCurvePrivateKey, name: str) -> CertificateBuilder:
        """Return a certificate with the fields that the authority's own and the issued ones share."""
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begin, end = self._valid
        mine = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name())
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(mine), critical=False)
        )

    def _sign_itself(self) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        return (
            self._builder(self._key, f"authority of {self.job}")
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _sign(self, key: EllipticCurvePrivateKey, member: str) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        names = x509.SubjectAlternativeName([x509.DNSName(member), x509.DNSName(self.job)])
        both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        return (
            self._builder(key, member)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(both, critical=False)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _usage(*, signs_certificates: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9.-]{0,49}", name):  # an authority's name, 64 at most, contains it
        raise InputError(
            f"'{name}' cannot stand in a certificate; use a letter, then up to 49 letters, digits, dots and hyphens."
        )
    return name


def check_private(path: Path) -> None:
    """Raise AccessError if other users can read a key."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise AccessError(f"{path} has mode {mode:04o}: others can read this key; chmod 600 {path}")


def private_folder(path: Path) -> Path:
    """Return a folder that only its owner can enter; create it with mode 0700 if it does not exist.

    Raise AccessError if it belongs to another user, other users can enter it, or it is a link.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise AccessError(f"{path} is no folder of its own; sockets and keys go into a folder, not a link to one.")
    if status.st_uid != os.getuid():
        raise AccessError(f"{path} belongs to uid {status.st_uid}, not to uid {os.getuid()}; give another folder.")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise AccessError(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}; 0700 is needed: chmod 700 {path}")
    return path

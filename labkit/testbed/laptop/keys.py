"""Keys of a laptop testbed: one per host, and one to log in with."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from labkit.testbed.laptop.plan import BedPlan, Spot, write_private


def make_keys(plan: BedPlan) -> None:
    """Write missing keys, the authorized keys, and the host keys for the client."""
    login = _key(plan, None)
    lines = [f"{_name(spot)} {_key(plan, spot)}" for spot in plan.spots]
    write_private(plan.folder / "authorized_keys", f"restrict {login} labkit-bed\n")
    write_private(plan.known_hosts, "".join(f"{line}\n" for line in lines))


def _key(plan: BedPlan, spot: Spot | None) -> str:
    """Return the public key of a host or of the login; its private key is made if it is missing."""
    path = plan.key if spot is None else plan.control(spot) / "key"
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        key = Ed25519PrivateKey.generate()
        write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        write_private(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public.read_text().strip()


def _name(spot: Spot) -> str:
    """Return the name of a host in known_hosts files."""
    return spot.address if spot.port == 22 else f"[{spot.address}]:{spot.port}"

"""The parts of a laptop testbed, written down before they are started, so that all can be found again."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from labkit.core.consent import state_folder
from labkit.system.private_files import write_private
from labkit.testbed.errors import BedError

STATE = "bed.json"
KIND = "labkit bed"
VARIABLE = "LABKIT_BED"
"""Environment variable of all processes on a bed's hosts; its value is the bed's token."""


def default_folder() -> Path:
    """Return the default folder of the laptop testbed: one per user, with a short path.

    Unix sockets, which agents have below their hosts' folders, allow about 100 characters in all.
    """
    return state_folder() / "bed"


@dataclass(frozen=True, slots=True)
class HostSlot:
    """A host of the bed."""

    name: str
    """h0, h1, ..."""
    address: str
    port: int
    """`address` and `port`: where its server listens."""


@dataclass(frozen=True, slots=True)
class BedPlan:
    """A laptop testbed."""

    folder: Path
    """All its files; `down` removes it."""
    token: str
    """Marks its processes and networks; random."""
    server: str
    """"sshd", or "paramiko" where there is none."""
    slots: tuple[HostSlot, ...]
    shaped_gbps: float | None = None
    """Rate of each host's link in either direction; None: hosts share the machine's loopback."""
    network: str = "loopback"
    """"loopback"; "root": namespaces made as root; "user": namespaces inside a user namespace."""

    def home(self, slot: HostSlot) -> Path:
        """Return the folder that is a host's home."""
        return self.folder / "hosts" / slot.name

    def control(self, slot: HostSlot) -> Path:
        """Return the folder of a host's server: its configuration, key, process number and log."""
        return self.folder / "servers" / slot.name

    def config(self, slot: HostSlot) -> Path:
        """Return the configuration file of a host's server.

        Its name is unique and plain: it identifies the server's process, whose title may escape other letters.
        """
        return self.control(slot) / f"{self.token}-{slot.name}"

    def boot_file(self, slot: HostSlot) -> Path:
        """Return the file with the boot id of a host, in place of the kernel's."""
        return self.control(slot) / "boot_id"

    def restart(self, slot: HostSlot) -> None:
        """Give a host a new boot id."""
        write_private(self.boot_file(slot), f"{uuid.uuid4()}\n")

    @property
    def hosts_file(self) -> Path:
        """The inventory."""
        return self.folder / "hosts.toml"

    @property
    def key(self) -> Path:
        """The private key for logins."""
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        """File of the hosts' keys."""
        return self.folder / "known_hosts"

    def make_folders(self) -> None:
        """Make missing folders with mode 0700."""
        ends = [folder for slot in self.slots for folder in (self.home(slot), self.control(slot))]
        for folder in [*dict.fromkeys(end.parent for end in ends), *ends]:
            folder.mkdir(mode=0o700, exist_ok=True)
        for slot in self.slots:
            if not self.boot_file(slot).exists():
                self.restart(slot)

    def write(self) -> None:
        """Write the plan atomically."""
        content = asdict(self) | {"kind": KIND, "folder": str(self.folder)}
        write_private(self.folder / STATE, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the plan of a folder; None if it has none; BedError if the file is not a plan."""
        try:
            content: dict[str, Any] = json.loads((folder / STATE).read_text())
            if content.pop("kind") != KIND:
                raise ValueError
            slots = tuple(HostSlot(**slot) for slot in content.pop("slots", None) or content.pop("spots"))
            return cls(**(content | {"folder": folder, "slots": slots}))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BedError(f"{folder / STATE} is not of a laptop testbed; remove it if it is not needed.") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a bed's folder, which is made if missing, against other starts and ends."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            if _is_still(folder, number):
                yield
                return
        finally:
            os.close(number)


def _is_still(folder: Path, number: int) -> bool:
    """Return whether an open folder is still the one at its path: it may have been removed."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(number))
    except FileNotFoundError:
        return False

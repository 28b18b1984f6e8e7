"""The laptop testbed: SSH servers on this machine that the rest of labkit uses like a testbed of machines."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from labkit.core.consent import keep
from labkit.core.errors import InputError, unknown
from labkit.system.private_files import write_private
from labkit.system.proc import memory_bytes
from labkit.testbed.errors import BedError
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop.networks import (
    PORT,
    addresses,
    build,
    entry,
    free_subnet,
    possible,
    proxy_command,
    rate_gbps,
    remove,
    whole,
)
from labkit.testbed.laptop.plan import STATE, BedPlan, HostSlot, alone, default_folder
from labkit.testbed.laptop.processes import PROC, BedProcess, end, processes
from labkit.testbed.laptop.server import all_of, server_of, sshd_program, start, user_name, write_config

MAX_HOSTS = 64
ATTEMPTS = 5
SERVERS = ("sshd", "paramiko")
MOST_OF_A_PATH = 60
"""Most characters of a bed's folder: the path of an agent's socket below it may have 107."""
CONFIG = re.compile(r" (/(?:(?! /).)*?)/servers/(h\d+)/([0-9a-f]{16})-\2(?= |$)")
"""A server's configuration in its command line; a folder may have blanks, but none before a slash."""


def make_keys(plan: BedPlan) -> None:
    """Write missing keys, the authorized keys, and the host keys for the client."""
    login = _key(plan, None)
    lines = [f"{_name(slot)} {_key(plan, slot)}" for slot in plan.slots]
    write_private(plan.folder / "authorized_keys", f"restrict {login} labkit-bed\n")
    write_private(plan.known_hosts, "".join(f"{line}\n" for line in lines))


def _key(plan: BedPlan, slot: HostSlot | None) -> str:
    """Return the public key of a host or of the login; its private key is made if it is missing."""
    path = plan.key if slot is None else plan.control(slot) / "key"
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        key = Ed25519PrivateKey.generate()
        write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        write_private(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public.read_text().strip()


def _name(slot: HostSlot) -> str:
    """Return the name of a host in known_hosts files."""
    return slot.address if slot.port == 22 else f"[{slot.address}]:{slot.port}"


def inventory_text(plan: BedPlan, *, gpus: int, cpus: float | None, memory_gb: float | None, pods: int = 1) -> str:
    """Return the inventory of a bed; its hosts are divided among pods in order."""
    n = len(plan.slots)
    cpus = cpus if cpus is not None else max(round((os.cpu_count() or 1) / n, 2), 0.1)
    memory_gb = memory_gb if memory_gb is not None else max(round(memory_bytes() / 1e9 / n, 2), 0.1)
    proxy = proxy_command(plan, python=sys.executable)
    common = ({"proxy_command": proxy} if proxy else {}) | {
        "user": user_name(),
        "key": str(plan.key),
        "known_hosts": str(plan.known_hosts),
        "config": "none",
        "python": sys.executable,
        "folder": "~/.labkit",
    }
    lines = ["# The laptop testbed: written by `labkit bed up`, removed by `labkit bed down`.", "[ssh]"]
    lines += [f"{key} = {_toml(value)}" for key, value in common.items()]
    for i, slot in enumerate(plan.slots):
        own = {
            "name": slot.name,
            "gpus": gpus,
            "cpus": float(cpus),
            "memory_gb": float(memory_gb),
            "device_type": "laptop",
            "link_gbps": float(plan.shaped_gbps or 10),
        } | ({"pod": i * pods // n} if pods > 1 else {})
        lines += ["", "[[hosts]]", *(f"{key} = {_toml(value)}" for key, value in own.items())]
        lines.append(f"ssh = {{ address = {_toml(slot.address)}, port = {slot.port} }}")
    return "\n".join(lines) + "\n"


def ssh_config_text(plan: BedPlan) -> str:
    """Return a configuration for `ssh -F` that reaches the hosts by name."""
    blocks = [f"Host {slot.name}\n  HostName {slot.address}\n  Port {slot.port}\n" for slot in plan.slots]
    proxy = proxy_command(plan, python=sys.executable)
    common = ({"ProxyCommand": proxy} if proxy else {}) | {
        "User": user_name(),
        "IdentityFile": _quoted(plan.key),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _quoted(plan.known_hosts),
        "StrictHostKeyChecking": "yes",
    }
    return "".join([*blocks, "Host *\n", *(f"  {key} {value}\n" for key, value in common.items())])


def _quoted(path: Path) -> str:
    """Return a path in the syntax of ssh's configuration, where %h would mean the host."""
    return '"' + str(path).replace("%", "%%") + '"'


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host of the bed.

    Attributes
    ----------
    name, address, port
        Where it is.
    pid : int or None
        Its server's process; None where that is gone.
    """

    name: str
    address: str
    port: int
    pid: int | None

    @property
    def alive(self) -> bool:
        """True while its server runs."""
        return self.pid is not None


@dataclass(frozen=True, slots=True)
class Bed:
    """A laptop testbed that is up, or was.

    Attributes
    ----------
    plan : BedPlan
        Its parts.
    notes : tuple of str
        What differs from the request, in sentences.
    """

    plan: BedPlan
    notes: tuple[str, ...] = ()

    @classmethod
    def up(
        cls,
        n_hosts: int = 4,
        *,
        folder: str | Path | None = None,
        gpus: int = 0,
        cpus: float | None = None,
        memory_gb: float | None = None,
        pods: int = 1,
        server: str | None = None,
        shaped: str | float | None = None,
    ) -> Self:
        """Start a testbed on this machine: OpenSSH servers as this user, on loopback addresses, with keys of their own.

        A bed that is up already is returned as it is; servers that are gone are started again.

        Parameters
        ----------
        n_hosts : int
            How many hosts: h0, h1, ...
        folder : path, optional
            Where all its files go; by default one folder per user, below ~/.local/state.
        gpus : int
            GPUs that the inventory says each host has; nothing checks that they exist.
        cpus, memory_gb : float, optional
            The same for cores and memory; by default each host's share of this machine.
        pods : int
            Schedulers among which the inventory divides the hosts, in their order.
        server : str, optional
            "sshd", or "paramiko", a server in Python; by default sshd, and paramiko where there is none.
        shaped : str or float, optional
            Rate of each host's link in either direction, "200mbit" or in Gbps. Hosts then have networks of their own,
            as root or in a user namespace. If the machine does not support that, a note has the
            reason.

        Raises
        ------
        InputError
            If there cannot be such a bed.
        BedError
            If it does not start, or another one is up in this folder.
        """
        where = _checked_folder(folder)
        if not 1 <= n_hosts <= MAX_HOSTS:
            raise InputError(f"{n_hosts} hosts; expected 1 to {MAX_HOSTS}.")
        if not 1 <= pods <= n_hosts:
            raise InputError(f"{pods} pods of {n_hosts} hosts; expected 1 to {n_hosts}.")
        server, notes = _server(server)
        gbps = None if shaped is None else rate_gbps(shaped)
        with alone(where):
            plan = BedPlan.read(where)
            if plan is None:
                _refuse_strangers(where)
                plan, more = _new(where, n_hosts, server=server, gbps=gbps)
                notes += more
            elif (len(plan.slots), plan.server) != (n_hosts, server) or not whole(plan):
                state = "up" if whole(plan) else "half up"
                raise BedError(
                    f"a bed of {len(plan.slots)} hosts ({plan.server}) is {state} in {where}; labkit bed down ends it, "
                    "or give another --folder."
                )
            elif plan.shaped_gbps != gbps:
                links = "without limits" if plan.shaped_gbps is None else f"of {plan.shaped_gbps:g} Gbps"
                notes += (f"the bed that is up has links {links}; to change that, labkit bed down first.",)
            plan = _started(plan)
            write_private(plan.folder / "ssh_config", ssh_config_text(plan))
            write_private(plan.hosts_file, inventory_text(plan, gpus=gpus, cpus=cpus, memory_gb=memory_gb, pods=pods))
        Inventory.read(plan.hosts_file)
        keep()  # it was written just now
        return cls(plan, notes)

    @classmethod
    def of(cls, folder: str | Path | None = None) -> Self:
        """Return the bed of a folder.

        Raises
        ------
        BedError
            If there is none.
        """
        where = _checked_folder(folder)
        plan = BedPlan.read(where)
        if plan is None:
            raise BedError(f"there is no laptop testbed in {where}; start one: labkit bed up.")
        return cls(plan)

    @property
    def folder(self) -> Path:
        """Folder of all its files."""
        return self.plan.folder

    @property
    def hosts_file(self) -> Path:
        """Its inventory, for `Inventory.read` and `--inventory`."""
        return self.plan.hosts_file

    @property
    def inventory(self) -> Inventory:
        """Its machines."""
        return Inventory.read(self.hosts_file)

    def home(self, name: str) -> Path:
        """Return the home folder of a host."""
        return self.plan.home(self._spot(name))

    def _spot(self, name: str) -> HostSlot:
        for slot in self.plan.slots:
            if slot.name == name:
                return slot
        raise unknown("host", name, [slot.name for slot in self.plan.slots])

    def status(self) -> list[HostStatus]:
        """Return the state of each host."""
        found = [(slot, server_of(self.plan, slot)) for slot in self.plan.slots]
        return [HostStatus(slot.name, slot.address, slot.port, each.pid if each else None) for slot, each in found]

    def kill(self, name: str) -> None:
        """End a host like a power cut: its server and all its processes at once; its files stay.

        It has another boot id from then on.

        Raises
        ------
        InputError
            If there is no such host.
        BedError
            If something cannot be ended.
        """
        slot = self._spot(name)
        with alone(self.folder):
            if left := end(lambda: all_of(self.plan, host=slot), at_once=True):
                raise BedError(f"these processes of {name} do not end: {', '.join(map(_describe, left))}.")
            self.plan.restart(slot)

    def reboot(self, name: str, *, keep_files: bool = True) -> None:
        """Restart a host: its processes are gone, and it has another boot id.

        Parameters
        ----------
        name : str
            The host.
        keep_files : bool
            False: labkit's folder there is removed too, as below /tmp.

        Raises
        ------
        InputError, BedError
            As `kill` and `revive`.
        """
        self.kill(name)
        if not keep_files:
            with alone(self.folder):
                shutil.rmtree(self.home(name) / ".labkit", ignore_errors=True)
        self.revive()

    def revive(self) -> None:
        """Start servers that are gone again, at their addresses; hosts keep their files.

        Raises
        ------
        BedError
            If a port is in use; `Bed.up` then finds another one, and writes it into the inventory.
        """
        with alone(self.folder):
            moved = _started(self.plan) != self.plan
        if moved:
            raise BedError("a host is at another port now, because its own was taken: labkit bed up shows it.")

    def down(self) -> None:
        """End all processes of the hosts and the servers, and remove all files; nothing of it need exist.

        Raises
        ------
        BedError
            If something cannot be ended.
        """
        down(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def down(folder: str | Path | None = None) -> bool:
    """End the bed of a folder, also one that did not come up wholly; return False where there is none."""
    where = _checked_folder(folder)
    if not where.exists():
        return False
    with alone(where):
        plan = BedPlan.read(where)
        if plan is None:
            if not any(where.iterdir()):
                where.rmdir()
            return False
        _end(plan)
        remove(plan)
        try:
            _clear(where)
        except OSError:  # a bed that is being started was written meanwhile
            _end(plan)
            _clear(where)
        where.rmdir()
    if where == default_folder().absolute():
        with suppress(OSError):  # it has other files
            where.parent.rmdir()
    return True


def _end(plan: BedPlan) -> None:
    if left := end(lambda: all_of(plan)):
        raise BedError(f"these processes of the bed do not end: {', '.join(map(_describe, left))}.")


def _clear(where: Path) -> None:
    """Remove all files of a bed, its plan last: an interrupted removal can be repeated."""
    for path in sorted(where.iterdir(), key=lambda path: path.name == STATE):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _new(where: Path, n_hosts: int, *, server: str, gbps: float | None) -> tuple[BedPlan, tuple[str, ...]]:
    """Return a new plan, written to disk, with its networks if links are to be limited; and notes."""
    token = secrets.token_hex(8)
    plain = BedPlan(where, token, server, _spots(n_hosts))
    kind, qdisc, why = ("", "", "") if gbps is None else possible()
    if kind:
        there = addresses(n_hosts, subnet=free_subnet(token))
        slots = tuple(HostSlot(f"h{i}", address, PORT) for i, address in enumerate(there))
        plan = BedPlan(where, token, server, slots, shaped_gbps=gbps, network=kind)
        plan.write()
        try:
            build(plan, qdisc=qdisc)
            return plan, ()
        except BedError as error:
            end(lambda: all_of(plan))
            remove(plan)
            why = str(error)
    plain.write()
    return plain, () if gbps is None else (f"links are not limited: {why}.",)


def _started(plan: BedPlan) -> BedPlan:
    """Start servers that do not run; a server whose port is in use gets another one."""
    for _ in range(ATTEMPTS):
        missing = [slot for slot in plan.slots if server_of(plan, slot) is None]
        plan.make_folders()
        make_keys(plan)
        for slot in missing:
            write_config(plan, slot)
        taken = start(plan, missing, inside=entry(plan))
        if not taken:
            return plan
        slots = [replace(slot, port=free_port(slot.address)) if slot in taken else slot for slot in plan.slots]
        plan = replace(plan, slots=tuple(slots))
        plan.write()
    raise BedError(f"no free ports for {', '.join(slot.name for slot in taken)}; try again.")


def _spots(n_hosts: int) -> tuple[HostSlot, ...]:
    """Return hosts at 127.0.0.2, 127.0.0.3, ..., or at ports of 127.0.0.1 if there is no other address."""
    addresses = [f"127.0.0.{i + 2}" for i in range(n_hosts)]
    if not all(_is_here(address) for address in addresses):
        addresses = ["127.0.0.1"] * n_hosts
    slots: list[HostSlot] = []
    for i, address in enumerate(addresses):
        port = free_port(address, but={slot.port for slot in slots})
        slots.append(HostSlot(f"h{i}", address, port))
    return tuple(slots)


def _is_here(address: str) -> bool:
    try:
        free_port(address)
    except OSError:
        return False
    return True


def free_port(address: str, *, but: set[int] | frozenset[int] = frozenset()) -> int:
    """Return a port that no process listens on."""
    while True:
        with socket.socket() as found:
            found.bind((address, 0))
            port: int = found.getsockname()[1]
        if port not in but:
            return port


def _server(kind: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the kind of server, and a note if it is not sshd."""
    if kind is not None and kind not in SERVERS:
        raise unknown("server", kind, SERVERS)
    if kind == "paramiko" or (kind is None and not sshd_program()):
        note = (
            ()
            if kind
            else ("no sshd for this user here (apt-get install openssh-server): a server in Python stands in.",)
        )
        return "paramiko", note
    if not sshd_program():
        raise BedError("there is no sshd for this user here; apt-get install openssh-server, or --server paramiko.")
    return "sshd", ()


def _checked_folder(folder: str | Path | None) -> Path:
    where = (default_folder() if folder is None else Path(folder).expanduser()).absolute()
    if len(str(where)) > MOST_OF_A_PATH:
        raise InputError(
            f"the bed's folder {where} has {len(str(where))} characters; expected at most {MOST_OF_A_PATH}, because "
            "Unix sockets below it have little room. Give a shorter --folder."
        )
    return where


def _refuse_strangers(where: Path) -> None:
    """Refuse a folder with other files, which `down` would remove."""
    if found := sorted(path.name for path in where.iterdir()):
        raise BedError(f"{where} has something else in it ({', '.join(found[:3])}); give an empty or new --folder.")
    where.chmod(0o700)


def _describe(each: BedProcess) -> str:
    return f"{each.pid} ({each.command[:60]})"


@dataclass(frozen=True, slots=True)
class FoundBed:
    """A laptop testbed with running processes.

    Attributes
    ----------
    folder : Path
        Its folder, which may be gone.
    token : str
        Token of its processes.
    hosts : tuple of str
        Hosts whose servers run.
    whole : bool
        Whether its plan still exists.
    """

    folder: Path
    token: str
    hosts: tuple[str, ...]
    whole: bool

    @property
    def is_default(self) -> bool:
        """Whether it is the one that `labkit bed down` ends."""
        return self.folder == default_folder().absolute()


def beds() -> list[FoundBed]:
    """Return the laptop testbeds of this user whose servers run, by folder."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for each in processes():
        for match in CONFIG.finditer(each.command) if _is_own(each) else ():
            hosts.setdefault((match[1], match[3]), set()).add(match[2])
    return [
        FoundBed(Path(folder), token, tuple(sorted(names)), _plan_exists(Path(folder), token))
        for (folder, token), names in sorted(hosts.items())
    ]


def end_bed(found: FoundBed) -> None:
    """End a bed, or the processes of a bed whose files are gone; BedError if something cannot be ended."""
    if found.whole:
        down(found.folder)
        return
    plan = BedPlan(found.folder, found.token, "sshd", tuple(HostSlot(name, "127.0.0.1", 0) for name in found.hosts))
    if left := end(lambda: all_of(plan)):
        raise BedError(f"these processes of the bed do not end: {', '.join(str(each.pid) for each in left)}.")


def _is_own(each: BedProcess) -> bool:
    try:
        return (PROC / str(each.pid)).stat().st_uid == os.getuid()
    except OSError:
        return not PROC.exists()


def _plan_exists(folder: Path, token: str) -> bool:
    try:
        plan = BedPlan.read(folder)
    except BedError:
        return False
    return plan is not None and plan.token == token

"""Keys of hosts: fetch them, show them, and add those that are not known yet to the file of trusted ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import paramiko

from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.connect import CONNECT_S, explained, transport, way_to
from labkit.testbed.ssh.host_rows import HostRows

MAX_THREADS = 64


class KeyState(StrEnum):
    """What became of a host's key."""

    KNOWN = "known"
    """It was trusted already."""
    NEW = "new"
    """It is not trusted: nobody agreed."""
    ADDED = "added"
    """It was new, and is trusted now."""
    CHANGED = "CHANGED"
    """Another key of this host is trusted; nothing was added."""
    FAILED = "failed"
    """The host did not tell its key."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key of one host.

    Attributes
    ----------
    host, name : str
        The host, and what the file of trusted keys calls it.
    kind, fingerprint : str
        Such as "ssh-ed25519" and "SHA256:..."; compare the latter with what `ssh-keygen -lf` says on the host.
    state : KeyState
        What became of it.
    error : str
        Why the host did not tell it, or what to do about a key that changed.
    """

    host: str
    name: str
    kind: str = ""
    fingerprint: str = ""
    state: KeyState = KeyState.NEW
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the key is trusted."""
        return self.state in (KeyState.KNOWN, KeyState.ADDED)

    @property
    def why(self) -> str:
        """Why it is not trusted; empty if it is."""
        return "" if self.ok else self.error or str(self.state)

    def __str__(self) -> str:
        return f"{self.host}  {self.state}  {self.kind} {self.fingerprint}  {self.error}".rstrip()


class KeyTable(HostRows[HostKey]):
    """The keys of some hosts."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def scan(machine: Machine, *, known_hosts: Path, timeout_s: float = CONNECT_S) -> paramiko.PKey:
    """Return the key that a host shows, without logging in to it.

    Parameters
    ----------
    known_hosts : Path
        Keys of the machines on the way to it; only of those.

    Raises
    ------
    HostError
        If it cannot be reached.
    """
    with explained(machine, known_hosts=known_hosts, timeout_s=timeout_s):
        end, sock = way_to(machine, known_hosts=known_hosts, timeout_s=timeout_s)
        try:
            client = transport(sock)
            client.banner_timeout = timeout_s
            _prefer_known(client, _known_keys(machine, known_hosts))
            try:
                client.start_client(timeout=timeout_s)
                return client.get_remote_server_key()
            finally:
                client.close()
        finally:
            end()


def trust(
    inventory: Inventory, *, agree: Callable[[KeyTable], bool] | None = None, timeout_s: float = CONNECT_S
) -> KeyTable:
    """Add the keys of hosts that are not known yet to the inventory's file of trusted ones.

    A key that changed is never replaced: its row says how to.

    Parameters
    ----------
    agree : callable, optional
        Shown the new keys before they are added; nothing is if it returns False. Without one they are added.

    Returns
    -------
    KeyTable
        One row per host, and one per machine on the way to them, which comes first.
    """
    rows: list[HostKey] = []
    for machines in _stages(inventory):  # a host behind another can be seen once that one is trusted
        with ThreadPoolExecutor(min(len(machines), MAX_THREADS)) as pool:
            found = list(pool.map(lambda machine: _looked_at(machine, inventory.known_hosts, timeout_s), machines))
        new = [(row, key) for row, key in found if key is not None and row.state is KeyState.NEW]
        if new and (agree is None or agree(KeyTable(tuple(row for row, _ in new)))):
            add(inventory.known_hosts, [(row.name, key) for row, key in new])
            found = [
                (replace(row, state=KeyState.ADDED) if row.state is KeyState.NEW else row, key) for row, key in found
            ]
        rows += [row for row, _ in found]
    return KeyTable(tuple(rows))


def _known_keys(machine: Machine, known_hosts: Path) -> dict[str, paramiko.PKey]:
    """Return the trusted keys of a host by kind."""
    trusted = paramiko.HostKeys()
    with suppress(FileNotFoundError):
        trusted.load(str(known_hosts))
    return dict(trusted.lookup(machine.key_name) or {})


def _prefer_known(client: paramiko.Transport, known: dict[str, paramiko.PKey]) -> None:
    """Ask a server that has several keys for one of a kind that is known of it."""
    kinds = {"rsa-sha2-512", "rsa-sha2-256"} | set(known) if "ssh-rsa" in known else set(known)
    security = client.get_security_options()
    security.key_types = tuple(sorted(security.key_types, key=lambda kind: kind not in kinds))


def add(known_hosts: Path, keys: list[tuple[str, paramiko.PKey]]) -> None:
    """Append keys to a file of trusted ones; what it has stays as it is."""
    known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(known_hosts, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(number, "r+b") as file:
        before = file.read()
        start = "\n" if before and not before.endswith(b"\n") else ""
        lines = "".join(f"{name} {key.get_name()} {key.get_base64()}\n" for name, key in keys)
        file.write(f"{start}{lines}".encode())


def _stages(inventory: Inventory) -> list[list[Machine]]:
    """Return machines in the order in which they can be reached, each once: first those on the way to others."""
    stages: list[list[Machine]] = []
    seen: set[str] = set()
    for machine in inventory:
        chain = [machine]
        while chain[0].jump is not None:
            chain.insert(0, chain[0].jump)
        for depth, each in enumerate(chain):
            if depth == len(stages):
                stages.append([])
            if each.key_name not in seen:
                seen.add(each.key_name)
                stages[depth].append(each)
    return [stage for stage in stages if stage]


def _looked_at(machine: Machine, known_hosts: Path, timeout_s: float) -> tuple[HostKey, paramiko.PKey | None]:
    """Return what a host shows, beside what is known of it."""
    row = HostKey(machine.name, machine.key_name)
    try:
        key = scan(machine, known_hosts=known_hosts, timeout_s=timeout_s)
    except HostError as error:
        return replace(row, state=KeyState.FAILED, error=str(error)), None
    row = replace(row, kind=key.get_name(), fingerprint=key.fingerprint)
    known = _known_keys(machine, known_hosts)
    if not known:
        return row, key
    if key in known.values():
        return replace(row, state=KeyState.KNOWN), key
    remedy = f"if it is new on purpose: ssh-keygen -R '{machine.key_name}' -f {known_hosts}, then fab trust"
    return replace(row, state=KeyState.CHANGED, error=remedy), key

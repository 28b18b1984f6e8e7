"""Keys of hosts: fetch and show them, and add unknown ones to the file of trusted keys."""

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
    """State of a host's key."""

    KNOWN = "known"
    """The key was trusted before."""
    NEW = "new"
    """The key is not trusted: it was not confirmed."""
    ADDED = "added"
    """The key was new, and is trusted now."""
    CHANGED = "CHANGED"
    """Another key of this host is trusted; nothing was added."""
    FAILED = "failed"
    """The key could not be fetched."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key of one host.

    Attributes
    ----------
    host, name : str
        The host, and its name in the file of trusted keys.
    kind, fingerprint : str
        Such as "ssh-ed25519" and "SHA256:..."; compare the latter with what `ssh-keygen -lf` says on the host.
    state : KeyState
        Whether it is trusted.
    error : str
        Why it could not be fetched, or the remedy for a changed key.
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
    """Return the key that a host presents, without logging in to it.

    Parameters
    ----------
    known_hosts : Path
        Trusted keys of the machines on the way to it.

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
    """Add unknown keys of hosts to the inventory's file of trusted keys.

    A changed key is never replaced; its row has the remedy.

    Parameters
    ----------
    agree : callable, optional
        Called with the new keys before they are added; False adds none. Without it they are added.

    Returns
    -------
    KeyTable
        One row per host, and one per machine on the way to them, which comes first.
    """
    rows: list[HostKey] = []
    for machines in _stages(inventory):  # a host behind a proxy can be reached once the proxy is trusted
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
    """Request a key of a kind that is known of the host, for servers with several keys."""
    kinds = {"rsa-sha2-512", "rsa-sha2-256"} | set(known) if "ssh-rsa" in known else set(known)
    security = client.get_security_options()
    security.key_types = tuple(sorted(security.key_types, key=lambda kind: kind not in kinds))


def add(known_hosts: Path, keys: list[tuple[str, paramiko.PKey]]) -> None:
    """Append keys to a file of trusted keys."""
    known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(known_hosts, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(number, "r+b") as file:
        before = file.read()
        start = "\n" if before and not before.endswith(b"\n") else ""
        lines = "".join(f"{name} {key.get_name()} {key.get_base64()}\n" for name, key in keys)
        file.write(f"{start}{lines}".encode())


def _stages(inventory: Inventory) -> list[list[Machine]]:
    """Return machines in the order in which they can be reached, each once: proxies first."""
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
    """Return the key that a host presents, compared with those that are trusted."""
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

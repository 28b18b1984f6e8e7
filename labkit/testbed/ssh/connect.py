"""One connection to a host, within a time limit, and the keys of hosts: checked, shown, and added to those trusted."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import fabric
import paramiko

from labkit.testbed.errors import (
    ChangedKeyError,
    HostError,
    HostUnreachableError,
    LoginError,
    OverdueError,
    UnknownKeyError,
)
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.outcomes import HostRows

CONNECT_S = 5.0
KEEPALIVE_S = 15
SILENCE_S = 45
"""Seconds without an acknowledgement of sent bytes after which a connection is given up (Linux only)."""
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its messages would repeat ours
MAX_THREADS = 64


class SshConnection(fabric.Connection):  # type: ignore[misc]
    """A Fabric connection to one machine: host keys checked, AES-GCM preferred, TCP_NODELAY set."""

    def __init__(self, machine: Machine, *, known_hosts: Path, timeout_s: float = CONNECT_S) -> None:
        options: dict[str, Any] = {
            "transport_factory": transport,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "allow_agent": machine.key is None or has_passphrase(machine.key),
            "look_for_keys": machine.key is None,
        }
        if machine.key is not None:
            options["key_filename"] = str(machine.key)
        super().__init__(
            machine.address, user=machine.user, port=machine.port, connect_kwargs=options, gateway=False,
            config=fabric.Config(ssh_config=paramiko.SSHConfig()),
        )  # fmt: skip
        self._set(machine=machine, known_hosts=known_hosts, timeout_s=timeout_s, way=None)
        self.client.set_missing_host_key_policy(_Refuse(machine, known_hosts))

    def open(self) -> None:
        """Connect, check the host's key, and log in.

        Raise HostError, of a subclass for each kind of failure; the message has the remedy.
        """
        if self.is_connected:
            return
        machine, known_hosts, timeout_s = self.machine, self.known_hosts, self.timeout_s
        _refuse_open_key(machine)
        until_s = time.monotonic() + timeout_s
        with explained(machine, known_hosts=known_hosts, timeout_s=timeout_s):
            self._load_known_keys()
            way, sock = way_to(machine, known_hosts=known_hosts, timeout_s=timeout_s)
            try:
                self._set(way=way)
                self.connect_kwargs |= {"sock": sock, "timeout": max(until_s - time.monotonic(), 0.1)}
                super().open()
                self.transport.set_keepalive(KEEPALIVE_S)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection, and those on the way to it."""
        with suppress(Exception):
            super().close()
        self.client.close()
        if self.way is not None:
            self.way()
            self._set(way=None)

    def _load_known_keys(self) -> None:
        self.client.get_host_keys().clear()
        with suppress(FileNotFoundError):
            self.client.load_host_keys(str(self.known_hosts))


def way_to(machine: Machine, *, known_hosts: Path, timeout_s: float) -> tuple[Callable[[], None], Any]:
    """Return a function that closes the way to a machine, and a socket to its SSH server."""
    if machine.proxy_command:
        return _through_program(machine)
    if machine.jump is not None:
        return _through(machine.jump, machine=machine, known_hosts=known_hosts, timeout_s=timeout_s)
    sock = socket.create_connection((machine.address, machine.port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # 4 ms instead of 54 ms for a small command
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
    return sock.close, sock


def _through(jump: Machine, *, machine: Machine, known_hosts: Path, timeout_s: float) -> tuple[Callable[[], None], Any]:
    before = SshConnection(jump, known_hosts=known_hosts, timeout_s=timeout_s)
    before.open()
    try:
        channel = before.transport.open_channel(
            "direct-tcpip", (machine.address, machine.port), ("127.0.0.1", 0), timeout=timeout_s
        )
    except BaseException:
        before.close()
        raise
    return before.close, channel


def _through_program(machine: Machine) -> tuple[Callable[[], None], socket.socket]:
    """Start a proxy command without a shell, so that its words are not interpreted."""
    ours, its = socket.socketpair()
    words = [_filled(word, machine) for word in shlex.split(machine.proxy_command)]
    try:
        program = subprocess.Popen(
            words, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
        )  # Ctrl-C must not reach it
    except OSError as error:
        ours.close()
        raise HostUnreachableError(
            f"host {machine.name}: its proxy_command cannot be started: {words[0]}: {error.strerror}."
        ) from None
    finally:
        its.close()

    def end() -> None:
        ours.close()
        program.terminate()
        try:
            program.wait(1)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()

    return end, ours


def _filled(word: str, machine: Machine) -> str:
    """Return a word of a proxy command with its %h, %p and %r replaced."""
    values = {"%h": machine.address, "%p": str(machine.port), "%r": machine.user, "%%": "%"}
    parts = [word[i : i + 2] for i in range(len(word))]
    filled, skip = [], False
    for part in parts:
        if skip:
            skip = False
            continue
        filled.append(values.get(part, part[0]))
        skip = part in values
    return "".join(filled)


def transport(sock: Any, **options: Any) -> paramiko.Transport:
    """Return a transport that prefers AES-GCM: copies are 2.5 times as fast as with AES-CTR and a hash."""
    client = paramiko.Transport(sock, **options)
    security = client.get_security_options()
    security.ciphers = tuple(sorted(security.ciphers, key=lambda name: "gcm" not in name))
    return client


class _Refuse(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def __init__(self, machine: Machine, known_hosts: Path) -> None:
        self.machine, self.known_hosts = machine, known_hosts

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:  # noqa: ARG002
        """Refuse a host whose key is unknown."""
        raise UnknownKeyError(
            f"host {self.machine.name} ({hostname}) shows a key that {self.known_hosts} does not have: "
            f"{key.get_name()} {key.fingerprint}. Compare it with the host's own, then: fab trust."
        )


def _refuse_open_key(machine: Machine) -> None:
    """Refuse a private key that does not exist, is not readable, or is readable for other users."""
    if machine.key is None:
        return
    try:
        mode = machine.key.stat().st_mode
    except OSError as error:
        raise LoginError(
            f"host {machine.name}: key {machine.key}: {error.strerror}; name another in its ssh table."
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise LoginError(f"host {machine.name}: key {machine.key} is open to others; chmod 600 {machine.key}.")
    if not os.access(machine.key, os.R_OK):
        raise LoginError(
            f"host {machine.name}: key {machine.key} is another user's; name one of yours in its ssh table."
        )


def has_passphrase(key: Path) -> bool:
    """Return whether a private key needs a passphrase: then an SSH agent must hold it."""
    try:
        paramiko.PKey.from_path(key)
    except (paramiko.PasswordRequiredException, TypeError):
        return True
    except (paramiko.SSHException, OSError, ValueError):
        return False  # the login reports what is wrong with it
    return False


@contextmanager
def explained(machine: Machine, *, known_hosts: Path, timeout_s: float) -> Iterator[None]:
    """Convert errors of paramiko and of the system to HostError."""
    late_s = time.monotonic() + timeout_s
    try:
        yield
    except HostError:
        raise
    except Exception as error:
        late = isinstance(error, TimeoutError) or time.monotonic() > late_s  # paramiko reports timeouts in many ways
        _explain(error, machine=machine, known_hosts=known_hosts, timeout_s=timeout_s if late else None)


def _explain(error: Exception, *, machine: Machine, known_hosts: Path, timeout_s: float | None) -> NoReturn:
    """Raise the HostError for an error of paramiko or of the system; `timeout_s` if it was a timeout."""
    where = f"host {machine.name} ({machine.place})"
    if isinstance(error, paramiko.BadHostKeyException):
        raise ChangedKeyError(
            f"{where} shows another key than the one that {known_hosts} has: {error.key.get_name()} "
            f"{error.key.fingerprint} instead of {error.expected_key.get_name()} {error.expected_key.fingerprint}. "
            f"Another machine may be answering in its place. If it is new on purpose: ssh-keygen -R "
            f"'{machine.key_name}' -f {shlex.quote(str(known_hosts))}, then fab trust."
        ) from None
    if isinstance(error, paramiko.AuthenticationException | paramiko.PasswordRequiredException) or _no_method(error):
        if machine.key is not None and has_passphrase(machine.key):
            raise LoginError(
                f"{where}: key {machine.key} has a passphrase, and no SSH agent here holds a key that the host takes. "
                f"ssh-add {shlex.quote(str(machine.key))} (after: eval $(ssh-agent)), or name a key without one."
            ) from None
        tried = machine.key or "the agent's keys and those in ~/.ssh"
        raise LoginError(
            f"{where} refuses the login with {tried}: {error}. Put the public key into ~/.ssh/authorized_keys there, "
            "or name another user or key in the host's ssh table."
        ) from None
    if timeout_s is not None:
        raise OverdueError(
            f"{where} did not answer within {timeout_s:g} s; is it up, and does a firewall let SSH through?"
        ) from None
    several = getattr(error, "errors", None)  # one per address that the name has
    reasons = "; ".join(str(each.strerror) for each in several.values()) if isinstance(several, dict) else str(error)
    raise HostUnreachableError(
        f"{where} cannot be reached: {reasons or type(error).__name__}; is its SSH server up?"
    ) from None


def _no_method(error: Exception) -> bool:
    return isinstance(error, paramiko.SSHException) and "authentication methods" in str(error)


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

"""An SSH server for machines without sshd: `python -m labkit.testbed.laptop.paramiko_sshd CONFIG...`, one per host.

One user, one key, commands and files; no terminal, no forwarding, no password. The processes of hosts become daemons by
themselves.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import paramiko
from paramiko import SFTP_OK, SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface
from paramiko.common import MSG_CHANNEL_REQUEST

from labkit.system.private_files import write_private

P = ParamSpec("P")
T = TypeVar("T")
CHUNK = 1 << 16
BACKLOG = 64


def with_sftp_codes(act: Callable[P, T]) -> Callable[P, T | int]:
    """Make a method return SFTP's error code for errors of the system."""

    def acted(*args: P.args, **kwargs: P.kwargs) -> T | int:
        try:
            return act(*args, **kwargs)
        except OSError as error:
            return int(SFTPServer.convert_errno(error.errno))

    return acted


class Files(SFTPServerInterface):  # type: ignore[misc]
    """The file system with the rights of this user."""

    def __init__(self, server: Any, home: str) -> None:
        super().__init__(server)
        self.home = home

    def canonicalize(self, path: str) -> str:
        """Return an absolute path."""
        return os.path.normpath(os.path.join(self.home, path))

    _at = canonicalize

    @with_sftp_codes
    def open(self, path: str, flags: int, attributes: SFTPAttributes) -> Any:
        """Open a file."""
        mode = 0o666 if attributes.st_mode is None else attributes.st_mode
        return Handle(os.open(self._at(path), flags | os.O_CLOEXEC, mode & 0o777), flags)

    @with_sftp_codes
    def list_folder(self, path: str) -> Any:
        """Return the entries of a folder."""
        folder = self._at(path)
        names = os.listdir(folder)
        return [SFTPAttributes.from_stat(os.lstat(os.path.join(folder, name)), name) for name in names]

    @with_sftp_codes
    def stat(self, path: str) -> Any:
        """Return the attributes of a path."""
        return SFTPAttributes.from_stat(os.stat(self._at(path)))

    @with_sftp_codes
    def lstat(self, path: str) -> Any:
        """Return the attributes of a path, or of a link."""
        return SFTPAttributes.from_stat(os.lstat(self._at(path)))

    @with_sftp_codes
    def remove(self, path: str) -> int:
        """Remove a file."""
        os.remove(self._at(path))
        return int(SFTP_OK)

    @with_sftp_codes
    def rename(self, oldpath: str, newpath: str) -> int:
        """Rename a file; never over another."""
        os.link(self._at(oldpath), self._at(newpath), follow_symlinks=False)
        os.remove(self._at(oldpath))
        return int(SFTP_OK)

    @with_sftp_codes
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        """Rename a file; overwrite another one."""
        os.replace(self._at(oldpath), self._at(newpath))
        return int(SFTP_OK)

    @with_sftp_codes
    def mkdir(self, path: str, attributes: SFTPAttributes) -> int:
        """Make a folder."""
        os.mkdir(self._at(path), 0o777 if attributes.st_mode is None else attributes.st_mode & 0o777)
        return int(SFTP_OK)

    @with_sftp_codes
    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        os.rmdir(self._at(path))
        return int(SFTP_OK)

    @with_sftp_codes
    def chattr(self, path: str, attributes: SFTPAttributes) -> int:
        """Change mode, owner, times or size."""
        SFTPServer.set_file_attr(self._at(path), attributes)
        return int(SFTP_OK)

    @with_sftp_codes
    def readlink(self, path: str) -> Any:
        """Return the target of a link."""
        return os.readlink(self._at(path))

    @with_sftp_codes
    def symlink(self, target_path: str, path: str) -> int:
        """Make a link."""
        os.symlink(target_path, self._at(path))
        return int(SFTP_OK)


class Handle(SFTPHandle):  # type: ignore[misc]
    """An open file."""

    def __init__(self, number: int, flags: int) -> None:
        super().__init__(flags)
        self._number, self._append = number, bool(flags & os.O_APPEND)

    def close(self) -> None:
        """Close it."""
        os.close(self._number)

    @with_sftp_codes
    def read(self, offset: int, length: int) -> Any:
        """Return bytes."""
        return os.pread(self._number, length, offset) or paramiko.SFTP_EOF

    @with_sftp_codes
    def write(self, offset: int, data: bytes) -> int:
        """Write all of some bytes."""
        while data:
            n = os.write(self._number, data) if self._append else os.pwrite(self._number, data, offset)
            data, offset = data[n:], offset + n
        return int(SFTP_OK)

    @with_sftp_codes
    def stat(self) -> Any:
        """Return its attributes."""
        return SFTPAttributes.from_stat(os.fstat(self._number))

    @with_sftp_codes
    def chattr(self, attributes: SFTPAttributes) -> int:
        """Change mode, times or size."""
        if attributes.st_mode is not None:
            os.fchmod(self._number, attributes.st_mode & 0o7777)
        if attributes.st_size is not None:
            os.ftruncate(self._number, attributes.st_size)
        if attributes.st_mtime is not None:
            os.utime(self._number, (attributes.st_atime or attributes.st_mtime, attributes.st_mtime))
        return int(SFTP_OK)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that `labkit.testbed.laptop.server.standin_config` writes."""

    address: str
    port: int
    key: str
    pid: str
    log: str
    authorized_keys: str
    user: str
    home: str
    environment: dict[str, str]

    @classmethod
    def read(cls, path: str) -> Self:
        """Return a configuration."""
        return cls(**json.loads(Path(path).read_text()))

    @property
    def login_key(self) -> str:
        """The key that is admitted."""
        return Path(self.authorized_keys).read_text().split()[2]

    @property
    def shell(self) -> str:
        """The program that runs commands."""
        try:
            found = pwd.getpwuid(os.getuid()).pw_shell
        except KeyError:
            return "/bin/sh"
        return "/bin/sh" if Path(found).name in ("", "nologin", "false") else found


class StandinConnection(paramiko.Transport):  # type: ignore[misc]
    """The server's side of one connection.

    A command starts only after its acceptance was sent to the client: paramiko's client takes a channel that is closed
    before for a refusal.
    """

    _channel_handler_table = paramiko.Transport._channel_handler_table | {
        MSG_CHANNEL_REQUEST: lambda channel, message: _request(channel, message)
    }


def _request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    channel._handle_request(message)
    login = channel.transport.server_object
    if isinstance(login, Login):
        login.begin(channel)


class FileServer(paramiko.SFTPServer):  # type: ignore[misc]
    """A file session; `scp` takes one that ends without an exit status for a failure."""

    def start_subsystem(self, name: str, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        """Serve files until the client has no more requests."""
        super().start_subsystem(name, transport, channel)
        with suppress(OSError, EOFError, paramiko.SSHException):
            channel.send_exit_status(0)


class Login(paramiko.ServerInterface):  # type: ignore[misc]
    """Access rules of one connection."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._waiting: dict[int, bytes] = {}

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        """Return the one way to log in."""
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        """Admit one key of one user."""
        known = username == self.config.user and key.get_base64() == self.config.login_key
        return int(paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        """Allow sessions, and nothing that forwards."""
        if kind == "session":
            return int(paramiko.OPEN_SUCCEEDED)
        return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Note a command, for `begin`."""
        self._waiting[channel.chanid] = command
        return True

    def begin(self, channel: paramiko.Channel) -> None:
        """Start the command that was noted for a channel, if there is one."""
        command = self._waiting.pop(channel.chanid, None)
        if command is not None:
            threading.Thread(target=run, args=(self.config, channel, command), daemon=True).start()


def run(config: Config, channel: Any, command: bytes) -> None:
    """Run a command, and report how it ended; like sshd, do not end it when the client disconnects."""
    try:
        program = subprocess.Popen(
            [config.shell, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=config.home, env=environment(config), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        channel.sendall_stderr(f"{config.shell}: {error.strerror}\n".encode())
        channel.send_exit_status(126)
        channel.close()
        return
    outputs = [(program.stdout, channel.sendall), (program.stderr, channel.sendall_stderr)]
    copiers = [threading.Thread(target=_copy_out, args=output, daemon=True) for output in outputs]
    threading.Thread(target=_copy_in, args=(channel, program.stdin), daemon=True).start()
    for copier in copiers:
        copier.start()
    for copier in copiers:
        copier.join()
    exited = program.wait()
    with suppress(OSError, EOFError, paramiko.SSHException):
        channel.shutdown_write()
        if exited >= 0:  # a command that a signal ended has no exit status
            channel.send_exit_status(exited)
    channel.close()


def environment(config: Config) -> dict[str, str]:
    """Return the environment of commands: only the variables that the configuration names."""
    usual = {"PATH": os.defpath, "USER": config.user, "LOGNAME": config.user, "SHELL": config.shell}
    return usual | config.environment


def _copy_out(source: Any, send: Any) -> None:
    with source:
        while data := os.read(source.fileno(), CHUNK):
            try:
                send(data)
            except (OSError, EOFError, paramiko.SSHException):
                return  # the client is gone: the program finds its pipe closed


def _copy_in(channel: Any, target: Any) -> None:
    with suppress(OSError, EOFError, paramiko.SSHException), target:
        while data := channel.recv(CHUNK):
            target.write(data)
            target.flush()


def serve(config: Config, listening: socket.socket) -> None:
    """Accept connections without end."""
    key = paramiko.Ed25519Key.from_private_key_file(config.key)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_accept, args=(config, connection, key), daemon=True).start()


def _accept(config: Config, connection: socket.socket, key: paramiko.PKey) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        server = StandinConnection(connection)
        server.add_server_key(key)
        server.set_subsystem_handler("sftp", FileServer, Files, config.home)
        server.start_server(server=Login(config), event=threading.Event())
    except (OSError, EOFError, paramiko.SSHException):
        connection.close()


def main(paths: Sequence[str]) -> int:
    """Listen for each host; become one daemon per host; write the process numbers; serve."""
    open_ones = []
    for config in map(Config.read, paths):
        try:
            open_ones.append((config, _listening(config)))
        except OSError as error:
            Path(config.log).write_text(f"Cannot bind any address: {error.strerror}.\n")
            if error.errno != errno.EADDRINUSE:
                return 1
    for config, listening in open_ones:
        if os.fork() == 0:
            for _, other in open_ones:
                if other is not listening:
                    other.close()
            _go_to_background(config)
            serve(config, listening)
    return 0


def _listening(config: Config) -> socket.socket:
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.address, config.port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _go_to_background(config: Config) -> None:
    """Become a daemon; write the process number."""
    os.setsid()
    os.chdir("/")
    log = os.open(config.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    write_private(Path(config.pid), f"{os.getpid()}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

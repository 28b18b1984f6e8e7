"""All hosts of an inventory at once: run, put, get, stream; connections stay open."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self, TextIO, TypeVar

import paramiko

from labkit.core.errors import InputError
from labkit.testbed.errors import CutError, HostError, ShellError
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.answers import Answers, HostAnswer
from labkit.testbed.ssh.closing import close
from labkit.testbed.ssh.command import RemoteCommand, StopRequest
from labkit.testbed.ssh.connect import CONNECT_S, SshConnection
from labkit.testbed.ssh.files import Begin, CopySource, get_file, put_file, remote_path
from labkit.testbed.ssh.parallel import awaited
from labkit.testbed.ssh.stream import RemoteStream

Command = Sequence[str] | str
"""Words, which are quoted; or a constant script for /bin/sh."""
Each = Callable[[Machine], Command]
OnLine = Callable[[str, str], None]
T = TypeVar("T")
MAX_THREADS = 64


class Fleet:
    """Connections to the machines of an inventory.

    A host that fails is a row of the answers, never an exception. Connections open at first use, all at once, stay
    open, and are opened once more where they broke.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    connect_timeout_s : float
        Seconds a host may take to accept a connection.
    """

    here: ClassVar[bool] = False
    """Whether it is this machine alone: `labkit.testbed.run.this_machine`."""

    def __init__(self, inventory: Inventory, *, connect_timeout_s: float = CONNECT_S) -> None:
        if any(machine.local for machine in inventory):
            raise InputError(f"inventory {inventory.path} is this machine, without SSH: go on with labkit attach.")
        self.inventory, self.connect_timeout_s = inventory, connect_timeout_s
        self._links = {machine.name: _Link(machine) for machine in inventory}
        self._pool = ThreadPoolExecutor(min(len(inventory), MAX_THREADS), "labkit-fleet")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; commands on hosts are not ended."""
        self._pool.shutdown(cancel_futures=True)
        for link in self._links.values():
            link.close(for_good=True)

    def connect(self, *, only: Iterable[str] | None = None) -> Answers:
        """Connect to all hosts; the rows of hosts that could not be reached have the reason."""

        def one(machine: Machine, _: StopRequest) -> HostAnswer:
            self.connection(machine)
            return HostAnswer(machine.name, exited=0)

        return self._each(one, only)

    def connection(self, machine: Machine | str) -> SshConnection:
        """Return the open connection to a machine, a `fabric.Connection`.

        Raises
        ------
        HostError
            If it cannot be opened.
        """
        return self._link(machine).open(self.inventory.known_hosts, timeout_s=self.connect_timeout_s)

    def run(
        self,
        argv: Command | Each,
        *,
        timeout_s: float = 60.0,
        stream: OnLine | None = None,
        stdin: bytes | Callable[[Machine], bytes] = b"",
        only: Iterable[str] | None = None,
    ) -> Answers:
        """Run a command on every host at once.

        Parameters
        ----------
        argv : sequence of str, str, or callable
            Words, quoted for the shell there; a word that begins with "~/" is below the login's home. A string is a
            constant script for /bin/sh, without names from users. A callable is called with each machine.
        timeout_s : float
            Seconds after which a command is killed, with its process group.
        stream : callable, optional
            Called with (host, line) for each line as it comes, one call at a time; see `prefixed`.
        stdin : bytes, or callable
            Input of the command, also for secrets. A callable is called with each machine.
        only : names, optional
            Names of the hosts; None: all.

        Returns
        -------
        Answers
            One row per host.
        """
        lock = threading.Lock()

        def one(machine: Machine, stop: StopRequest) -> HostAnswer:
            def on_line(line: str) -> None:
                with lock:
                    stream(machine.name, line)  # type: ignore[misc]

            words = argv(machine) if callable(argv) else argv
            call = self._begin(machine, words, lines=on_line if stream else None, stop=stop)
            done = call.run(timeout_s=timeout_s, stdin=stdin(machine) if callable(stdin) else stdin)
            out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
            return HostAnswer(machine.name, done.exited, out, err)

        return self._each(one, only)

    def put(
        self,
        source: str | Path | bytes,
        target: str,
        *,
        mode: int | None = None,
        timeout_s: float = 600.0,
        only: Iterable[str] | None = None,
    ) -> Answers:
        """Copy a file to every host, whole or not at all.

        Parameters
        ----------
        source : path or bytes
            The file, or its content.
        target : str
            Its path there: absolute, below the login's home with "~/", or else below the machine's folder.
        mode : int, optional
            Of the file there; by default as here, and 0600 for bytes.
        """
        content = CopySource.of(source, mode=mode)

        def one(machine: Machine, stop: StopRequest) -> HostAnswer:
            begin = self._beginner(machine, stop)
            self._twice(lambda: put_file(begin, content, remote_path(target, machine), timeout_s=timeout_s))
            return HostAnswer(machine.name, exited=0)

        return self._each(one, only)

    def get(
        self, source: str, folder: str | Path, *, timeout_s: float = 600.0, only: Iterable[str] | None = None
    ) -> Answers:
        """Copy a file from every host to `folder`/HOST/NAME; stdout of each row is its path.

        Parameters
        ----------
        source : str
            As `target` of `put`.
        """

        def one(machine: Machine, stop: StopRequest) -> HostAnswer:
            target = Path(folder) / machine.name / PurePosixPath(source).name
            begin = self._beginner(machine, stop)
            self._twice(
                lambda: get_file(begin, machine.python, remote_path(source, machine), target, timeout_s=timeout_s)
            )
            return HostAnswer(machine.name, exited=0, stdout=str(target))

        return self._each(one, only)

    def stream(self, machine: Machine | str, argv: Command) -> RemoteStream:
        """Start a program on a machine, and return a stream of its input and output.

        Raises
        ------
        HostError
            If the machine cannot be reached; ShellError if its login's shell does not start the program.
        """
        link = self._link(machine)
        channel = self._with(link.machine, lambda transport, s: transport.open_session(timeout=s))
        try:
            return RemoteStream(channel, argv, host=link.machine.name)
        except ShellError:
            close(channel)
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            close(channel)
            raise CutError(f"host {link.machine.name}: the program could not be started ({error}).") from None

    def _begin(self, machine: Machine, words: Command, **options: Any) -> RemoteCommand:
        """Return a command with an open channel."""

        def opened(transport: paramiko.Transport, timeout_s: float) -> RemoteCommand:
            call = RemoteCommand(transport, words, **options)
            call.open(timeout_s=timeout_s)
            return call

        return self._with(machine, opened)

    def _beginner(self, machine: Machine, stop: StopRequest) -> Begin:
        return lambda words, sink: self._begin(machine, words, sink=sink, stop=stop)

    @staticmethod
    def _twice(copy: Callable[[], object]) -> None:
        """Copy again after the connection broke: a copy is complete or has no effect."""
        try:
            copy()
        except CutError:
            copy()

    def _link(self, machine: Machine | str) -> _Link:
        return self._links[machine.name if isinstance(machine, Machine) else self.inventory[machine].name]

    def _with(self, machine: Machine, use: Callable[[paramiko.Transport, float], T]) -> T:
        """Start something on a machine's connection; on a new one if that broke meanwhile."""
        connection = self.connection(machine)
        try:
            return use(connection.transport, self.connect_timeout_s)
        except paramiko.ChannelException as error:
            raise _refused(machine, error) from None
        except (paramiko.SSHException, EOFError, OSError):
            self._link(machine).close(connection)
        try:
            return use(self.connection(machine).transport, self.connect_timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise _refused(machine, error) from None

    def _each(self, do: Callable[[Machine, StopRequest], HostAnswer], only: Iterable[str] | None) -> Answers:
        """Call a function for each machine at once; an interrupt stops all calls."""
        machines = self.inventory if only is None else self.inventory.only(only)
        stop = StopRequest()

        def one(machine: Machine) -> HostAnswer:
            began_s = time.monotonic()
            try:
                row = do(machine, stop)
            except HostError as error:
                row = HostAnswer(machine.name, error=error)
            return HostAnswer(row.host, row.exited, row.stdout, row.stderr, time.monotonic() - began_s, row.error)

        waiting: list[Future[HostAnswer]] = [self._pool.submit(one, machine) for machine in machines]
        try:
            awaited(waiting)
        finally:
            stop.set()  # no effect if all are done
            wait(waiting)
            stop.close()
        return Answers(tuple(each.result() for each in waiting))


class _Link:
    """The connection to one machine, opened when needed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._lock = threading.Lock()
        self._connection: SshConnection | None = None
        self._closed = False

    def open(self, known_hosts: Path, *, timeout_s: float) -> SshConnection:
        """Return the connection, opened.

        Raises
        ------
        HostError
            If it cannot be opened; CutError if the fleet was closed.
        """
        with self._lock:
            if self._closed:
                raise CutError(f"host {self.machine.name}: the connection was closed here.")
            if self._connection is None or not self._connection.is_connected:
                self._drop()
                self._connection = SshConnection(self.machine, known_hosts=known_hosts, timeout_s=timeout_s)
                self._connection.open()
            return self._connection

    def close(self, connection: SshConnection | None = None, *, for_good: bool = False) -> None:
        """Close the connection; with an argument, only if it is that one."""
        with self._lock:
            self._closed = self._closed or for_good
            if connection is None or connection is self._connection:
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def prefixed(file: TextIO | None = None) -> OnLine:
    """Return a `stream` that prints each line behind its host's name."""

    def on_line(host: str, line: str) -> None:
        print(f"{host} | {line}", file=file or sys.stdout, flush=True)

    return on_line


def _refused(machine: Machine, error: Exception) -> HostError:
    if isinstance(error, paramiko.ChannelException):
        return HostError(
            f"host {machine.name} refuses one more channel ({error}); does its sshd_config have a low MaxSessions?"
        )
    return CutError(f"host {machine.name}: the connection broke, twice ({error or type(error).__name__}).")

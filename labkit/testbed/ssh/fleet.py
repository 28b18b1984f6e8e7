"""All hosts of an inventory at once: run, put, get, stream; connections stay open.

Files are copied whole or not at all. They go through pipes rather than through a file session, which has a request and
an answer for each 32 KiB.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Final, Self, TextIO, TypeVar

import paramiko

from labkit.core.errors import InputError
from labkit.testbed.errors import CutError, FileError, HostError, ShellError
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.onhost import source as program
from labkit.testbed.ssh.command import CompletedCommand, RemoteCommand, RemoteStream, StopRequest, close
from labkit.testbed.ssh.connect import CONNECT_S, SshConnection
from labkit.testbed.ssh.outcomes import Answers, HostAnswer, readable

T = TypeVar("T")
R = TypeVar("R")
LOOK_S: Final = 0.2
"""Seconds between two checks for Ctrl-C of a main thread that waits."""
CHUNK = 1 << 18
PUT = """umask 077
part=$1.labkit-$2-$$.part
for old in "$1".labkit-????????-*.part; do
  pid=${old##*-} pid=${pid%.part}
  case $pid in *[!0-9]* | '') continue ;; esac
  kill -0 "$pid" 2>/dev/null || rm -f -- "$old"
done
trap 'rm -f -- "$part"' EXIT
trap 'exit 1' HUP INT TERM
trap '' PIPE
if [ -d "$1" ]; then echo "it is a folder" >&2; exit 1; fi
folder=$(dirname -- "$1") && { [ -d "$folder" ] || mkdir -p -- "$folder"; } && cat >"$part" || exit 1
came=$(($(wc -c <"$part")))
if [ "$came" -ne "$3" ]; then echo "$came of $3 bytes arrived" >&2; exit 1; fi
chmod "$4" "$part" && mv -f -- "$part" "$1"
"""
"""A connection that breaks ends the input as a whole file does: so the size is compared.

What is not whole yet has the name of its receiver's process: where that was killed, the next copy removes it, or gc.
"""
MOST_BYTES = 64 * 10**9
"""Most bytes of a file from a host, so that no host can fill the disk here."""
SENT = re.compile(rb"labkit-sent (\d{1,18}) ([0-9a-f]{64})\n$")
Begin = Callable[[Sequence[str], Callable[[bytes], None] | None], RemoteCommand]
"""Opens a call for words, and perhaps where its output goes."""
Command = Sequence[str] | str
"""Words, which are quoted; or a constant script for /bin/sh."""
Each = Callable[[Machine], Command]
OnLine = Callable[[str, str], None]
MAX_THREADS = 64


def together(do: Callable[[T], R], things: Iterable[T], *, give_up: Callable[[], None]) -> list[R]:
    """Return the result of `do` for each thing, each in a thread of its own.

    `do`: takes a thing; must end soon after `give_up`. `things`: in the order of the answers. `give_up`: called if one
    raises or the user interrupts; fails what the threads wait for.
    """
    listed = list(things)
    with ThreadPoolExecutor(max(len(listed), 1)) as pool:
        futures = [pool.submit(do, thing) for thing in listed]
        try:
            awaited(futures)
            return [future.result() for future in futures]
        except BaseException:
            give_up()
            raise


def awaited(futures: Sequence[Future[Any]]) -> None:
    """Wait until all threads are done, or one has raised.

    Ctrl-C may not wake a main thread that waits on a lock without a limit (one time in ten, on a busy machine): it is
    handled only when that thread wakes up.
    """
    left = set(futures)
    while left:
        done, left = wait(left, timeout=LOOK_S, return_when=FIRST_EXCEPTION)
        if any(future.cancelled() or future.exception() for future in done):
            return


@dataclass(frozen=True, slots=True)
class CopySource:
    """A source of a copy."""

    content: Path | bytes
    """The file, or its content."""
    mode: int
    """Of the file there."""
    size: int
    """Bytes."""

    @classmethod
    def of(cls, content: str | Path | bytes, *, mode: int | None) -> CopySource:
        """Return a source; by default with the mode of the file, and 0600 for bytes."""
        if isinstance(content, bytes):
            return cls(content, 0o600 if mode is None else mode, len(content))
        path = Path(content)
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise FileError(f"{path} is no file; give one, and pack folders.")
        return cls(path, stat.S_IMODE(about.st_mode) if mode is None else mode, about.st_size)

    def chunks(self) -> Iterator[bytes]:
        """Return its bytes in parts."""
        if isinstance(self.content, bytes):
            yield self.content
            return
        with self.content.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def remote_path(path: str, machine: Machine) -> str:
    """Return a path on a host; a relative path is below the machine's folder."""
    return path if path.startswith(("/", "~/")) else machine.path(path)


def put_file(begin: Begin, source: CopySource, target: str, *, timeout_s: float) -> None:
    """Write a file on a host, first under a temporary name; make missing folders.

    Raise FileError if it cannot be written: the error of the host; HostError as `RemoteCommand.run`.
    """
    call = begin(["/bin/sh", "-c", PUT, "sh", target, secrets.token_hex(4), str(source.size), f"{source.mode:o}"], None)
    _check_completed(call.run(timeout_s=timeout_s, stdin=source.chunks()), f"write {target}")


def get_file(begin: Begin, python: str, source: str, target: Path, *, timeout_s: float) -> int:
    """Read a file from a host, first under a temporary name; return its size.

    Raise FileError if it cannot be read there, or written here, or its hash is wrong; HostError as `RemoteCommand.run`.
    `python`: the Python there that sends it, with its length and SHA-256.
    """
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    with _named_errors(f"write {target} here"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as here:
                written, found = [0], hashlib.sha256()

                def sink(data: bytes) -> None:
                    found.update(data)
                    written[0] += here.write(data)
                    if written[0] > MOST_BYTES:
                        raise FileError(f"cannot read {source}: it has more than {MOST_BYTES / 1e9:g} GB.")

                done = begin([python, "-c", program("give"), source], sink).run(timeout_s=timeout_s)
            _check_completed(done, f"read {source}")
            sent = SENT.search(done.stderr)
            if sent is None or (written[0], found.hexdigest()) != (int(sent[1]), sent[2].decode()):
                raise FileError(f"cannot read {source}: {written[0]} bytes came that are not what was sent (SHA-256).")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return written[0]


def _check_completed(done: CompletedCommand, what: str) -> None:
    if done.exited != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.exited}"]
        raise FileError(f"cannot {what}: {readable(why[0])}.")


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Convert errors of files here to FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot {what}: {error.strerror or error}.") from None


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
    """Whether it is this machine alone: `labkit.testbed.run.session`."""

    def __init__(self, inventory: Inventory, *, connect_timeout_s: float = CONNECT_S) -> None:
        if any(machine.local for machine in inventory):
            raise InputError(f"inventory {inventory.path} is this machine, without SSH: continue with labkit attach.")
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
        """Return the connection, opened; HostError if it cannot be opened; CutError if the fleet was closed."""
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

"""Start processes of jobs through the fork server of this user and host, in a hundredth of the time of their imports.

>>> import os
>>> argv = [sys.executable, "-m", "labkit.elastic.process.member", "/tmp/job", "worker", "worker-0"]
>>> child = started(argv, env=os.environ, log=open("/tmp/log", "ab"))  # doctest: +SKIP

Where there is no fork server, and none can be started, `started` returns None: the caller starts a new interpreter.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from labkit.elastic.forkserver import protocol as place
from labkit.elastic.forkserver.protocol import (
    GO,
    MODULES,
    NETWORK,
    OF_PYTHON,
    ForkEnded,
    ForkError,
    ForkOrder,
    ForkRefused,
    ForkStarted,
    ForkWatch,
    Message,
    OrderError,
    OrderFrames,
    encode,
)
from labkit.system.unix_sockets import connected, listening, peer_uid

PATIENCE_S: Final = 120.0
"""Seconds that a server may take for its imports on a busy machine."""
AGAIN_S: Final = 60.0
"""Seconds after a fault of a server during which new interpreters are started instead."""
ATTEMPTS: Final = 3
"""Attempts to get a process from a server: one that is idle may end just then."""
BOOT: Final = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; "
    "import labkit.elastic.forkserver.server as server; server.main(sys.argv[1:])"
)
BEHIND: Final = '"$@" &'
"""Shell command that starts the server in the background: the client need not wait for its end."""

WITHOUT: Final = "processes are started without a fork server, which takes seconds each"

_warned: set[str] = set()
_not_before_s = [0.0]


class ForkedProcess:
    """A process that a fork server has started for this process."""

    def __init__(self, sock: socket.socket, pid: int, start: int, *, server: Path) -> None:
        # `pid`, `start`: process number, and start in clock ticks since the host started; `server`: socket of its fork
        # server
        self._sock, self.pid, self.start, self.server = sock, pid, start, server
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # it may have ended, if another process started it
            self._handle = os.pidfd_open(pid)
        self._frames, self._settled = OrderFrames(), False
        self._status: int | None = None

    @property
    def fileno(self) -> int:
        """File descriptor that becomes readable when the process may have ended; -1 after `close`."""
        return self._sock.fileno()

    @property
    def code(self) -> int | None:
        """Exit code, below 0 for a signal; None while it runs, and if its server ended before it."""
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def settled(self) -> bool:
        """Return, without waiting, whether `code` is final."""
        while not self._settled and select.select([self._sock], [], [], 0)[0]:
            self._receive()
        return self._settled

    def wait(self) -> int | None:
        """Wait for its end, and return its `code`."""
        while not self._settled:
            self._receive()
        if self._status is None and self._handle is not None:
            select.select([self._handle], [], [])
        self.close()
        return self.code

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 12)
        except OSError:
            data = b""
        self._frames.feed(data)
        message = self._frames.take()
        self._status = message.status if isinstance(message, ForkEnded) else None
        self._settled = not data or message is not None

    def go(self) -> None:
        """Start the process, now that its number is known."""
        self._sock.settimeout(None)
        with contextlib.suppress(OSError):  # it has been killed: `wait` returns its code
            self._sock.sendall(GO)

    def kill(self) -> None:
        """Kill the process, if it is still there."""
        if self._handle is not None:
            with contextlib.suppress(OSError):  # it has ended
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Stop watching the process; it goes on."""
        self._settled = True
        self._sock.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def started(
    argv: Sequence[str],  # interpreter, "-m", one of `labkit.elastic.forkserver.protocol.MODULES`, and its arguments
    *,
    env: Mapping[str, str],
    log: IO[bytes],  # file for its stdout and stderr
    cores: Sequence[int] = (),  # cores that it may use; empty: those of this process
    wait: bool = True,  # whether to wait for a server that is still importing
    stdin: int | None = None,  # file descriptor of its stdin; /dev/null by default
) -> ForkedProcess | None:
    """Start a process of a job in a session of its own; None if the caller must start a new interpreter."""
    if argv[2] not in MODULES:
        return None
    ignored = [int(n) for n in signal.valid_signals() - {*OF_PYTHON} if signal.getsignal(n) == signal.SIG_IGN]
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # removed: only a direct child can have it as its working directory
        return None
    allowed = sorted(cores or os.sched_getaffinity(0))
    order = ForkOrder(list(argv), dict(env), folder, allowed, umask=_umask(), ignored=ignored)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return fork(order, (nothing if stdin is None else stdin, log.fileno(), log.fileno()), wait=wait)
    finally:
        os.close(nothing)


def _umask() -> int:
    """Return the umask, from /proc: the system call can only read it by setting it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077


def tell(what: str) -> None:
    """Print a message on stderr, each message once."""
    if what not in _warned:
        _warned.add(what)
        print(f"labkit: {what}", file=sys.stderr, flush=True)


def fork(
    order: ForkOrder,
    files: Sequence[int],
    *,
    wait: bool,
    patience_s: float = PATIENCE_S,
    tell: Callable[[str], None] = tell,
) -> ForkedProcess | None:
    """Have a process forked, with `files` as stdin, stdout and stderr; None if the caller must start a new interpreter.

    A fault of the server is printed; a server that is off, or still importing while `wait` is False, is not.
    """
    settings = place.Settings.read(order.env)
    if not settings.on or order.argv[0] != sys.executable or time.monotonic() < _not_before_s[0]:
        return None
    try:
        return _forked(order, files, settings, wait=wait, patience_s=patience_s)
    except (ForkError, OrderError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        _not_before_s[0] = time.monotonic() + AGAIN_S
        tell(f"{WITHOUT}: {error}")
        return None


def prepare(env: Mapping[str, str]) -> None:
    """Start a server, if there is none, without waiting for it; a fault is printed.

    Raise ForkError if an environment variable has an invalid value.
    """
    settings = place.Settings.read(env)
    try:
        if settings.on and time.monotonic() >= _not_before_s[0]:
            path = _path(settings, env)
            if not _answers(path):
                _begin(path, env, settings)
    except (ForkError, OSError) as error:
        tell(f"{WITHOUT}: {error}")


def watched(server: Path, pid: int, start: int) -> ForkedProcess | None:
    """Return a process that a former process of this user started through a server; None if the server is gone."""
    try:
        sock = _connected(server)
        sock.sendall(encode(ForkWatch(pid, start)))
    except OSError:
        return None
    return ForkedProcess(sock, pid, start, server=server)


# --- the server


def _path(settings: place.Settings, env: Mapping[str, str]) -> Path:
    return place.own_folder(settings.folder) / f"{place.key(env)}.sock"


def _connected(path: Path) -> socket.socket:
    sock = connected(path)
    if peer_uid(sock) != os.getuid():
        sock.close()
        raise ConnectionRefusedError(f"{path} is not served by user {os.getuid()}")
    return sock


def _answers(path: Path) -> bool:
    with contextlib.suppress(OSError):
        _connected(path).close()
        return True
    return False


def _begin(path: Path, env: Mapping[str, str], settings: place.Settings) -> None:
    """Start a server, unless there is one; a lock allows one start at a time."""
    place.own_folder(path.parent)
    with place.locked(place.lock_of(path), wait=True):
        early = place.early_of(path)
        if _answers(path) or _answers(early):
            return
        path.unlink(missing_ok=True)
        with listening(early, backlog=256) as listener, place.log_of(path).open("wb") as log:
            line = [
                sys.executable,
                "-c",
                BOOT,
                str(place.ROOT),
                str(path),
                str(listener.fileno()),
                f"{settings.idle_s}",
            ]
            subprocess.run(
                ["/bin/sh", "-c", BEHIND, "sh", *line], env=place.environment(env), cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener.fileno()], check=True,
            )  # fmt: skip


def _reach(path: Path, env: Mapping[str, str], settings: place.Settings, *, wait: bool) -> socket.socket | None:
    """Connect to the server, and start it if there is none; None if `wait` is False and it is not ready."""
    for each in (path, place.early_of(path), path) if wait else (path,):
        with contextlib.suppress(OSError):
            return _connected(each)
    _begin(path, env, settings)
    return _reach_soon(path) if wait else None


def _reach_soon(path: Path) -> socket.socket:
    """Connect to a server that was just started; its socket is renamed once, when it is ready."""
    with contextlib.suppress(OSError):
        return _connected(place.early_of(path))
    return _connected(path)


def _forked(
    order: ForkOrder, files: Sequence[int], settings: place.Settings, *, wait: bool, patience_s: float
) -> ForkedProcess | None:
    path, until_s = _path(settings, order.env), time.monotonic() + patience_s
    for _ in range(ATTEMPTS):
        try:
            sock = _reach(path, order.env, settings, wait=wait)
        except FileNotFoundError:  # the former server has just removed its folder
            continue
        if sock is None:
            return None
        try:
            answer = _send_order(sock, order, files, until_s=until_s)
        except BaseException:
            sock.close()
            raise
        if answer is not None:
            child = ForkedProcess(sock, answer.pid, answer.start, server=path)
            child.go()
            return child
        sock.close()
    raise ForkError(f"the fork server ends before it answers: {_last_words(path)}")


def _send_order(sock: socket.socket, order: ForkOrder, files: Sequence[int], *, until_s: float) -> ForkStarted | None:
    """Send an order, and return the answer; None if the server is gone, so that no process has run."""
    with _network() as network:
        raw = encode(order)
        try:
            sock.settimeout(max(until_s - time.monotonic(), 0.1))
            n_sent = socket.send_fds(sock, [raw], [*files, *network])
            sock.sendall(raw[n_sent:])
            answer = _answer(sock)
        except (BrokenPipeError, ConnectionResetError):
            return None
        except TimeoutError:
            raise ForkError("the fork server does not answer in time.") from None
    if isinstance(answer, ForkRefused):
        raise ForkError(answer.why)
    return answer if isinstance(answer, ForkStarted) else None


@contextlib.contextmanager
def _network() -> Iterator[list[int]]:
    """Yield a descriptor of the network namespace that the child is to enter, if this process has the privilege."""
    if not place.may_enter():
        yield []
        return
    handle = os.open(NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield [handle]
    finally:
        os.close(handle)


def _answer(sock: socket.socket) -> Message | None:
    frames, data = OrderFrames(), b"?"
    message = None
    while message is None and data:
        data = sock.recv(1 << 12)
        frames.feed(data)
        message = frames.take()
    return message


def _last_words(path: Path) -> str:
    from labkit.elastic.job_logs import last_line

    return last_line(place.log_of(path)) or "it left no message."

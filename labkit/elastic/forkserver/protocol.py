"""Messages between a fork server and its clients: one schema, versioned, checked when it is decoded."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
MODULES: Final = (
    "labkit.elastic.process.member",
    "labkit.elastic.process.newcomer",
    "labkit.elastic.controller.process",
    "labkit.elastic.process.host_launcher",
    "labkit.testbed.run.job_process",
)
"""The only programs that a fork server starts, each as `python -m MODULE`."""
GO: Final = b"g"
"""Sent by the client when it has the number of the process. Without it the process ends before the program runs."""

NETWORK: Final = "/proc/thread-self/ns/net"
OF_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores by default."""

_HEAD: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size
MOST_BYTES: Final = 1 << 24


class OrderError(ValueError):
    """A message between a fork server and its client is invalid."""


def _strings(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(each) is int for each in value)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and _strings([*value, *value.values()])


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "argv": lambda value: _strings(value) and len(value) > 2 and value[1] == "-m" and value[2] in MODULES,
    "env": _texts, "cwd": _is(str), "cores": _numbers, "nice": _is(int), "umask": _is(int), "ignored": _numbers,
    "pid": _is(int), "start": _is(int), "status": _is(int), "why": _is(str),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Checked:
    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not _KINDS[name](value):
                raise OrderError(f"{name} of {type(self).__name__} is {str(value)[:100]!r}; that is not valid.")


@dataclass(frozen=True, slots=True)
class ForkOrder(_Checked):
    """A request to start a process, with the descriptors of stdin, stdout, stderr and perhaps a network namespace."""

    argv: Sequence[str]
    """Interpreter, "-m", one of `MODULES`, and its arguments."""
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    cores: Sequence[int]
    nice: int = 0
    """Added to the server's niceness, which equals that of its clients."""
    umask: int = 0o077
    """Permission bits that files it makes do not have."""
    ignored: Sequence[int] = ()
    """Signals that it ignores; all others have their default action."""


@dataclass(frozen=True, slots=True)
class ForkWatch(_Checked):
    """A request for the end of a process of this server; `start` tells it from another with the same number."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ForkStarted(_Checked):
    """Sent by a new process that waits for `GO`."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ForkEnded(_Checked):
    """The end of a process; `status` as waitpid returns it."""

    status: int


@dataclass(frozen=True, slots=True)
class ForkRefused(_Checked):
    """A request was refused, and nothing has run; `why` has the reason."""

    why: str


Message = ForkOrder | ForkWatch | ForkStarted | ForkEnded | ForkRefused
_MESSAGES: Final[dict[str, type[Message]]] = {
    "order": ForkOrder, "watch": ForkWatch, "started": ForkStarted, "ended": ForkEnded, "refused": ForkRefused,
}  # fmt: skip


def encode(message: Message) -> bytes:
    """Return a message as bytes, its length first."""
    name = next(name for name, kind in _MESSAGES.items() if isinstance(message, kind))
    body = json.dumps({"version": VERSION, "message": name, "columns": asdict(message)}).encode()
    return _HEAD.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """Return the message of a frame; OrderError if it is invalid.

    >>> decode(encode(ForkWatch(7, start=9))[HEAD_BYTES:])
    ForkWatch(pid=7, start=9)
    """
    try:
        values = json.loads(body)
        if values["version"] != VERSION:
            raise OrderError(f"a message of version {values['version']!r}; expected version {VERSION}.")
        return _MESSAGES[values["message"]](**values["columns"])
    except (ValueError, KeyError, TypeError) as error:
        raise OrderError(f"{body[:100]!r} is not a message of a fork server ({type(error).__name__}).") from None


class OrderFrames:
    """Collects received bytes, and returns the messages in them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def take(self) -> Message | None:
        """Return the next message; None if it is not complete yet; OrderError if it is invalid or too long."""
        if len(self._data) < HEAD_BYTES:
            return None
        (n_bytes,) = _HEAD.unpack(self._data[:HEAD_BYTES])
        if n_bytes > MOST_BYTES:
            raise OrderError(f"a message of {n_bytes} bytes; at most {MOST_BYTES} are expected.")
        if len(self._data) < HEAD_BYTES + n_bytes:
            return None
        body = bytes(self._data[HEAD_BYTES : HEAD_BYTES + n_bytes])
        del self._data[: HEAD_BYTES + n_bytes]
        return decode(body)


SWITCH: Final = "LABKIT_FORK_SERVER"
FOLDER: Final = "LABKIT_FORK_SERVER_FOLDER"
IDLE: Final = "LABKIT_FORK_SERVER_IDLE_S"
IDLE_S: Final = 60.0
ROOT: Final = Path(__file__).parents[3]
"""Folder that holds this labkit."""
FORMING: Final = (
    "PYTHON", "LD_", "LANG", "LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_",
    "NUMBA_", "TORCH", "PYTORCH_", "ATEN_", "MALLOC_", "GLIBC_",
)  # fmt: skip
"""Prefixes of environment variables that imports read: children with other values need another server."""
LATER: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_CACHE_DIR", "PYTHONHASHSEED")
"""Variables with such a prefix that the child sets itself, that do not change imports, or that all servers have."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Of all servers: threads would not be copied by a fork, and OpenMP gives the number at its start to any new thread."""
HASH_SEED: Final = "0"
"""PYTHONHASHSEED of all servers and members: a set has the same order in a worker and in its replacement."""
CARRIED: Final = ("PATH", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
"""Variables that a server takes from the client that starts it; those of later clients are ignored."""
RIGHTS: Final = (b"Uid", b"Gid", b"Groups", b"NoNewPrivs", b"Seccomp", b"Cap")
CAP_SYS_ADMIN: Final = 21


class ForkError(Exception):
    """There is no fork server, or it cannot carry out a request."""


class SettingError(ForkError):
    """An environment variable has an invalid value."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of fork servers in environment variables."""

    on: bool
    """Whether fork servers are used."""
    folder: Path
    """Folder of their sockets."""
    idle_s: float
    """Seconds without children and orders after which a server ends."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """Return the settings of an environment; SettingError if a value is invalid."""
        switch, idle = env.get(SWITCH, "on"), env.get(IDLE, str(IDLE_S))
        if switch not in ("on", "off"):
            raise SettingError(f"{SWITCH} is {switch!r}; expected on or off.")
        try:
            idle_s = float(idle)
        except ValueError:
            idle_s = 0.0
        if not 0 < idle_s < 1e6:
            raise SettingError(f"{IDLE} is {idle!r}; expected seconds above 0, such as 60.")
        return cls(switch == "on", Path(env.get(FOLDER) or default_folder(env)), idle_s)


def default_folder(env: Mapping[str, str], *, shared: str = "/tmp") -> Path:
    """Return a folder below /tmp, where sockets end with the host's start, or in HOME if another user has taken it."""
    usual = Path(shared, f"labkit-forks-{os.getuid()}")
    try:
        if _is_own(usual.lstat()):
            return usual
    except OSError:
        return usual
    home = env.get("XDG_STATE_HOME") or Path(env.get("HOME") or Path.home(), ".local", "state")
    return Path(home, "labkit", f"forks-{socket.gethostname()}")


def own_folder(folder: Path) -> Path:
    """Make the folder of sockets, or check that no other user can write into it.

    Raise ForkError if it is a link, belongs to another user, or other users may enter it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        raise ForkError(f"{folder} cannot be made: {error.strerror}; name another {FOLDER}.") from None
    if not _is_own(status):
        raise ForkError(
            f"{folder} is no folder of user {os.getuid()} alone (mode {stat.filemode(status.st_mode)}, "
            f"owner {status.st_uid}); remove it, or name another {FOLDER}."
        )
    return folder


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def is_formed_by(name: str) -> bool:
    """Return whether imports may depend on an environment variable.

    >>> is_formed_by("PYTHONPATH"), is_formed_by("OMP_NUM_THREADS"), is_formed_by("CUDA_VISIBLE_DEVICES")
    (True, False, False)
    """
    return name.startswith(FORMING) and name not in LATER


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fork server for children with `env`, without variables that mark a run or a host."""
    kept = {name: value for name, value in env.items() if is_formed_by(name)}
    carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
    return {**kept, **carried, **ONE_THREAD, "PYTHONHASHSEED": HASH_SEED}


def key(env: Mapping[str, str]) -> str:
    """Return the name of a server's socket: a digest of the state that its children inherit."""
    parts = [
        sys.executable, sys.version, *(f"{name}={env[name]}" for name in sorted(env) if is_formed_by(name)),
        *_sources(), *_libraries(), *_namespaces(), *_rights(),
        f"nice {os.getpriority(os.PRIO_PROCESS, 0)} policy {os.sched_getscheduler(0)}",
        *(str(resource.getrlimit(each)) for each in _limits()),
    ]  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def _sources() -> Iterator[str]:
    folders = [str(ROOT / "labkit")]
    for folder in folders:
        for each in sorted(os.scandir(folder), key=lambda each: each.name):
            if each.name.endswith(".py"):
                status = each.stat()
                yield f"{each.path} {status.st_size} {status.st_mtime_ns}"
            elif each.is_dir() and not each.name.startswith("__"):
                folders.append(each.path)


def _libraries() -> Iterator[str]:
    """Yield the times of folders of packages: they change when a package is installed or removed."""
    for entry in sys.path:
        if entry.rstrip("/").endswith("-packages"):
            with contextlib.suppress(OSError):
                yield f"{entry} {os.stat(entry).st_mtime_ns}"


def _namespaces() -> Iterator[str]:
    """Yield the namespaces that a child cannot change, its root folder, control groups and OOM score."""
    for name in sorted(os.listdir("/proc/thread-self/ns")):
        if name != "net" or not may_enter():
            yield os.readlink(f"/proc/thread-self/ns/{name}")
    yield os.readlink("/proc/thread-self/root")
    for name in ("cgroup", "oom_score_adj"):
        yield Path(f"/proc/thread-self/{name}").read_text()


def _rights() -> Iterator[str]:
    for line in Path("/proc/thread-self/status").read_bytes().splitlines():
        if line.startswith(RIGHTS):
            yield line.decode(errors="replace")


def may_enter() -> bool:
    """Return whether this process may enter other network namespaces, as root may on a laptop testbed."""
    status = Path("/proc/thread-self/status").read_bytes()
    effective = next(line for line in status.splitlines() if line.startswith(b"CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)


def _limits() -> list[int]:
    return sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock whose file its holder may remove; yields whether it is held."""
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            if _is_at(path, file.fileno()):
                yield True
                return


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def lock_of(path: Path) -> Path:
    """Return the lock of a fork server's socket."""
    return path.with_suffix(".lock")


def log_of(path: Path) -> Path:
    """Return the log of a fork server."""
    return path.with_suffix(".log")


def early_of(path: Path) -> Path:
    """Return the path of a fork server's socket until the server is ready."""
    return path.with_suffix(".early")


def clear(path: Path) -> None:
    """Remove a socket with its lock and log, and the folder if it is empty then."""
    for each in (path, early_of(path), log_of(path), lock_of(path)):
        each.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()

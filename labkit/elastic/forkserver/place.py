"""Where the fork server of a user is: one for each host, interpreter, labkit, and whatever its children inherit."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SWITCH: Final = "LABKIT_FORK_SERVER"
FOLDER: Final = "LABKIT_FORK_SERVER_FOLDER"
IDLE: Final = "LABKIT_FORK_SERVER_IDLE_S"
IDLE_S: Final = 60.0
ROOT: Final = Path(__file__).parents[3]
"""Where this labkit is found."""
FORMING: Final = (
    "PYTHON", "LD_", "LANG", "LC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_",
    "NUMBA_", "TORCH", "PYTORCH_", "ATEN_", "MALLOC_", "GLIBC_",
)  # fmt: skip
"""Beginnings of variables that are read while modules are imported: children with others need another server."""
LATER: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_CACHE_DIR")
"""But these are seen to in the child, or change nothing."""
CARRIED: Final = ("PATH", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
"""Variables that a server has from the client that starts it, whatever those of later clients are."""
RIGHTS: Final = (b"Uid", b"Gid", b"Groups", b"NoNewPrivs", b"Seccomp", b"Cap")
CAP_SYS_ADMIN: Final = 21


class ForkError(Exception):
    """There is no fork server, or it cannot do what it was asked."""


class SettingError(ForkError):
    """A variable says nothing that makes sense."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What variables say of fork servers.

    Attributes
    ----------
    on : bool
        Whether they are used.
    folder : Path
        Of their sockets.
    idle_s : float
        A server ends after so long without children and orders.
    """

    on: bool
    folder: Path
    idle_s: float

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """Read them.

        Raises
        ------
        SettingError
            If one makes no sense.
        """
        switch, idle = env.get(SWITCH, "on"), env.get(IDLE, str(IDLE_S))
        if switch not in ("on", "off"):
            raise SettingError(f"{SWITCH} is {switch!r}; expected on or off.")
        try:
            idle_s = float(idle)
        except ValueError:
            idle_s = 0.0
        if not 0 < idle_s < 1e6:
            raise SettingError(f"{IDLE} is {idle!r}; expected seconds above 0, such as 60.")
        return cls(switch == "on", Path(env.get(FOLDER) or f"/tmp/labkit-forks-{os.getuid()}"), idle_s)


def own_folder(folder: Path) -> Path:
    """Make the folder of sockets, or see that no other user can have put anything there.

    Raises
    ------
    ForkError
        If it is a link, belongs to somebody else, or others may enter it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise ForkError(f"{folder} cannot be made: {error.strerror}; name another {FOLDER}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ForkError(
            f"{folder} is no folder of user {os.getuid()} alone (mode {stat.filemode(found.st_mode)}, "
            f"owner {found.st_uid}); remove it, or name another {FOLDER}."
        )
    return folder


def is_formed_by(name: str) -> bool:
    """Tell whether imports may depend on a variable.

    >>> is_formed_by("PYTHONPATH"), is_formed_by("OMP_NUM_THREADS"), is_formed_by("CUDA_VISIBLE_DEVICES")
    (True, False, False)
    """
    return name.startswith(FORMING) and name not in LATER


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fork server whose children have such a one: nothing that marks a run or a host."""
    kept = {name: value for name, value in env.items() if is_formed_by(name)}
    carried = {name: os.environ[name] for name in CARRIED if name in os.environ}
    return {**kept, **carried, "OPENBLAS_NUM_THREADS": "1"}  # it would start threads, which no fork takes along


def key(env: Mapping[str, str]) -> str:
    """Return a name for all that a child of a fork server has from it: the same for whoever can use the same server.

    Parameters
    ----------
    env : mapping
        The environment that the child is to have.
    """
    said = [
        sys.executable, sys.version, *(f"{name}={env[name]}" for name in sorted(env) if is_formed_by(name)),
        *_sources(), *_libraries(), *_namespaces(), *_rights(),
        f"nice {os.getpriority(os.PRIO_PROCESS, 0)} policy {os.sched_getscheduler(0)}",
        *(str(resource.getrlimit(each)) for each in _limits()),
    ]  # fmt: skip
    return hashlib.sha256("\n".join(said).encode(errors="surrogateescape")).hexdigest()[:16]


def _sources() -> Iterator[str]:
    """Yield what changes when a file of labkit does."""
    folders = [str(ROOT / "labkit")]
    for folder in folders:
        for each in sorted(os.scandir(folder), key=lambda each: each.name):
            if each.name.endswith(".py"):
                found = each.stat()
                yield f"{each.path} {found.st_size} {found.st_mtime_ns}"
            elif each.is_dir() and each.name != "__pycache__":
                folders.append(each.path)


def _libraries() -> Iterator[str]:
    """Yield what changes when something is installed or removed."""
    for entry in sys.path:
        if entry.rstrip("/").endswith("-packages"):
            with contextlib.suppress(OSError):
                yield f"{entry} {os.stat(entry).st_mtime_ns}"


def _namespaces() -> Iterator[str]:
    """Yield the namespaces that a child cannot change, and where it is in the trees of files and control groups."""
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
    """Tell whether this process may enter other networks, as root of a laptop testbed may."""
    status = Path("/proc/thread-self/status").read_bytes()
    effective = next(line for line in status.splitlines() if line.startswith(b"CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)


def _limits() -> list[int]:
    return sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def uid_of(sock: socket.socket) -> int:
    """Return the user at the other end of a unix socket, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock whose file may be removed by whoever holds it; yields whether it is held."""
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
    """Return the name of a fork server's socket until it is ready."""
    return path.with_suffix(".early")


def clear(path: Path) -> None:
    """Remove a socket and what lies beside it, and the folder with the last of them."""
    for each in (path, early_of(path), log_of(path), lock_of(path)):
        each.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()

"""The agent's folder: its layout, private to its owner, and the records of runs and tasks in it.

Files are opened so that no link leads out of the folder; records are written before they are acted upon.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from labkit.system.private_files import write_private
from labkit.system.proc import Identity
from labkit.system.unix_sockets import connected
from labkit.testbed.agent.messages import Refusal, check_name

SOCKET: Final = "agent.sock"
LOCK: Final = "agent.lock"
STATE: Final = "agent.json"
RUNS: Final = "runs"
LABEL: Final = "run.json"
EVENTS: Final = "events.jsonl"
LOG: Final = "log"
TASK_SOCKET: Final = "task.sock"
RESULT: Final = "result.json"
DEPTH: Final = 6
"""Most folders between that of a task and a file."""
LARGEST: Final = 1 << 20
SECRET: Final = (".key", "home.tar")
"""Endings of the names of files with keys: keys, and archives of launchers' folders that were never unpacked."""
FORMAT: Final = "labkit run 1"
"""Format in the label of a run's folder; a folder without it is never removed."""
BOOT: Final = "LABKIT_BOOT_ID"
"""Environment variable: a file to read instead of the kernel's boot id, for hosts of a laptop testbed."""
KERNELS: Final = "/proc/sys/kernel/random/boot_id"


def own_folder(path: str | Path) -> Path:
    """Make the folder of an agent with mode 0700, or check that it belongs to this user and set that mode.

    Raise Refusal if it belongs to another user, or cannot be made.
    """
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        found = folder.stat()
    except OSError as error:
        raise Refusal("folder", f"{folder} cannot be made: {error.strerror}") from None
    if found.st_uid != os.getuid():
        raise Refusal("folder", f"{folder} belongs to user {found.st_uid}, not to {os.getuid()}; name another `folder`")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def parts(text: object, what: str) -> list[str]:
    """Return the parts of a relative path, each of them a name.

    >>> parts("keys/ps.pem", "file")
    ['keys', 'ps.pem']
    """
    if not isinstance(text, str) or text.count("/") > DEPTH:
        raise Refusal("name", f"{what} {str(text)[:80]!r} is no relative path of at most {DEPTH} folders")
    return [check_name(part, what) for part in text.split("/")]


@contextlib.contextmanager
def inside(folder: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder at a path without following links; yield its file descriptor."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=handle)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_file(folder: Path, names: list[str]) -> int | None:
    """Open a regular file for reading without following links; None if there is none.

    Raise Refusal if it is something else than a plain file.
    """
    try:
        with inside(folder, names[:-1]) as handle:
            file = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refusal("file", f"{'/'.join(names)} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refusal("file", f"{'/'.join(names)} is no plain file")
    return file


def put_file(folder: Path, names: list[str], data: bytes, *, mode: int) -> None:
    """Write a small file atomically, without following links."""
    temporary = f".{names[-1]}.new"
    with inside(folder, names[:-1], make=True) as handle:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=handle)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, mode, dir_fd=handle)
        with os.fdopen(file, "wb") as writer:
            os.fchmod(file, mode)
            writer.write(data)
        os.rename(temporary, names[-1], src_dir_fd=handle, dst_dir_fd=handle)


def call(folder: Path, name: str) -> socket.socket:
    """Connect to the socket of that name in a folder; OSError if no process listens."""
    return connected(folder / name)


def code_of(folder: Path, task: str) -> int | None:
    """Return `code` of result.json in the folder of a task, or None."""
    try:
        file = open_file(folder, [task, RESULT])
    except Refusal:
        return None
    if file is None:
        return None
    try:
        result = json.loads(os.read(file, LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(file)
    code = result.get("code") if isinstance(result, dict) else None
    return code if type(code) is int and -(2**31) <= code < 2**31 else None


def forget_keys(folder: Path) -> int:
    """Remove the keys below a folder, without following links; return their number."""
    n_gone = 0
    for _, _, names, handle in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            if name.endswith(SECRET):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=handle)
                    n_gone += 1
    return n_gone


class Phase(StrEnum):
    """State of a task."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class TaskRecord:
    """A task: its first process, and all processes that it started."""

    name: str
    token: str
    """Distinguishes this start from others of the same name."""
    argv: list[str]
    cores: list[int] | None = None
    gpus: list[str] | None = None
    """Identifiers of the GPUs that it holds; None: none were requested, and it sees all."""
    leaving: list[str] = field(default_factory=list)
    """GPUs that it has given back, and that its processes may still see."""
    phase: Phase = Phase.STARTING
    pid: int = 0
    start: int = 0
    started_s: float = 0.0
    ended_s: float | None = None
    code: int | None = None
    """Exit code; None if a signal ended it, or if it is unknown."""
    signal: str | None = None
    how: str = ""
    """How it ended, in words."""
    server: str = ""
    """Socket of the fork server that reports its end; empty for a plain process."""

    @property
    def first_process(self) -> Identity:
        """First process of the task."""
        return Identity(self.pid, self.start)

    @classmethod
    def read(cls, values: dict[str, Any]) -> TaskRecord:
        """Read what `asdict` returned."""
        known = {each.name for each in fields(cls)}
        task = cls(**{name: value for name, value in values.items() if name in known})
        task.phase = Phase(task.phase)
        return task


@dataclass(slots=True)
class AgentRunRecord:
    """A run."""

    run: str
    boot: str
    """Start of the host that `until_s` counts from."""
    lease_s: float
    until_s: float
    """End of its lease, in seconds since that start."""
    over: str = ""
    """Why it is over; empty while it goes on."""
    over_s: float | None = None
    """When it was over, in seconds since 1970."""
    saying: dict[str, Any] | None = None
    """The event that belongs to this state: number, kind and values."""
    tasks: dict[str, TaskRecord] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_private(folder / LABEL, json.dumps({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> AgentRunRecord | None:
        """Read it from the folder of a run; None where there is no label, or it is of another run."""
        label = read_json(folder / LABEL)
        if label is None or label.get("format") != FORMAT or label.get("run") != folder.name:
            return None
        try:
            tasks = {name: TaskRecord.read(task) for name, task in label["tasks"].items()}
            names = ("run", "boot", "lease_s", "until_s", "over", "over_s", "saying")
            return cls(**{name: label[name] for name in names}, tasks=tasks)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def running(self) -> list[TaskRecord]:
        """Its tasks that have not ended."""
        return [task for task in self.tasks.values() if task.phase != Phase.ENDED]


def machine_id() -> str:
    """Return the kernel's boot id: hosts with the same id are one machine, and share its cores."""
    return Path(KERNELS).read_text().strip()


def boot_id() -> str:
    """Return an id of this start of the host."""
    return Path(os.environ.get(BOOT) or KERNELS).read_text().strip()

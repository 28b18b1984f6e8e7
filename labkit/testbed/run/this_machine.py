"""A run whose only host is this machine: its agent is reached through a pipe, and nothing is deployed.

All else is as on other hosts: the agent keeps the run without a client, and a later process attaches to it.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import subprocess
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from labkit.core.errors import InputError, LabkitError
from labkit.core.files import refuse_closed
from labkit.testbed.agent.bridge import search_path
from labkit.testbed.agent.local import end
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.ssh.fleet import Command, Fleet
from labkit.testbed.ssh.outcomes import Answers, HostAnswer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

NAME: Final = "here"
"""Name of this machine in events."""
AGENT: Final = "agent"
LEFT_CORE: Final = 1e-9
HOST: Final = """# This machine, for labkit attach.
[ssh]
config = "none"

[[hosts]]
name = "{name}"
gpus = 0
cpus = {cpus!r}
memory_gb = {memory_gb!r}
device_type = "cpu"
ssh = {{ local = true, folder = {folder} }}
"""


def local_inventory(folder: Path, *, cores: float | None = None, memory_gb: float | None = None) -> Inventory:
    """Return an inventory of this machine alone, and write its file for `attach` into a folder.

    Parameters
    ----------
    folder : Path
        Folder of the file, and of the agent.
    cores, memory_gb : float, optional
        Capacity to share; by default what this process may use.

    Raises
    ------
    InputError
        If the machine has less, or nothing can be written there.
    """
    import json

    there = len(os.sched_getaffinity(0))
    n = float(there) if cores is None else cores
    if not 0 < n <= there + LEFT_CORE:
        raise InputError(f"{n:g} cores are to be shared; expected more than 0 and at most the {there} of this machine.")
    refuse_closed(folder)
    folder.mkdir(parents=True, exist_ok=True)
    memory = _memory_gb() if memory_gb is None else memory_gb
    agent = json.dumps(str(folder.absolute() / AGENT))
    path = folder / f"{n:g}-{'core' if n == 1 else 'cores'}.toml"
    path.write_text(HOST.format(name=NAME, cpus=float(n), memory_gb=round(memory, 3), folder=agent))
    return Inventory.read(path)


def _memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


class LocalFleet(Fleet):
    """A `Fleet` of this machine alone: programs are started, and files copied.

    Parameters
    ----------
    inventory : Inventory
        With one machine that has `local = true`.
    """

    here: ClassVar[bool] = True

    def __init__(self, inventory: Inventory) -> None:
        if len(inventory) != 1:
            raise InputError(
                f"inventory {inventory.path}: {len(inventory)} hosts, one of them with local = true; expected it alone."
            )
        self.inventory, self.connect_timeout_s = inventory, 0.0

    def connect(self, *, only: Iterable[str] | None = None) -> Answers:  # noqa: ARG002
        """Return that it can be reached."""
        return Answers((HostAnswer(self._machine.name, exited=0),))

    @property
    def _machine(self) -> Machine:
        return self.inventory.machines[0]

    def stream(self, machine: Machine | str, argv: Command) -> Any:  # noqa: ARG002
        """Start a program, and return a stream of its input and output."""
        return LocalStream(argv)

    def run(self, argv: Any, *, timeout_s: float = 60.0, **_: Any) -> Answers:
        """Run a command."""
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=timeout_s, check=False)
        return Answers((HostAnswer(self._machine.name, done.returncode, done.stdout, done.stderr),))

    def put(self, source: str | Path | bytes, target: str, **_: Any) -> Answers:
        """Copy a file to a path below the machine's folder, whole or not at all."""
        path = Path(self._machine.path(target))
        partial = path.with_name(f".{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            partial.write_bytes(source)
        else:
            shutil.copyfile(source, partial)
        partial.replace(path)
        return Answers((HostAnswer(self._machine.name, exited=0),))

    def close(self) -> None:
        """End the agent, unless it has a run that is not over."""
        from labkit.testbed.run.agents import agent_of

        with suppress(LabkitError, OSError), agent_of(self, self._machine, start=False, renew=False) as agent:
            agent.shutdown()


class LocalStream(io.RawIOBase):
    """Input and output of a program of this machine, the counterpart of `labkit.testbed.ssh.command.RemoteStream`.

    Ctrl-C in the terminal does not reach it.
    """

    def __init__(self, argv: Command) -> None:
        super().__init__()
        path = search_path()
        env = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
        words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        self._until_s: float | None = None
        self._reading = threading.Lock()
        self._program = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env, cwd="/", start_new_session=True
        )

    @property
    def exited(self) -> int | None:
        """Exit code of the program; None while it runs."""
        return self._program.poll()

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds after which `read` raises TimeoutError."""
        self._until_s = seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Wait for bytes and put them into a buffer; 0: the program has ended its output."""
        view = memoryview(buffer).cast("B")
        with self._reading:
            out = self._program.stdout
            if out is None or out.closed:
                return 0
            if not select.select([out], [], [], self._until_s)[0]:
                raise TimeoutError(f"nothing arrived for {self._until_s} s")
            data = os.read(out.fileno(), len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        """Send all bytes to the program; BrokenPipeError if it has closed its input."""
        assert self._program.stdin is not None
        left = memoryview(data).cast("B")
        n = len(left)
        while left:
            left = left[os.write(self._program.stdin.fileno(), left) :]
        return n

    def close(self) -> None:
        """End the stream; the program sees the end of its input."""
        if self.closed:
            return
        end(self._program, reading=self._reading)
        super().close()

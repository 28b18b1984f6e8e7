"""Connect to the agent of a folder on this machine, without SSH."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


class Piped:
    """A stream through stdin and stdout of a process.

    Parameters
    ----------
    argv : sequence of str
        Program and arguments.
    env : mapping, optional
        Its environment; this process' own, if not given.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._reading = threading.Lock()
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env, cwd="/"
        )

    def read(self, n: int) -> bytes:
        """Return at most n bytes."""
        assert self.process.stdout is not None
        with self._reading:
            return b"" if self.process.stdout.closed else self.process.stdout.read(n) or b""

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        assert self.process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[self.process.stdin.write(left) or 0 :]

    def close(self) -> None:
        """Close the stream and end the process; the agent stays."""
        end(self.process, reading=self._reading)


def end(program: subprocess.Popen[bytes], *, reading: threading.Lock) -> None:
    """End a program behind pipes: close its input, and kill it two seconds later.

    `reading` is held while its output is read.
    """
    assert program.stdin is not None
    with contextlib.suppress(OSError):
        program.stdin.close()
    try:
        program.wait(2.0)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    assert program.stdout is not None
    with reading:  # a reader has come to the end by now
        program.stdout.close()


class LocalBridge(Piped):
    """A stream to the agent of a folder on this machine, without SSH.

    Parameters
    ----------
    folder : Path
        Of the agent.
    start : bool
        Start an agent if there is none.
    env : mapping, optional
        Environment of the bridge, and of an agent that it starts; this process' own, if not given.
    """

    def __init__(self, folder: Path | str, *, start: bool = True, env: Mapping[str, str] | None = None) -> None:
        place = str(Path(folder).expanduser().absolute())
        more = () if start else ("--no-start",)
        super().__init__([sys.executable, "-m", "labkit.testbed.agent.bridge", place, *more], env=env)

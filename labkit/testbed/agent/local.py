"""Reach the agent of a folder on this very machine, without SSH."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class LocalBridge:
    """A stream to the agent of a folder on this very machine, without SSH.

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
        argv = [
            sys.executable,
            "-m",
            "labkit.testbed.agent.bridge",
            str(Path(folder).expanduser().absolute()),
            *(() if start else ("--no-start",)),
        ]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env, cwd="/"
        )

    def read(self, n: int) -> bytes:
        """Return up to so many bytes."""
        assert self.process.stdout is not None
        data = b"" if self.process.stdout.closed else self.process.stdout.read(n) or b""
        if not data:
            self.process.stdout.close()
        return data

    def write(self, data: bytes) -> None:
        """Write all of them."""
        assert self.process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[self.process.stdin.write(left) or 0 :]

    def close(self) -> None:
        """End the bridge; the agent goes on."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

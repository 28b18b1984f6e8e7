"""A duplex stream of bytes to a program on a host, over the SSH connection."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paramiko

from labkit.testbed.errors import ShellError
from labkit.testbed.ssh.closing import close
from labkit.testbed.ssh.shell import Opening

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

EXIT_CODE_S = 1.0
"""Seconds in which the exit code of a program may arrive after the end of its output."""

BEGIN_S = 30.0
"""Seconds that a login shell may take until it runs a command."""

TAIL = 8192
"""Most bytes of the program's error output that are kept, from its end."""


class RemoteStream(io.RawIOBase):
    """Input and output of a program on a host, a raw file: `read(n)` returns what is available, up to n bytes.

    It begins with the program's own first byte: output of the login shell before it is dropped.

    Wrap it in `io.BufferedReader` for lines. One thread may read while another writes; `close` wakes both.

    Attributes
    ----------
    host : str
        Where the program runs.
    noise : bytes
        Output of the login shell before the program began.

    Raises
    ------
    ShellError
        If the login shell there does not start the program.
    """

    def __init__(self, channel: paramiko.Channel, argv: Sequence[str] | str, *, host: str) -> None:
        super().__init__()
        self.host, self._channel, self._errors = host, channel, bytearray()
        self._ahead, self._opening, self._until_s = b"", Opening(), None  # type: bytes, Opening, float | None
        channel.exec_command(self._opening.line(argv))
        self._begin(BEGIN_S)
        self.noise = self._opening.noise

    def _begin(self, patience_s: float) -> None:
        """Read until the login's shell has started the program."""
        until_s = time.monotonic() + patience_s
        try:
            while not self._opening.has_begun():
                self._channel.settimeout(max(until_s - time.monotonic(), 0.001))
                self._drain()
                data = self._channel.recv(TAIL)
                if not data:
                    raise self._opening.refusal(self.wait(EXIT_CODE_S), errors=self.errors)
                self._ahead += self._opening.feed(data)
        except TimeoutError:
            raise ShellError(
                f"its login shell did not start labkit's program within {patience_s:g} s; does its rc file wait for "
                "something?"
            ) from None
        self._channel.settimeout(None)

    @property
    def errors(self) -> str:
        """The end of the program's error output, or of the login shell's output if no program began."""
        self._drain()
        return bytes(self._errors or self._opening.rest("stderr")).decode(errors="replace")

    @property
    def exited(self) -> int | None:
        """Exit code of the program; None while it runs, -1 if a signal or the end of the connection ended it."""
        return self._channel.recv_exit_status() if self._channel.exit_status_ready() else None

    def wait(self, timeout_s: float) -> int | None:
        """Return how the program ended, as `exited`; that may be known a moment after the end of its output."""
        self._channel.status_event.wait(timeout_s)
        return self.exited

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds after which `read` and `write` raise TimeoutError."""
        self._until_s = None
        self._channel.settimeout(seconds)

    def within(self, seconds: float) -> None:
        """Set the seconds from now after which `read` raises TimeoutError, until it or `settimeout` is called again."""
        self._channel.settimeout(seconds)
        self._until_s = time.monotonic() + seconds

    def fileno(self) -> int:
        """Return a file descriptor that is readable when there is something to read."""
        number: int = self._channel.fileno()
        return number

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Wait for bytes and put them into a buffer; 0: the program has closed its output."""
        view = memoryview(buffer).cast("B")
        self._drain()
        if self._until_s is not None:
            self._channel.settimeout(max(self._until_s - time.monotonic(), 0.001))
        data, self._ahead = self._ahead[: len(view)], self._ahead[len(view) :]
        data = data or self._channel.recv(len(view))
        if not data:
            self.wait(EXIT_CODE_S)  # after `close` the exit code would not arrive
        view[: len(data)] = data
        return len(data)

    def write(self, data: ReadableBuffer, /) -> int:
        """Send all bytes to the program; BrokenPipeError if it has closed its input."""
        view = memoryview(data).cast("B")
        try:
            if self._channel.exit_status_ready():  # the end may be known before the channel is closed
                raise EOFError
            self._channel.sendall(bytes(view))
        except TimeoutError:
            raise
        except (OSError, EOFError, paramiko.SSHException):
            raise BrokenPipeError(
                f"the program on {self.host} takes no more: {self.errors.strip() or 'it ended'}"
            ) from None
        return len(view)

    def end(self) -> None:
        """Close the program's input; its output can still be read."""
        self._channel.shutdown_write()

    def close(self) -> None:
        """Close the stream; the program sees the end of its input."""
        if not self.closed:
            close(self._channel)
        super().close()

    def _drain(self) -> None:
        """Read the error output, so that it does not block the program."""
        channel: Any = self._channel
        while channel.recv_stderr_ready():
            self._errors += self._opening.feed(channel.recv_stderr(TAIL), output="stderr")
        del self._errors[:-TAIL]

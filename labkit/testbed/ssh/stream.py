"""A duplex stream of bytes to a program on a host, over the SSH connection."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paramiko

from labkit.testbed.errors import ShellError
from labkit.testbed.ssh.shell import Opening

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LAST_WORD_S = 1.0
"""How a program ended may be told so long after the end of its output."""

BEGIN_S = 30.0
"""A login's shell may take so long until it runs a command."""

TAIL = 8192
"""Bytes of the program's error output that are kept: the last ones."""


class RemoteStream(io.RawIOBase):
    """What a program on a host says and is told; a raw file: `read(n)` returns what has come, up to n bytes.

    It begins with the program's own first byte: what the login's shell said before is dropped.

    Wrap it in `io.BufferedReader` for lines. One thread may read while another writes; `close` wakes both.

    Attributes
    ----------
    host : str
        Where the program runs.
    noise : bytes
        What the login's shell said before the program began.

    Raises
    ------
    ShellError
        If the login's shell there does not start the program.
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
                    raise self._opening.refusal(self.wait(LAST_WORD_S), errors=self.errors)
                self._ahead += self._opening.feed(data)
        except TimeoutError:
            raise ShellError(
                f"its login shell did not start labkit's program within {patience_s:g} s; does its rc file wait for "
                "something?"
            ) from None
        self._channel.settimeout(None)

    @property
    def errors(self) -> str:
        """The end of what the program said on its error output; the login's shell, where no program began."""
        self._drain()
        return bytes(self._errors or self._opening.rest("stderr")).decode(errors="replace")

    @property
    def exited(self) -> int | None:
        """Exit code of the program; None while it runs, -1 if a signal or the end of the connection ended it."""
        return self._channel.recv_exit_status() if self._channel.exit_status_ready() else None

    def wait(self, timeout_s: float) -> int | None:
        """Return how the program ended, as `exited`; that may come a moment after its last words."""
        self._channel.status_event.wait(timeout_s)
        return self.exited

    def settimeout(self, seconds: float | None) -> None:
        """Let `read` and `write` raise TimeoutError after so long."""
        self._until_s = None
        self._channel.settimeout(seconds)

    def within(self, seconds: float) -> None:
        """Let whatever is read from now on raise TimeoutError after so long in all, until one of both is said anew."""
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
        """Wait for bytes and put them into a buffer; 0: the program has ended its output."""
        view = memoryview(buffer).cast("B")
        self._drain()
        if self._until_s is not None:
            self._channel.settimeout(max(self._until_s - time.monotonic(), 0.001))
        data, self._ahead = self._ahead[: len(view)], self._ahead[len(view) :]
        data = data or self._channel.recv(len(view))
        if not data:
            self.wait(LAST_WORD_S)  # whoever closes this now would not hear how it ended
        view[: len(data)] = data
        return len(data)

    def write(self, data: ReadableBuffer, /) -> int:
        """Send all of some bytes to the program; BrokenPipeError where it takes no more."""
        view = memoryview(data).cast("B")
        try:
            if self._channel.exit_status_ready():  # the end may be told before the channel is closed
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
        """Tell the program that nothing more will come; it may still be read."""
        self._channel.shutdown_write()

    def close(self) -> None:
        """End the stream; the program sees the end of its input."""
        if not self.closed:
            self._channel.close()
        super().close()

    def _drain(self) -> None:
        """Take what is on the error output, so that it does not stand in the way."""
        channel: Any = self._channel
        while channel.recv_stderr_ready():
            self._errors += self._opening.feed(channel.recv_stderr(TAIL), output="stderr")
        del self._errors[:-TAIL]

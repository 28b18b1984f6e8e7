"""A duplex stream of bytes to a program on a host, over the SSH connection."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paramiko

from labkit.testbed.call import command_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

LAST_WORD_S = 1.0
"""How a program ended may be told so long after the end of its output."""

TAIL = 8192
"""Bytes of the program's error output that are kept: the last ones."""


class Stream(io.RawIOBase):
    """What a program on a host says and is told; a raw file: `read(n)` returns what has come, up to n bytes.

    Wrap it in `io.BufferedReader` for lines. One thread may read while another writes; `close` wakes both.

    Attributes
    ----------
    host : str
        Where the program runs.
    """

    def __init__(self, channel: paramiko.Channel, argv: Sequence[str] | str, *, host: str) -> None:
        super().__init__()
        self.host, self._channel, self._errors = host, channel, bytearray()
        channel.exec_command(f"exec {command_line(argv)}")

    @property
    def errors(self) -> str:
        """The end of what the program said on its error output."""
        self._drain()
        return bytes(self._errors).decode(errors="replace")

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
        self._channel.settimeout(seconds)

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
        data = self._channel.recv(len(view))
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
            self._errors += channel.recv_stderr(TAIL)
        del self._errors[:-TAIL]

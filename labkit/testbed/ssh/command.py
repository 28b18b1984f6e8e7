"""One command on one host: words are quoted, its time is bounded, and its output is passed on line by line."""

from __future__ import annotations

import codecs
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import paramiko

from labkit.testbed.errors import CutError, HostError, OverdueError
from labkit.testbed.ssh.closing import close
from labkit.testbed.ssh.frames import readable
from labkit.testbed.ssh.shell import Opening, for_any_shell

Lines = Callable[[str], None]
CHUNK = 256 * 1024
WINDOW = 8 << 20
MAX_KEPT = 64 << 20
"""Most bytes of an output that are kept; a larger output needs a file."""
GRACE_S = 1.0
END = """kill -TERM -$1 || exit 0
for i in 1 2 3 4 5 6 7 8 9 10; do sleep $2; kill -0 -$1 || exit 0; done
kill -KILL -$1 || ! kill -0 -$1"""
"""Ends a process group: asks it, and makes it."""


class StopRequest:
    """A request to stop, which `poll` can wait for; shared by any number of commands."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        """True once the stop was requested."""
        return self._end < 0

    def set(self) -> None:
        """Request the stop."""
        with self._lock:
            if self._end >= 0:
                os.close(self._end)
                self._end = -1

    def close(self) -> None:
        """Close the file descriptors; no command may use them any more."""
        self.set()
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """Output and exit code of a command."""

    exited: int
    stdout: bytes
    stderr: bytes


class RemoteCommand:
    """A command on an open connection.

    Parameters
    ----------
    transport : paramiko.Transport
        The connection.
    argv : sequence of str, or str
        See `labkit.testbed.ssh.shell.command_line`.
    lines : callable, optional
        Called with each line of both outputs as it comes.
    stop : StopRequest, optional
        Ends the command there once it is set.
    sink : callable, optional
        Takes the output instead of its being kept.
    """

    def __init__(
        self,
        transport: paramiko.Transport,
        argv: Sequence[str] | str,
        *,
        lines: Lines | None = None,
        stop: StopRequest | None = None,
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        self.transport, self.argv, self._stop = transport, argv, stop
        self._opening = Opening()
        self._out = _Output(self._opening, "stdout", lines, sink)
        self._err = _Output(self._opening, "stderr", lines)
        self._channel: Any = None

    def open(self, *, timeout_s: float) -> None:
        """Open the channel; nothing runs yet, so that a failure can be retried on another connection."""
        self._channel = self.transport.open_session(window_size=WINDOW, timeout=timeout_s)

    def run(self, *, timeout_s: float, stdin: bytes | Iterable[bytes] = b"") -> CompletedCommand:
        """Run the command to its end; parts of an input are requested as they are sent.

        Raises
        ------
        OverdueError
            If it did not end in time; its process group is killed. Without any time left it is not started.
        CutError
            If the connection broke.
        ShellError
            If the login shell did not start it.
        HostError
            If its output is larger than `MOST_BYTES`.
        """
        if timeout_s <= 0:
            close(self._channel)
            raise OverdueError(f"there was no time left for the command ({timeout_s:g} s); it was not begun.")
        channel, until_s = self._channel, time.monotonic() + timeout_s
        watchdog = threading.Timer(timeout_s + 6 * GRACE_S, _cut, (self.transport,))  # a server that hangs, too
        watchdog.daemon = True
        watchdog.start()
        try:
            channel.exec_command(self._opening.line(self.argv))
            self._feed(stdin)
            self._follow(until_s)
            return self._ended(timeout_s)
        except (paramiko.SSHException, EOFError, ConnectionError) as error:
            if time.monotonic() > until_s:
                raise OverdueError(
                    f"the server did not answer within {timeout_s:g} s; the connection was cut."
                ) from None
            raise CutError(f"the connection broke while the command ran ({error or type(error).__name__}).") from None
        finally:
            watchdog.cancel()
            close(channel)

    def _feed(self, stdin: bytes | Iterable[bytes]) -> None:
        """Send the command's input, while its output is read."""

        def send() -> None:
            with suppress(OSError, EOFError, paramiko.SSHException):  # it may end before it has read all of it
                for part in [stdin] if isinstance(stdin, bytes) else stdin:
                    self._channel.sendall(part)
                self._channel.shutdown_write()

        if stdin:
            threading.Thread(target=send, daemon=True).start()
        else:
            send()

    def _follow(self, until_s: float) -> None:
        """Read both outputs until both have ended, or the time is over."""
        channel, ready = self._channel, select.poll()
        ready.register(channel.fileno(), select.POLLIN)
        if self._stop is not None:
            ready.register(self._stop.fd, select.POLLIN)
        while (left_s := until_s - time.monotonic()) > 0 and not self._stopped:
            ended = channel.eof_received or channel.closed  # checked before the rest is read
            if self._take():
                continue
            if ended:
                channel.status_event.wait(left_s)
                return
            ready.poll(left_s * 1000)

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set

    def _take(self) -> bool:
        """Read what is available; return False if nothing was."""
        channel, moved = self._channel, False
        if channel.recv_ready():
            self._out.take(channel.recv(CHUNK))
            moved = True
        if channel.recv_stderr_ready():
            self._err.take(channel.recv_stderr(CHUNK))
            moved = True
        if max(len(self._out.kept), len(self._err.kept)) > MAX_KEPT:
            self._end_group()
            raise HostError(
                f"the command wrote more than {MAX_KEPT >> 20} MiB; send it to a file there and fetch that."
            )
        return moved

    def _ended(self, timeout_s: float) -> CompletedCommand:
        """Return the completed command, or raise the reason why it did not end."""
        channel = self._channel
        if not self._stopped and channel.exit_status_ready():
            exited = channel.recv_exit_status()
            if exited == -1 and not self._alive():
                raise EOFError("the connection ended")
            if not self._opening.has_begun():
                raise self._opening.refusal(exited)
            self._out.end()
            self._err.end()
            return CompletedCommand(exited, bytes(self._out.kept), bytes(self._err.kept))
        ended = self._end_group()
        what = "was stopped" if self._stopped else f"did not end within {timeout_s:g} s"
        rest = "it was ended there" if ended else "it may still run there"
        output = self._err.kept or self._out.kept or self._opening.rest("stderr") or self._opening.rest("stdout")
        end = readable(bytes(output[-200:]).strip())
        raise OverdueError(f"the command {what}; {rest}." + (f" Its output: {end}" if end else ""))

    def _alive(self) -> bool:
        """Return whether the connection still exists; its reader needs a moment to notice its end."""
        self.transport.join(GRACE_S / 10)
        return bool(self.transport.is_active())

    def _group(self) -> int | None:
        """Return the command's process group; wait a moment for it if the command has just begun."""
        ready, until_s = select.poll(), time.monotonic() + GRACE_S
        ready.register(self._channel.fileno(), select.POLLIN)
        while self._opening.group is None and not self._channel.closed and (left_s := until_s - time.monotonic()) > 0:
            if not self._take():
                ready.poll(left_s * 1000)
        return self._opening.group

    def _end_group(self) -> bool:
        """Send SIGTERM and then SIGKILL to the command's process group, through a channel of its own."""
        group = self._group()
        if group is None:
            return False
        with (
            suppress(paramiko.SSHException, OSError, EOFError),
            self.transport.open_session(timeout=GRACE_S) as channel,
        ):
            channel.exec_command(for_any_shell(f"set -- {group} {GRACE_S / 10}\nexec 2>/dev/null\n{END}"))
            return bool(channel.status_event.wait(3 * GRACE_S)) and channel.recv_exit_status() == 0
        return False


def _cut(transport: paramiko.Transport) -> None:
    transport.sock.close()


class _Output:
    """One output of a command, without the noise of the login shell: kept, and passed on line by line."""

    def __init__(
        self, opening: Opening, name: str, lines: Lines | None, sink: Callable[[bytes], None] | None = None
    ) -> None:
        self.kept = bytearray()
        self._opening, self._name, self._sink, self._lines, self._rest = opening, name, sink, lines, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> None:
        """Take the next bytes."""
        data = self._opening.feed(data, output=self._name)
        if self._sink is not None:
            self._sink(data)
            return
        self.kept += data
        if self._lines is not None:
            *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
            for line in whole:
                self._lines(line.removesuffix("\r"))

    def end(self) -> None:
        """Pass on the last line, which has no newline."""
        if self._lines is not None and self._rest:
            self._lines(self._rest)
            self._rest = ""

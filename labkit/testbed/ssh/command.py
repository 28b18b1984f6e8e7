"""One program on one host: a command that runs to its end in a bounded time, or a stream of its input and output.

It passes through any login shell, whose own output is separated from it. The shell gets one line that sh, bash, zsh,
fish and tcsh all read the same way: it has no newline, quote, backslash pair or exclamation mark. /bin/sh decodes the
command from it, and prints a mark on both outputs before the command begins: output before the mark, such as a
greeting or an unterminated line, does not belong to the command.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import secrets
import select
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import paramiko

from labkit.testbed.errors import CutError, HostError, OverdueError, ShellError
from labkit.testbed.ssh.outcomes import readable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

MAX_NOISE = 64 << 10
"""Most bytes that a login shell may write before the command begins."""
DECODER = 'eval "$(printf %b "$1")"'
BEGIN = """cd 2>/dev/null; m=$(printf '\\036labkit-group {nonce}'); echo "$m $$"; echo "$m $$" >&2; exec {words}"""
"""The command takes the place of the shell that the server started, which leads its process group: $$ is the group.

The mark's first letter is a control character, so a shell that echoes its commands does not print it.
"""
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
EXIT_CODE_S = 1.0
"""Seconds in which the exit code of a program may arrive after the end of its output."""
BEGIN_S = 30.0
"""Seconds that a login shell may take until it runs a command."""
TAIL = 8192
"""Most bytes of the program's error output that are kept, from its end."""


def command_line(argv: Sequence[str] | str) -> str:
    """Return a command line with which /bin/sh gets exactly these words.

    A string is a script for /bin/sh. A word that begins with "~/" is below the home of the login.

    >>> print(command_line(["echo", "it's", "$HOME; rm *", "~/a b"]))
    echo 'it'"'"'s' '$HOME; rm *' ~/'a b'
    """
    words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else [*argv]
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if "\0" in word:
        raise ValueError(f"a word of a command has a zero byte: {word!r}")
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


def for_any_shell(script: str) -> str:
    r"""Return a line that makes any login shell run a script by /bin/sh.

    >>> print(for_any_shell("echo 'a!'\n"))
    exec /bin/sh -c 'eval "$(printf %b "$1")"' sh 'echo \0047a\0041\0047\0012'
    """
    letters = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\!" else f"\\0{byte:03o}" for byte in script.encode())
    return f"exec /bin/sh -c '{DECODER}' sh '{''.join(letters)}'"


class Opening:
    """Separates the output of a login shell from that of the command."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(rb"\036labkit-group %b (\d{1,20})\n" % self._nonce.encode())
        self._heads: dict[str, bytes | None] = {"stdout": b"", "stderr": b""}
        # `noise`: output before the mark, on either output; `group`: the command's process group; None until it has
        # begun
        self.noise, self.group = b"", None  # type: bytes, int | None

    def line(self, argv: Sequence[str] | str) -> str:
        """Return the line for the login shell."""
        return for_any_shell(BEGIN.format(nonce=self._nonce, words=command_line(argv)))

    def has_begun(self, output: str = "stdout") -> bool:
        """Return whether the mark has arrived on an output."""
        return self._heads[output] is None

    def feed(self, data: bytes, *, output: str = "stdout") -> bytes:
        """Return the part of new output that belongs to the command.

        Raise ShellError if the shell writes more than `MAX_NOISE` bytes before the mark.
        """
        head = self._heads[output]
        if head is None:
            return data
        head += data
        found = self._mark.search(head)
        if found is None:
            self._heads[output] = head
            if len(head) > MAX_NOISE:
                raise ShellError(
                    f"its login shell wrote more than {MAX_NOISE >> 10} KiB before labkit's command began; it must "
                    "write nothing without a terminal: [ -t 1 ] || return, at the top of its rc file."
                )
            return b""
        self.group, self._heads[output] = int(found[1]), None
        self.noise += head[: found.start()]
        return head[found.end() :]

    def rest(self, output: str) -> bytes:
        """Return the bytes of an output that has no mark yet."""
        return self._heads[output] or b""

    def refusal(self, exited: int | None, *, errors: str = "") -> ShellError:
        """Return why a command did not begin: the output of the login shell."""
        lines = (errors or (self.rest("stderr") or self.rest("stdout")).decode(errors="replace")).strip().splitlines()
        wrote = f"wrote {lines[-1][:200]!r}" if lines else "wrote nothing"
        return ShellError(
            f"its login shell did not run labkit's command: it {wrote} and ended with exit code {exited}. Give the "
            "user a shell that runs commands (chsh -s /bin/sh there), or name another user in the inventory."
        )


def close(channel: paramiko.Channel) -> None:
    """Close a channel; where the connection has ended meanwhile there is nothing to close, and no error."""
    with suppress(paramiko.SSHException, EOFError, OSError):
        channel.close()


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
    """A command on an open connection."""

    def __init__(
        self,
        transport: paramiko.Transport,
        argv: Sequence[str] | str,  # see `labkit.testbed.ssh.command.command_line`
        *,
        lines: Lines | None = None,  # called with each line of both outputs as it comes
        stop: StopRequest | None = None,  # ends the command there once it is set
        sink: Callable[[bytes], None] | None = None,  # takes the output instead of its being kept
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

        Raise OverdueError if it did not end in time; its process group is killed. Without any time left it is not
        started; CutError if the connection broke; ShellError if the login shell did not start it; HostError if its
        output is larger than `MOST_BYTES`.
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

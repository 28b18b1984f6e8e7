"""Pass a command through any login shell, and separate that shell's own output from the command's.

The shell gets one line that sh, bash, zsh, fish and tcsh all read the same way: it has no newline, quote, backslash
pair or exclamation mark. /bin/sh decodes the command from it, and prints a mark on both outputs before the command
begins: output before the mark, such as a greeting or an unterminated line, does not belong to the command.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from labkit.testbed.errors import ShellError

MAX_NOISE = 64 << 10
"""Most bytes that a login shell may write before the command begins."""
DECODER = 'eval "$(printf %b "$1")"'
BEGIN = """cd 2>/dev/null; m=$(printf '\\036labkit-group {nonce}'); echo "$m $$"; echo "$m $$" >&2; exec {words}"""
"""The command takes the place of the shell that the server started, which leads its process group: $$ is the group.

The mark's first letter is a control character, so a shell that echoes its commands does not print it.
"""


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
    """Separates the output of a login shell from that of the command.

    Attributes
    ----------
    noise : bytes
        Output before the mark, on either output.
    group : int or None
        The command's process group; None until it has begun.
    """

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(rb"\036labkit-group %b (\d{1,20})\n" % self._nonce.encode())
        self._heads: dict[str, bytes | None] = {"stdout": b"", "stderr": b""}
        self.noise, self.group = b"", None  # type: bytes, int | None

    def line(self, argv: Sequence[str] | str) -> str:
        """Return the line for the login shell."""
        return for_any_shell(BEGIN.format(nonce=self._nonce, words=command_line(argv)))

    def has_begun(self, output: str = "stdout") -> bool:
        """Return whether the mark has arrived on an output."""
        return self._heads[output] is None

    def feed(self, data: bytes, *, output: str = "stdout") -> bytes:
        """Return the part of new output that belongs to the command.

        Raises
        ------
        ShellError
            If the shell writes more than `MAX_NOISE` bytes before the mark.
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
        """Return what has arrived on an output without a mark."""
        return self._heads[output] or b""

    def refusal(self, exited: int | None, *, errors: str = "") -> ShellError:
        """Return why a command did not begin: the output of the login shell."""
        lines = (errors or (self.rest("stderr") or self.rest("stdout")).decode(errors="replace")).strip().splitlines()
        wrote = f"wrote {lines[-1][:200]!r}" if lines else "wrote nothing"
        return ShellError(
            f"its login shell did not run labkit's command: it {wrote} and ended with exit code {exited}. Give the "
            "user a shell that runs commands (chsh -s /bin/sh there), or name another user in the inventory."
        )

"""How a command gets through a login's shell, whichever that is, and what that shell says is kept out of the answer.

The shell gets one line that sh, bash, zsh, fish and tcsh all read the same way: no newline, quote, backslash pair or
exclamation mark is in it. /bin/sh makes the command of it, and prints a mark on both outputs before that begins: what
came before the mark, a greeting or an unterminated line, is not of the command.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from labkit.testbed.errors import ShellError

MAX_NOISE = 64 << 10
"""Bytes that a login's shell may say before our command begins."""
DECODER = 'eval "$(printf %b "$1")"'
BEGIN = """cd 2>/dev/null; m=$(printf '\\036labkit-group {nonce}'); echo "$m $$"; echo "$m $$" >&2; exec {words}"""
"""The command takes the place of the shell that the server started, which leads its process group: $$ is the group.

The mark's first letter is a control character, so a shell that echoes its commands does not print it.
"""


def command_line(argv: Sequence[str] | str) -> str:
    """Return a command as /bin/sh must read it to get exactly these words.

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
    r"""Return a line that lets any login's shell run a script by /bin/sh.

    >>> print(for_any_shell("echo 'a!'\n"))
    exec /bin/sh -c 'eval "$(printf %b "$1")"' sh 'echo \0047a\0041\0047\0012'
    """
    letters = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\!" else f"\\0{byte:03o}" for byte in script.encode())
    return f"exec /bin/sh -c '{DECODER}' sh '{''.join(letters)}'"


class Opening:
    """Keeps what a login's shell says apart from what the command says that it was given.

    Attributes
    ----------
    noise : bytes
        What came before the mark, on either output.
    group : int or None
        The command's process group; None until it has begun.
    """

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(rb"\036labkit-group %b (\d{1,20})\n" % self._nonce.encode())
        self._heads: dict[str, bytes | None] = {"stdout": b"", "stderr": b""}
        self.noise, self.group = b"", None  # type: bytes, int | None

    def line(self, argv: Sequence[str] | str) -> str:
        """Return what to hand to the login's shell for a command."""
        return for_any_shell(BEGIN.format(nonce=self._nonce, words=command_line(argv)))

    def has_begun(self, output: str = "stdout") -> bool:
        """Return whether the mark has come on an output."""
        return self._heads[output] is None

    def feed(self, data: bytes, *, output: str = "stdout") -> bytes:
        """Return what the command itself has said of what came on one of its outputs.

        Raises
        ------
        ShellError
            If the shell says more than is read for the sake of the mark.
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
                    f"its login shell said more than {MAX_NOISE >> 10} KiB before labkit's command began; let it say "
                    "nothing where nobody is at a terminal: [ -t 1 ] || return, at the top of its rc file."
                )
            return b""
        self.group, self._heads[output] = int(found[1]), None
        self.noise += head[: found.start()]
        return head[found.end() :]

    def rest(self, output: str) -> bytes:
        """Return what has come on an output that has no mark yet."""
        return self._heads[output] or b""

    def refusal(self, exited: int | None, *, errors: str = "") -> ShellError:
        """Return why a command did not begin: what the login's shell said instead of it."""
        said = (errors or (self.rest("stderr") or self.rest("stdout")).decode(errors="replace")).strip().splitlines()
        told = f"said {said[-1][:200]!r}" if said else "said nothing"
        return ShellError(
            f"its login shell did not run labkit's command: it {told} and ended with exit code {exited}. Give the user "
            "a shell that runs commands (chsh -s /bin/sh there), or name another user in the inventory."
        )

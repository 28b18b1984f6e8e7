"""Become an ordinary user of this machine that has no such account: `python as_user.py HOME PROGRAM WORD...`, as root.

In a mount namespace of its own, so that nothing of the machine changes: an account in /etc/passwd, and a way to this
Python where only root has one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

UID = 4242
CLONE_NEWNS = 0x20000


def main(home: str, words: list[str]) -> None:
    """Make the namespace, become the user, and run a program."""
    own_namespace({"labkit-test": (UID, Path(home))})
    os.chown(home, UID, UID)
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    os.environ |= {"HOME": home, "USER": "labkit-test", "LOGNAME": "labkit-test"}
    os.environ.pop("XDG_STATE_HOME", None)
    os.execvp(words[0], words)


def own_namespace(accounts: dict[str, tuple[int, Path]], *, shells: dict[str, str] | None = None) -> None:
    """Have a mount namespace from now on with more accounts, by name: number and home; and a way to this Python.

    Each has /bin/sh, or the shell that `shells` says.
    """
    shell = shells or {}
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", "/")
    with tempfile.NamedTemporaryFile("w", prefix="lk-passwd") as passwd:
        lines = [
            f"{name}:x:{uid}:{uid}::{home}:{shell.get(name, '/bin/sh')}\n" for name, (uid, home) in accounts.items()
        ]
        passwd.write(Path("/etc/passwd").read_text() + "".join(lines))
        passwd.flush()
        os.chmod(passwd.name, 0o644)
        mount("--bind", passwd.name, "/etc/passwd")
    for path in {Path(sys.base_prefix), Path(sys.prefix).resolve(), Path(__file__).resolve().parents[2]}:
        open_way(path)


def open_way(path: Path) -> None:
    """Let others reach a folder where one above it is closed to them: an open one in its place."""
    closed = next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
    if closed is None:
        return
    aside = Path(tempfile.mkdtemp(prefix="lk-aside"))
    mount("--bind", str(path), str(aside))
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed))
    path.mkdir(parents=True)
    mount("--move", str(aside), str(path))
    aside.rmdir()


def mount(*words: str) -> None:
    """Mount something."""
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

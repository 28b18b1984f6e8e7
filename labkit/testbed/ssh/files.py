"""Copy files to and from a host: whole or not at all, at the speed of the connection.

They go through pipes rather than through a file session, which has a request and an answer for each 32 KiB.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.testbed.errors import FileError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source as program
from labkit.testbed.ssh.command import CompletedCommand, RemoteCommand
from labkit.testbed.ssh.frames import readable

CHUNK = 1 << 18
PUT = """umask 077
part=$1.labkit-$2-$$.part
for old in "$1".labkit-????????-*.part; do
  pid=${old##*-} pid=${pid%.part}
  case $pid in *[!0-9]* | '') continue ;; esac
  kill -0 "$pid" 2>/dev/null || rm -f -- "$old"
done
trap 'rm -f -- "$part"' EXIT
trap 'exit 1' HUP INT TERM
trap '' PIPE
if [ -d "$1" ]; then echo "it is a folder" >&2; exit 1; fi
folder=$(dirname -- "$1") && { [ -d "$folder" ] || mkdir -p -- "$folder"; } && cat >"$part" || exit 1
came=$(($(wc -c <"$part")))
if [ "$came" -ne "$3" ]; then echo "$came of $3 bytes arrived" >&2; exit 1; fi
chmod "$4" "$part" && mv -f -- "$part" "$1"
"""
"""A connection that breaks ends the input as a whole file does: so the size is compared.

What is not whole yet has the name of its receiver's process: where that was killed, the next copy removes it, or gc.
"""
MOST_BYTES = 64 * 10**9
"""Most bytes of a file from a host, so that no host can fill the disk here."""
SENT = re.compile(rb"labkit-sent (\d{1,18}) ([0-9a-f]{64})\n$")
Begin = Callable[[Sequence[str], Callable[[bytes], None] | None], RemoteCommand]
"""Opens a call for words, and perhaps where its output goes."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A source of a copy.

    Attributes
    ----------
    content : Path or bytes
        The file, or its content.
    mode : int
        Of the file there.
    size : int
        Bytes.
    """

    content: Path | bytes
    mode: int
    size: int

    @classmethod
    def of(cls, content: str | Path | bytes, *, mode: int | None) -> CopySource:
        """Return a source; by default with the mode of the file, and 0600 for bytes."""
        if isinstance(content, bytes):
            return cls(content, 0o600 if mode is None else mode, len(content))
        path = Path(content)
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise FileError(f"{path} is no file; give one, and pack folders.")
        return cls(path, stat.S_IMODE(about.st_mode) if mode is None else mode, about.st_size)

    def chunks(self) -> Iterator[bytes]:
        """Return its bytes in parts."""
        if isinstance(self.content, bytes):
            yield self.content
            return
        with self.content.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def remote_path(path: str, machine: Machine) -> str:
    """Return a path on a host; a relative path is below the machine's folder."""
    return path if path.startswith(("/", "~/")) else machine.path(path)


def put_file(begin: Begin, source: CopySource, target: str, *, timeout_s: float) -> None:
    """Write a file on a host, first under a temporary name; make missing folders.

    Raises
    ------
    FileError
        If it cannot be written: the error of the host.
    HostError
        As `RemoteCommand.run`.
    """
    call = begin(["/bin/sh", "-c", PUT, "sh", target, secrets.token_hex(4), str(source.size), f"{source.mode:o}"], None)
    _check_completed(call.run(timeout_s=timeout_s, stdin=source.chunks()), f"write {target}")


def get_file(begin: Begin, python: str, source: str, target: Path, *, timeout_s: float) -> int:
    """Read a file from a host, first under a temporary name; return its size.

    Parameters
    ----------
    python : str
        The Python there that sends it, with its length and SHA-256.

    Raises
    ------
    FileError
        If it cannot be read there, or written here, or its hash is wrong.
    HostError
        As `RemoteCommand.run`.
    """
    beside = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    with _named_errors(f"write {target} here"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("xb") as here:
                written, found = [0], hashlib.sha256()

                def sink(data: bytes) -> None:
                    found.update(data)
                    written[0] += here.write(data)
                    if written[0] > MOST_BYTES:
                        raise FileError(f"cannot read {source}: it has more than {MOST_BYTES / 1e9:g} GB.")

                done = begin([python, "-c", program("give"), source], sink).run(timeout_s=timeout_s)
            _check_completed(done, f"read {source}")
            sent = SENT.search(done.stderr)
            if sent is None or (written[0], found.hexdigest()) != (int(sent[1]), sent[2].decode()):
                raise FileError(f"cannot read {source}: {written[0]} bytes came that are not what was sent (SHA-256).")
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    return written[0]


def _check_completed(done: CompletedCommand, what: str) -> None:
    if done.exited != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.exited}"]
        raise FileError(f"cannot {what}: {readable(why[0])}.")


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Convert errors of files here to FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot {what}: {error.strerror or error}.") from None

"""Install labkit on a host: `receive.py FOLDER`, with a line of JSON and the files on stdin.

The line has: hash; base, the Python that has the dependencies; files, SHA-256 by path; sent, [SHA-256, size] of what
follows; bytes, how many follow, compressed. What an earlier environment has already is taken from there. The answer is
JSON: {"placed": ...} or {"error": ..., "hint": ...}. Nothing that works is touched before all is there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import zlib
from shlex import quote
from typing import Any, NamedTuple

from labkit.testbed.onhost.shared import EnvironmentManifest, checked_manifest, read_manifest, send, write_manifest

LAUNCHER = """#!/bin/sh
# Python with labkit {hash}; made by `fab install`.
PYTHONSAFEPATH=1 PYTHONPATH={lib}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONSAFEPATH PYTHONPATH
exec {base} "$@"
"""
HINTS = {
    errno.ENOSPC: "make room there, or give the host another folder in the inventory",
    errno.EDQUOT: "the user's quota is used up; make room, or give the host another folder in the inventory",
    errno.EACCES: "give the host a folder in the inventory that its user may write",
    errno.EPERM: "give the host a folder in the inventory that its user may write",
    errno.EROFS: "give the host a folder in the inventory that can be written",
    errno.ENOTDIR: "something that is no folder stands there; remove it, or give the host another folder",
}


class SentFiles(NamedTuple):
    """The order: the environment to make, and the files that follow: [SHA-256, size] of each, and bytes in all."""

    manifest: EnvironmentManifest
    sent: list[list[Any]]
    n_bytes: int

    @classmethod
    def read(cls, line: bytes) -> SentFiles:
        """Return the order in a line of JSON.

        Raises
        ------
        ValueError
            If it has another form; the message names the field, its value, and what was expected.
        """
        values = json.loads(line)
        found = cls(checked_manifest(values), values.get("sent"), values.get("bytes"))
        if not isinstance(found.n_bytes, int) or found.n_bytes < 0:
            raise ValueError(f"bytes is {str(found.n_bytes)[:80]!r}, expected a number of bytes")
        whole = isinstance(found.sent, list) and all(
            isinstance(each, list) and [type(part) for part in each] == [str, int] for each in found.sent
        )
        if not whole:
            raise ValueError(f"sent is {str(found.sent)[:80]!r}, expected [SHA-256, size] of each file")
        return found


def received(count: int) -> bytes:
    """Return the rest of stdin, verified."""
    content = sys.stdin.buffer.read(count)
    if len(content) < count:
        raise ConnectionError(f"the connection ended after {len(content)} of {count} bytes")
    return zlib.decompress(content)


def parts(content: bytes, sent: list[list[Any]]) -> dict[str, bytes]:
    """Return the files that were sent, by their SHA-256, each checked."""
    found, start = {}, 0
    for digest, size in sent:
        found[digest] = content[start : start + size]
        start += size
        if hashlib.sha256(found[digest]).hexdigest() != digest:
            raise ConnectionError(f"file {digest} did not arrive as it was sent")
    return found


def kept(env: str) -> dict[str, list[str]]:
    """Return paths of files of earlier environments, by the SHA-256 in their manifests."""
    found: dict[str, list[str]] = {}
    for name in os.listdir(env):
        for path, digest in read_manifest(os.path.join(env, name)).files.items():
            found.setdefault(digest, []).append(os.path.join(env, name, "lib", path))
    return found


def content_of(digest: str, fresh: dict[str, bytes], old: dict[str, list[str]]) -> bytes:
    """Return the content of a file: sent, or taken from an earlier environment if it is still intact."""
    if digest in fresh:
        return fresh[digest]
    for path in old.get(digest, ()):
        with open(path, "rb") as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    raise ValueError(f"no environment has the content {digest} any more")


def build(
    place: str, final: str, manifest: EnvironmentManifest, fresh: dict[str, bytes], old: dict[str, list[str]]
) -> None:
    """Make an environment in a folder that will be renamed to `final`; its manifest is written last."""
    for path, digest in manifest.files.items():
        target = os.path.join(place, "lib", path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content_of(digest, fresh, old))
    launcher = os.path.join(place, "python")
    text = LAUNCHER.format(hash=manifest.hash, lib=quote(os.path.join(final, "lib")), base=quote(manifest.base))
    with open(launcher, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(launcher, 0o700)
    write_manifest(place, manifest)


def replace(partial: str, final: str) -> None:
    """Move a folder into place; a broken one there is moved away first."""
    aside = partial + ".old"
    if os.path.lexists(final):
        os.rename(final, aside)
    os.rename(partial, final)
    shutil.rmtree(aside, ignore_errors=True)


def switch(env: str, hash: str) -> None:
    """Atomically point `current` to an environment."""
    link = os.path.join(env, ".current")
    if os.path.lexists(link):
        os.remove(link)
    os.symlink(hash, link)
    os.rename(link, os.path.join(env, "current"))


def place(folder: str, manifest: EnvironmentManifest, fresh: dict[str, bytes]) -> None:
    """Build an environment beside the others and switch to it; first remove what an earlier install left unfinished."""
    env = os.path.join(folder, "env")
    os.makedirs(env, mode=0o700, exist_ok=True)
    with open(os.path.join(env, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        partial, final = os.path.join(env, ".making-" + manifest.hash), os.path.join(env, manifest.hash)
        for left in (partial, partial + ".old"):
            if os.path.lexists(left):
                shutil.rmtree(left)
        try:
            os.mkdir(partial)
            build(partial, final, manifest, fresh, kept(env))
            replace(partial, final)
            switch(env, manifest.hash)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def room(path: str) -> str:
    """Return the free bytes of the disk of a path."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return f"{shutil.disk_usage(path).free / 1e6:.0f} MB free in {path}"


def main(folder: str) -> None:
    """Receive and install, and report the result."""
    os.umask(0o077)
    folder = os.path.abspath(os.path.expanduser(folder))
    try:
        order = SentFiles.read(sys.stdin.buffer.readline())
        place(folder, order.manifest, parts(received(order.n_bytes), order.sent))
        reply = {"placed": order.manifest.hash}
    except OSError as error:
        what = error.strerror or str(error)
        where = f"{error.filename or folder}" + (f" ({room(folder)})" if error.errno == errno.ENOSPC else "")
        reply = {"error": f"{where}: {what}", "hint": HINTS.get(error.errno or 0, "run it again")}
    except (ValueError, zlib.error) as error:
        reply = {"error": f"{type(error).__name__}: {error}", "hint": "run it again; `fab gc` first if it comes back"}
    send(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])

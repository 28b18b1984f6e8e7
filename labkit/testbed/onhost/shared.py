"""What programs on hosts share: the format of their output, and the manifest of an environment.

A message is a line that begins it, any number of frames `D LENGTH` with as many bytes behind the line, and a last one:
`E TOTAL SHA256`, or `X REASON` where the rest cannot be sent. Whatever else gets into the output, a greeting or the
warning of a library, is not a message. `labkit.testbed.ssh.host_messages` reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, NamedTuple

BEGIN = b"\036labkit-message\n"
CHUNK = 1 << 18
NAME = "manifest.json"


class FramedMessage:
    """A message that is sent part by part; each part but the last is a whole number of chunks."""

    def __init__(self) -> None:
        self.out, self.sum, self.total = sys.stdout.buffer, hashlib.sha256(), 0
        self.out.write(BEGIN)

    def write(self, data: bytes) -> None:
        """Send the next bytes."""
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            self.out.write(b"\036D %d\n" % len(part) + part)
            self.sum.update(part)
        self.total += len(data)

    def end(self) -> None:
        """Send the end of the message."""
        self.out.write(b"\036E %d %s\n" % (self.total, self.sum.hexdigest().encode()))
        self.out.flush()

    def fail(self, why: str) -> None:
        """Report that the rest cannot be sent, and why."""
        self.out.write(b"\036X %s\n" % json.dumps(why[:500]).encode())
        self.out.flush()


def send(value: Any) -> None:
    """Send a value as JSON."""
    message = FramedMessage()
    message.write(json.dumps(value).encode())
    message.end()


class EnvironmentManifest(NamedTuple):
    """Content of an environment; all is empty if there is none, or its file is damaged.

    Attributes
    ----------
    hash, version : str
        Of the labkit in it.
    base : str
        The Python that has labkit's dependencies.
    files : dict
        Path below `lib` -> SHA-256.
    """

    hash: str = ""
    version: str = ""
    base: str = ""
    files: dict[str, str] = {}  # noqa: RUF012 - never changed


def read_manifest(place: str) -> EnvironmentManifest:
    """Return the manifest of the environment in a folder."""
    try:
        with open(os.path.join(place, NAME), encoding="utf-8") as file:
            return checked_manifest(json.load(file))
    except (OSError, ValueError):
        return EnvironmentManifest()


def write_manifest(place: str, manifest: EnvironmentManifest) -> None:
    """Write the manifest of the environment in a folder."""
    with open(os.path.join(place, NAME), "w", encoding="utf-8") as file:
        json.dump(manifest._asdict(), file)


def checked_manifest(values: Any) -> EnvironmentManifest:
    """Return a manifest from JSON; other fields are ignored.

    Raises
    ------
    ValueError
        If a field is missing or of another type, or a path leads out of the environment.
    """
    if not isinstance(values, dict):
        raise ValueError("a manifest is no JSON object")
    fields: list[Any] = [values.get(name) for name in EnvironmentManifest._fields]
    found = EnvironmentManifest(*fields)
    for name in ("hash", "version", "base"):
        if not isinstance(getattr(found, name), str):
            raise ValueError(f"{name} is {str(getattr(found, name))[:80]!r}, expected text")
    if not isinstance(found.files, dict) or not all(isinstance(each, str) for each in found.files.values()):
        raise ValueError(f"files is {str(found.files)[:80]!r}, expected SHA-256 by path")
    for path in found.files:
        if os.path.isabs(path) or ".." in path.split("/"):
            raise ValueError(f"files has {path[:80]!r}, a path that leads out of the environment")
    return found

"""Send the content of a folder: `pack.py RUNS RUN [BELOW]`; no keys, no sockets, no links.

Without RUN: when each run in the folder RUNS was last written to. Else each folder and file of it is a message of JSON,
{"kind": "folder", "path": ...} or {"kind": "file", "path": ..., "size": ...}, a file's content the one after it; the
last one is {"kind": "end", "entries": ..., "left_out": [...]}. With BELOW, only what is in that folder of the run,
without hidden names, and all of it or nothing: an entry that vanishes
meanwhile is an error. Otherwise it is left out, and listed.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TypedDict

from labkit.testbed.onhost.shared import CHUNK, FramedMessage, send

SECRET = (".key", ".pem", ".sock")


class Entry(TypedDict, total=False):
    """The header of a folder or file, or the end: `entries` and `left_out`."""

    kind: str
    path: str
    size: int
    entries: int
    left_out: list[str]


class Packer:
    """Sends the content of a folder.

    Parameters
    ----------
    root : str
        Where paths begin.
    strict : bool
        Nothing may be missing, and hidden names are left out.
    """

    def __init__(self, root: str, strict: bool) -> None:
        self.root, self.strict = root, strict
        self.entries = 0
        self.left_out: list[str] = []

    def folder(self, path: str) -> None:
        """Send a folder and its content, in order of names."""
        try:
            names = sorted(os.listdir(os.path.join(self.root, path)))
        except OSError as error:
            self.missing(path, error)
            return
        if path:
            self.header({"kind": "folder", "path": path})
        for name in names:
            if not name.endswith(SECRET) and not (self.strict and name.startswith(".")):
                self.entry(os.path.join(path, name))

    def entry(self, path: str) -> None:
        """Send a folder or a regular file; skip anything else."""
        if not path.isprintable():  # nor can it be a name elsewhere
            self.left_out.append(ascii(path)[:200])
            return
        try:
            mode = os.lstat(os.path.join(self.root, path)).st_mode
            if stat.S_ISDIR(mode):
                self.folder(path)
            elif stat.S_ISREG(mode):
                self.file(path)
        except OSError as error:
            self.missing(path, error)

    def file(self, path: str) -> None:
        """Send a file with its present size; it may grow meanwhile."""
        with open(os.path.join(self.root, path), "rb") as file:
            left = os.fstat(file.fileno()).st_size
            self.header({"kind": "file", "path": path, "size": left})
            content = FramedMessage()
            while left:
                data = file.read(min(CHUNK, left))
                if not data:
                    content.fail(path + " became shorter while it was read")
                    sys.exit(3)
                content.write(data)
                left -= len(data)
            content.end()

    def header(self, entry: Entry) -> None:
        """Send the header of the next entry."""
        self.entries += 1
        send(entry)

    def missing(self, path: str, error: OSError) -> None:
        """Skip an entry, or fail if nothing may be missing."""
        why = f"{path}: {error.strerror}"
        if self.strict:
            FramedMessage().fail(why)
            sys.exit(3)
        self.left_out.append(why)


def written(runs: str) -> dict[str, float]:
    """Return when each run was last written to."""
    names = os.listdir(runs) if os.path.isdir(runs) else []
    labels = {name: os.path.join(runs, name, "run.json") for name in names}
    return {name: os.path.getmtime(label) for name, label in labels.items() if os.path.isfile(label)}


def main(runs: str, run: str = "", below: str = "") -> None:
    """Send the run; no entry if there is no such run."""
    runs = os.path.abspath(os.path.expanduser(runs))
    if not run:
        send({"runs": written(runs)})
        return
    packer = Packer(os.path.join(runs, run), bool(below))
    if below or os.path.isfile(os.path.join(runs, run, "run.json")):
        packer.folder(below)
    end: Entry = {"kind": "end", "entries": packer.entries, "left_out": packer.left_out[:20]}
    send(end)


if __name__ == "__main__":
    main(*sys.argv[1:])

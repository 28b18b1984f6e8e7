"""Remove unused environments: `sweep.py FOLDER yes|no`, answered by a line of JSON; no: only say which.

What stays: the current one, those that a process of this user runs, and the dependencies of both. Only folders that
labkit's install made are looked at: FOLDER/env/HASH with a manifest, FOLDER/env/base-*, what it left half made, and the
wheelhouse that it copied. What a copy left half done goes too, once its receiver is gone, and checkpoints that were
brought to a host and not unpacked for a day.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import time

from labkit.testbed.onhost.shared import read_manifest, send

PART = re.compile(r".\.labkit-[0-9a-f]{8}-(\d+)\.part$")
INCOMING, TAR, DAY_S = "incoming", re.compile(r"-job-\d+\.tar$"), 86400.0


def running() -> list[bytes]:
    """Return environment and command line of the processes of this user."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    found.append(file.read())
            except OSError:  # another user's, or it has ended
                continue
    return found


def used(env: str, names: list[str]) -> set[str]:
    """Return the environments that must stay."""
    texts = running()
    marks = {name: os.path.join(env, name).encode() + b"/" for name in names}
    stay = {name for name, mark in marks.items() if any(mark in text for text in texts)}
    link = os.path.join(env, "current")
    stay |= {os.readlink(link)} if os.path.islink(link) else set()
    bases = {read_manifest(os.path.join(env, name)).base for name in stay}
    return stay | {name for name in names if any(base.startswith(os.path.join(env, name) + "/") for base in bases)}


def ours(env: str, name: str) -> bool:
    """Return whether an install made a folder."""
    return (
        name.startswith((".making-", "base-"))
        or name == "wheels"
        or read_manifest(os.path.join(env, name)).hash == name
    )


def size(place: str) -> int:
    """Return the bytes in a folder."""
    return sum(os.lstat(os.path.join(folder, file)).st_size for folder, _, files in os.walk(place) for file in files)


def sweep(env: str, really: bool) -> tuple[list[str], int, list[str]]:
    """Remove what is not used; return the names of what went, its bytes, and the names of what stays."""
    names = sorted(name for name in os.listdir(env) if ours(env, name) and not os.path.islink(os.path.join(env, name)))
    stay = used(env, names)
    go = [name for name in names if name not in stay]
    freed = sum(size(os.path.join(env, name)) for name in go)
    for name in go if really else []:
        shutil.rmtree(os.path.join(env, name))
    return go, freed, sorted(stay)


def half_done(folder: str) -> list[str]:
    """Return files in a folder that an interrupted copy left."""
    found = []
    for place, folders, files in os.walk(folder):
        if place == os.path.join(folder, "env"):
            folders[:] = [name for name in folders if name == "wheels"]
        found += [os.path.join(place, name) for name in files if forgotten(os.path.join(place, name))]
    return sorted(found)


def forgotten(path: str) -> bool:
    """Return whether a file will never be completed or used."""
    place, name = os.path.split(path)
    part = PART.search(name)
    if part:
        return not os.path.exists("/proc/" + part[1])
    return (
        os.path.basename(place) == INCOMING and bool(TAR.search(name)) and time.time() - os.lstat(path).st_mtime > DAY_S  # noqa: TID251  its file's clock
    )


def clear(folder: str, really: bool) -> tuple[int, int]:
    """Remove what interrupted copies left; return how many files that were, and their bytes."""
    go = half_done(folder)
    freed = sum(os.lstat(path).st_size for path in go)
    for path in go if really else []:
        os.remove(path)
    return len(go), freed


def main(folder: str, really: str) -> None:
    """Remove what is not used, and report it."""
    folder = os.path.abspath(os.path.expanduser(folder))
    env = os.path.join(folder, "env")
    removed: list[str] = []
    kept: list[str] = []
    freed = 0
    try:
        parts, of_parts = clear(folder, really == "yes")
        if os.path.isdir(env):
            with open(os.path.join(env, ".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                removed, freed, kept = sweep(env, really == "yes")
        send({"removed": removed, "bytes": freed + of_parts, "kept": kept, "parts": parts})
    except OSError as error:
        send({"error": f"{error.filename or env}: {error.strerror}", "hint": "see its owner: ls -l"})


if __name__ == "__main__":
    main(*sys.argv[1:])

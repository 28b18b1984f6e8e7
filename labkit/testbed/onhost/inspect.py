"""Report what is installed on a host: `look.py FOLDER HASH BASE DISTRIBUTION...` answers in JSON.

FOLDER is labkit's on the host, HASH names the content that should be there, BASE the environment of its dependencies.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata
from typing import Any

from labkit.testbed.onhost.shared import EnvironmentManifest, read_manifest, send


def whole(folder: str, name: str, manifest: EnvironmentManifest) -> bool:
    """Return whether every file of an environment matches its manifest, and its Python exists."""
    place = os.path.join(folder, "env", name)
    return (
        bool(manifest.files)
        and os.access(os.path.join(place, "python"), os.X_OK)
        and os.access(manifest.base, os.X_OK)
        and all(digest(os.path.join(place, "lib", path)) == found for path, found in manifest.files.items())
    )


def digest(path: str) -> str:
    """Return the SHA-256 of a file, empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def current(folder: str) -> str:
    """Return the name of the environment in use, empty if there is none."""
    try:
        return os.readlink(os.path.join(folder, "env", "current"))
    except OSError:
        return ""


def environments(folder: str) -> list[str]:
    """Return the names of complete environments."""
    try:
        return sorted(name for name in os.listdir(os.path.join(folder, "env")) if not name.startswith("."))
    except OSError:
        return []


def kept(folder: str) -> set[str]:
    """Return the SHA-256 of the contents of the environments here."""
    found = set()
    for name in environments(folder):
        place = os.path.join(folder, "env", name)
        for path, sha256 in read_manifest(place).files.items():
            if digest(os.path.join(place, "lib", path)) == sha256:
                found.add(sha256)
    return found


def wheels(folder: str) -> dict[str, int]:
    """Return the sizes of the wheels that were copied here, by name."""
    place = os.path.join(folder, "env", "wheels")
    try:
        return {name: os.path.getsize(os.path.join(place, name)) for name in os.listdir(place)}
    except OSError:
        return {}


def versions(distributions: list[str]) -> dict[str, str]:
    """Return the versions of those distributions that this Python has."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main(folder: str, hash: str, base: str, *distributions: str) -> None:
    """Print what is installed here."""
    folder = os.path.abspath(os.path.expanduser(folder))
    if os.pathsep in folder:
        hint = "give the host a folder without it in the inventory"
        send({"error": f"folder {folder} has a '{os.pathsep}', which PYTHONPATH cannot hold", "hint": hint})
        return
    manifest = read_manifest(os.path.join(folder, "env", hash))
    same = current(folder) == hash and whole(folder, hash, manifest)
    reply: dict[str, Any] = {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "folder": folder,
        "current": current(folder),
        "same": same,
        "uses": manifest.base,
    }
    if not same:
        tag = "{}{}".format(*sys.version_info)
        python = os.path.join(folder, "env", f"{base}-{tag}", "bin", "python")
        reply["have"] = sorted(kept(folder))
        reply["versions"] = versions(list(distributions))
        reply["wheels"] = wheels(folder)
        reply["base"] = python if os.access(python, os.X_OK) else ""
    send(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])

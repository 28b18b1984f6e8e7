"""The manifest of an environment on a host: what an install wrote there, and where."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

NAME = "manifest.json"


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


def read(place: str) -> EnvironmentManifest:
    """Return the manifest of the environment in a folder."""
    try:
        with open(os.path.join(place, NAME), encoding="utf-8") as file:
            return checked(json.load(file))
    except (OSError, ValueError):
        return EnvironmentManifest()


def write(place: str, manifest: EnvironmentManifest) -> None:
    """Write the manifest of the environment in a folder."""
    with open(os.path.join(place, NAME), "w", encoding="utf-8") as file:
        json.dump(manifest._asdict(), file)


def checked(values: Any) -> EnvironmentManifest:
    """Return a manifest from JSON; other fields are ignored.

    Raises
    ------
    ValueError
        If a field is missing or of another type, or a path leads out of the environment.
    """
    if not isinstance(values, dict):
        raise ValueError("a manifest is no JSON object")
    given: list[Any] = [values.get(name) for name in EnvironmentManifest._fields]
    found = EnvironmentManifest(*given)
    for name in ("hash", "version", "base"):
        if not isinstance(getattr(found, name), str):
            raise ValueError(f"{name} is {str(getattr(found, name))[:80]!r}, expected text")
    if not isinstance(found.files, dict) or not all(isinstance(each, str) for each in found.files.values()):
        raise ValueError(f"files is {str(found.files)[:80]!r}, expected SHA-256 by path")
    for path in found.files:
        if os.path.isabs(path) or ".." in path.split("/"):
            raise ValueError(f"files has {path[:80]!r}, a path that leads out of the environment")
    return found

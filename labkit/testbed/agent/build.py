"""Which agent this is: labkit's version, and a digest of the agent's own sources as they were when it started."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def build() -> str:
    """Return a digest of the sources of this package."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def version() -> str:
    """Return labkit's version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("labkit")
    except PackageNotFoundError:  # run from its sources
        return "unknown"

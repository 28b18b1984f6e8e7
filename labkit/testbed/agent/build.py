"""Identity of the running agent: labkit's version, and a digest of the agent's sources when it started."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.system import unix_sockets
from labkit.system.release import installed


@cache
def build() -> str:
    """Return a digest of the sources of this package and of the modules that it uses."""
    digest = hashlib.sha256()
    used = [Path(str(module.__file__)) for module in (unix_sockets, forks, fork_protocol)]
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *used]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def version() -> str:
    """Return labkit's version."""
    found = installed()
    return found["Version"] if found is not None else "unknown"  # run from its sources

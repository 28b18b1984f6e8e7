"""Start tasks that are programs of labkit through the user's fork server, which shares imported pages with them.

A server that does not run yet is started in the background; the task is then started as a plain process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.elastic.forkserver.protocol import ROOT, ForkError
from labkit.system.proc import Identity
from labkit.testbed.agent.places import LOG
from labkit.testbed.agent.spawn import TO_LOG, SpawnRequest

PATIENCE_S: Final = 2.0
"""Seconds to wait for a running server; the agent serves no request meanwhile."""
UMASK: Final = 0o077
"""Of the agent, and so of its tasks."""


def fork(order: SpawnRequest, *, log: Callable[[str], None]) -> forks.ForkedProcess | None:
    """Fork a task; None if it is to be started as a plain process: it is no program of this labkit, or has no server.

    Parameters
    ----------
    order : SpawnRequest
        The process to start.
    log : callable
        Takes a line for the agent's log: why a program of this labkit is not forked.
    """
    if not _is_ours(order):
        return None
    allowed = sorted(os.sched_getaffinity(0) if order.cores is None else order.cores)
    asked = fork_protocol.ForkOrder(
        list(order.argv), dict(order.env), str(order.folder), allowed, order.nice, umask=UMASK
    )  # fmt: skip
    try:
        with _files(order.folder) as files:
            return forks.fork(asked, files, wait=False, patience_s=PATIENCE_S, tell=log)
    except (ForkError, OSError):  # the plain start has a better message
        return None


def _is_ours(order: SpawnRequest) -> bool:
    """Return whether a task is a program of the same labkit and the same Python as the agent."""
    words = list(order.argv[:3])
    if len(words) < 3 or words[:2] != [sys.executable, "-m"] or words[2] not in fork_protocol.MODULES:
        return False
    given = order.env.get("PYTHONPATH")
    return given == os.environ.get("PYTHONPATH") or (given or "").split(os.pathsep)[0] == str(ROOT)


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[tuple[int, int, int]]:
    """Yield stdin, stdout and stderr of a task."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        log = os.open(folder / LOG, TO_LOG, 0o600)
        try:
            yield nothing, log, log
        finally:
            os.close(log)
    finally:
        os.close(nothing)


def watch(server: str, identity: Identity) -> forks.ForkedProcess | None:
    """Return a task that an earlier agent had forked; None if its end cannot be known."""
    return forks.watched(Path(server), identity.pid, identity.start) if server else None

"""The agent's own log, bounded: a line for each action, without the values of requests."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

JOURNAL: Final = "agent.log"
JOURNAL_LIMIT: Final = 1 << 20
"""Most bytes of a log; its predecessor is kept as well."""


class AgentJournal:
    """Appends lines to a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL

    def __call__(self, text: str) -> None:
        """Write a line; a full disk is ignored."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{moment} {os.getpid()} {text}".encode(errors="replace").replace(b"\n", b"\n  ") + b"\n"
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > JOURNAL_LIMIT:
                self._path.replace(self._path.with_suffix(".log.1"))
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def error(self, error: BaseException) -> None:
        """Write where an exception was raised, without values."""
        import traceback

        where = "".join(traceback.format_tb(error.__traceback__))
        self(f"unexpected {type(error).__name__}\n{where}")

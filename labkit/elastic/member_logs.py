"""What the members of a job print: the new lines of their logs, as they come, and the last ones at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

KEPT_BYTES: Final = 1 << 16
"""Bytes of each log that a result keeps."""
EVERY_S: Final = 0.5
"""Seconds between two looks at the logs."""
MOST_LINES: Final = 10
"""Lines of a member that are shown at once: the rest is in its log."""
MOST_CHARS: Final = 500


class LogLine(NamedTuple):
    """A line that a member has printed, without its end."""

    member: str
    text: str


def logs_of(folder: Path) -> dict[str, Path]:
    """Return the logs of the members on this machine, by name of the member."""
    return {path.stem: path for path in sorted(folder.glob("*-*.log"))}


def last_text(folder: Path) -> dict[str, str]:
    """Return the last text of each log that is not empty, by name of the member."""
    found = {}
    for name, path in logs_of(folder).items():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - KEPT_BYTES))
            found[name] = file.read().decode(errors="replace")
    return {name: text for name, text in found.items() if text}


class NewLines:
    """Reads the logs of a job's members as they grow.

    Parameters
    ----------
    folder : Path
        Of the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._next_s = folder, 0.0
        self._read = {name: path.stat().st_size for name, path in logs_of(folder).items()}

    def __call__(self, *, now: bool = False) -> Iterator[LogLine]:
        """Yield the lines since the last call, the last `MOST_LINES` of each member; at most every `EVERY_S` seconds.

        Parameters
        ----------
        now : bool
            Look in any case.
        """
        if not now and time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        for name, path in logs_of(self.folder).items():
            yield from self._lines(name, path)

    def _lines(self, name: str, path: Path) -> Iterator[LogLine]:
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                start = max(self._read.get(name, 0), size - KEPT_BYTES)
                file.seek(start)
                data = file.read(size - start)
        except OSError:  # the job is over, and its folder is gone
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read[name] = start + len(whole)
        lines = whole.decode(errors="replace").splitlines()
        if len(lines) > MOST_LINES:
            yield LogLine(name, f"... {len(lines) - MOST_LINES} lines more, in {path}")
        for text in lines[-MOST_LINES:]:
            yield LogLine(name, text[:MOST_CHARS])

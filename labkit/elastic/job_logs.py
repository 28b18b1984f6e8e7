"""What a job writes while it runs: its events, the output of its members, and the log of a failure."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from labkit.elastic.controller.losses import decoded

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints


PAUSE_S: Final = 0.02
"""Seconds between two looks at a file that has no new line."""


def read_events(path: Path, *, ended: threading.Event, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order.

    `path`: file of the events; it may not exist yet. `ended`: set when no more lines will come. `follow`: wait for
    further events until `ended` is set; False: stop at the end of the file.
    """
    pause = threading.Event()
    while not path.exists():
        if ended.is_set():
            return  # the job never began, or was deleted
        pause.wait(PAUSE_S)
    with path.open() as file:
        rest = ""
        while True:
            no_more = ended.is_set()  # before the read: a line that comes meanwhile is read in the next round
            rest += file.readline()
            if rest.endswith("\n"):
                yield decoded_event(rest)
                rest = ""
            elif no_more or not follow:
                return
            else:
                pause.wait(PAUSE_S)


def decoded_event(line: str) -> dict[str, Any]:
    """Return the event of a line; its loss and metrics become numbers, NaN and infinity included."""
    event: dict[str, Any] = json.loads(line)
    if isinstance(event.get("loss"), str):
        event["loss"] = decoded(event["loss"])
    if isinstance(event.get("values"), dict):
        event["values"] = {name: decoded(value) for name, value in event["values"].items()}
    return event


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
    texts = {}
    for name, path in logs_of(folder).items():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - KEPT_BYTES))
            texts[name] = file.read().decode(errors="replace")
    return {name: text for name, text in texts.items() if text}


class NewLines:
    """Reads the logs of a job's members as they grow."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._next_s = folder, 0.0
        self._read = {name: path.stat().st_size for name, path in logs_of(folder).items()}

    def __call__(self, *, now: bool = False) -> Iterator[LogLine]:
        """Yield new lines, the last `MOST_LINES` of each member, every `EVERY_S` seconds or `now`."""
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


TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 12
TRACEBACK: Final = "Traceback (most recent call last)"
MEMBER: Final = re.compile(r"(ps|worker)-\d+")
LINE: Final = 500
"""Longest quoted line of a log, in characters."""


def failed(folder: Path, why: str, *, checkpoints: Checkpoints) -> str:
    """Return why a job failed, in one line, with the newest good checkpoint and the folder of its logs.

    `why`: reason in the controller's last event; "" if the controller died.
    """
    reason = why or f"the controller died: {last_line(folder / 'controller.log') or 'it left no message'}"
    good = next((step for step in reversed(checkpoints.steps()) if checkpoints.is_good(step)), None)
    left = "no checkpoint is good" if good is None else f"the newest good checkpoint is {checkpoints.path(good)}"
    return f"{reason.rstrip().removesuffix('.')} ({left}; logs: {folder})."


def log_of(folder: Path, why: str, events: Iterable[Mapping[str, Any]]) -> tuple[Path, str] | None:
    """Return the log of the member that a job failed by, and its last lines; None if there is none or it is empty.

    This is the member that the reason begins with, or that last reported an error of its own or ended with one, else
    the controller. A member on another host has its log there.
    """
    name = "controller"
    for event in events:
        if event["event"] in ("failed", "raised") or (event["event"] == "left" and not event["expected"]):
            name = str(event["name"])
    named = why.partition(":")[0]
    name = named if MEMBER.fullmatch(named) else name
    log = folder / f"{Path(name).name}.log"
    lines = last_lines(log)
    return (log, "\n".join(line[:LINE] for line in lines[-TAIL_LINES:])) if lines else None


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log that are not blank, of `TAIL_BYTES`; [] if there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip()]


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank: of a traceback, the first of its error; "" if there is none."""
    lines = last_lines(log)
    begins = max((i for i, line in enumerate(lines) if line.startswith(TRACEBACK)), default=len(lines))
    errors = [line for line in lines[begins + 1 :] if not line.startswith(" ")]
    return (errors[:1] or lines[-1:] or [""])[0].strip()[:LINE]

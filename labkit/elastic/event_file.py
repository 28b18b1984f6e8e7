"""The file of a job's events: one JSON object a line, written by the controller, read while it grows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from labkit.elastic.controller.losses import decoded

PAUSE_S: Final = 0.02
"""Seconds between two looks at a file that has no new line."""


def read_events(path: Path, *, ended: threading.Event, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order.

    Parameters
    ----------
    path : Path
        File of the events; it may not exist yet.
    ended : Event
        Set when no more lines will come.
    follow : bool
        Wait for further events until `ended` is set; False: stop at the end of the file.
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

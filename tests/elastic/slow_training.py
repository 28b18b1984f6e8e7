"""A training whose data come slowly while a file is there, so that something can happen while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.elastic import Job, Result, models, start
from labkit.elastic.data import dataset
from tests.hang import HANG_S

NAME = "cnn-text-classification"
NOWHERE = Path("/proc/nowhere/slow")  # neither it nor its folder is there


class Slow:
    """A dataset that is slow to read as long as a file is there."""

    def __init__(self, samples: Any, file: Path) -> None:
        self.samples, self.file = samples, file

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, indices: list[int]) -> Any:
        if self.file.exists():
            threading.Event().wait(0.2)
        return self.samples.fetch(indices)


def begin(slow: Path = NOWHERE, **options: Any) -> Job:
    given = {"batch": 32, "workers": 2, "servers": 2, "optimizer": "momentum", "lr": 0.05, **options}
    model, data = models.build(NAME, width=0.1), Slow(dataset(NAME, n=128, width=0.1), slow)
    return start(model, data, models.loss(NAME), **given)


def run(at: dict[int, Callable[[Job], None]] | None = None, *, slow: Path = NOWHERE, **options: Any) -> Result:
    """Train, and do something as soon as a step is complete, slowly until a request is settled."""
    todo = dict(at or {})
    with begin(slow, **options) as job:
        for event in job.events():
            if event["event"] == "loss" and event["version"] in todo:
                if slow.parent.exists():
                    slow.touch()
                todo.pop(event["version"])(job)
            if event["event"] in ("scaled", "dropped"):
                slow.unlink(missing_ok=True)
        assert not todo
        return job.wait(timeout_s=HANG_S)

"""Kills and scalings of a job while it trains."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Final

import numpy as np

from labkit.core.errors import LabkitError
from labkit.elastic.loading import Loading
from labkit.elastic.protocol.program import Program

SCALINGS: Final = ({"workers": 1}, {"servers": 1}, {"workers": -1}, {"servers": -1}, {"workers": 1})
DELAY_S: Final = 0.03
"""Seconds that a shard's samples take, so that faults come while the job trains."""


class Slow:
    """Samples that take a while."""

    def __init__(self, loading: Loading) -> None:
        self._program = Program(None, loading.data, None)  # type: ignore[arg-type]
        if hasattr(loading.data, "order"):
            self.order = loading.data.order

    def __len__(self) -> int:
        return len(self._program.data)

    def fetch(self, indices: list[int]) -> Any:
        """Return a batch."""
        time.sleep(DELAY_S)
        return self._program.batch(indices)


def disturbed(job: Any, steps: int, *, kills: int, seed: int = 0) -> list[str]:
    """Kill members and the controller, and scale, at steps of a job; return what was done."""
    rng, done = np.random.default_rng(seed), []
    at = {int(step): "kill" for step in np.linspace(3, steps - 5, kills)}
    at |= {int(step) + 1: "scale" for step in np.linspace(3, steps - 10, len(SCALINGS))}
    scalings = list(SCALINGS)
    for event in job.events():
        if event["event"] != "loss":
            continue
        due = [step for step in at if step <= event["version"]]
        for step in due:
            with contextlib.suppress(LabkitError, ProcessLookupError):
                if at.pop(step) == "scale":
                    job.scale(**scalings[0])
                    done.append(str(scalings.pop(0)))
                else:
                    done.append(_kill(job, rng))
    return done


def _kill(job: Any, rng: np.random.Generator) -> str:
    """Kill a member or the controller; return its name."""
    members = [(member.name, member.pid) for member in job.status().members if member.pid]
    members.append(("controller", job.pid))
    name, pid = members[rng.integers(len(members))]
    os.kill(pid, signal.SIGKILL)
    return str(name)

"""A user's program with a job, as a process of its own: `python -m tests.elastic.user WHAT FOLDER [LEASE]`.

asks: starts a job, answers each line of stdin with the step that it is at, and prints its digest at the end.
trains: calls `train`, as slowly as a file `slow` in the folder says.
hangs, holds: a worker ends this program and the controller, and hangs then; with `holds` in C, with Python's lock held.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.elastic import start, train
from tests.elastic import counting
from tests.elastic.chaos import probe

STEPS = 80


class Hangs(counting.Numbers):
    """Numbers, the third fetch of which ends the job's starter and its controller, and never comes back."""

    def __init__(self, folder: Path, *, holds: bool) -> None:
        super().__init__(64)
        self.folder, self.holds, self.launcher, self.n = folder, holds, os.getpid(), 0

    def fetch(self, indices: list[int]) -> Any:
        self.n += 1
        if self.n == 3:
            for pid in (self.launcher, int((self.folder / "controller.lock").read_text())):
                os.kill(pid, signal.SIGKILL)
            if self.holds:
                ctypes.PyDLL(None).sleep(100_000)  # a PyDLL does not let go of the lock
            threading.Event().wait()
        return super().fetch(indices)


def main(what: str, folder: Path, lease_s: float) -> None:
    for module in (probe, counting, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    given: dict[str, Any] = {"workers": 1, "servers": 1, "lease_s": lease_s, "folder": folder / "job", "proof": "off"}
    if what in ("hangs", "holds"):
        data = Hangs(given["folder"], holds=what == "holds")
        train(counting.Counter(64), data, counting.Loss(8), steps=100, batch=8, lr=1.0, **given)
    given |= {"steps": STEPS, "batch": probe.BATCH, "shards": probe.SHARDS, "lr": probe.RATES["sgd"]}
    parts = probe.model(), probe.Data(folder / "slow", wait_s=0.02), probe.loss
    if what == "trains":
        train(*parts, **given)
    job = start(*parts, **given)
    for _ in sys.stdin:
        print(job.status().step, flush=True)
    print(job.wait().digest, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))

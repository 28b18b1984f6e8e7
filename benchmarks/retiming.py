"""The simulator with step times and interference: slots per second, and against timing all jobs at each change.

python -m benchmarks retiming
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

from benchmarks import Row, size
from labkit.experiment import Experiment, every_slot
from labkit.learning.marl.episodes import ActionRule
from labkit.learning.marl.plays import Play, played
from labkit.learning.marl.settings import Setting
from labkit.schedulers import make
from labkit.schedulers.marl import load
from labkit.speed import step_time
from labkit.workloads import marl_jobs

COMMAND = "python -m benchmarks retiming"
SLOT_S = 1800.0


def rows() -> list[Row]:
    """Return slots per second of processor time, decisions included, from the first arrival to the last completion."""
    small = slots_per_s("marl-2x40", n_pods=2, per_slot=6, n_slots=size(24, short=1))
    with patch.object(step_time, "knows", lambda _: False):
        whole = slots_per_s("marl-2x40", n_pods=2, per_slot=6, n_slots=size(24, short=1))
    found = [
        Row("step time and interference, 2 x 40", round(small), "slots/s", 1000, True, COMMAND),
        Row("the same, against all jobs timed at each change", round(small / whole, 1), "times", None, True, COMMAND),
    ]
    n_slots = size(12, short=1)
    large = slots_per_s("marl-fat-tree", n_pods=20, per_slot=15, n_slots=n_slots)
    busy = slots_per_s("marl-fat-tree", n_pods=20, per_slot=15, n_slots=n_slots, until_s=n_slots * SLOT_S)
    return [
        *found,
        Row("step time and interference, 20 x 100", round(large, 1), "slots/s", 10, True, COMMAND),
        Row("the same, only while jobs arrive", round(busy, 1), "slots/s", 10, True, COMMAND),
        Row("memory of that run", round(_memory_gb("run"), 2), "GB, peak", 2, False, COMMAND),
        Row("memory of training there, one play", round(_memory_gb("play"), 2), "GB, peak", 2, False, COMMAND),
    ]


def _memory_gb(what: str) -> float:
    """Return the most memory that a process of its own had, in GB."""
    words = [sys.executable, "-m", "benchmarks.retiming", what, str(size(12, short=1))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _run(what: str, n_slots: int) -> None:
    """Run, or play as in training, at 20 x 100."""
    if what == "run":
        slots_per_s("marl-fat-tree", n_pods=20, per_slot=15, n_slots=n_slots, repeats=1)
        return
    setting = Setting(["marl-fat-tree"], [f"marl_jobs(load=5, n_pods=20, per_slot=15, n_slots={n_slots})"])
    played(setting, Play(load("marl").net, ActionRule(True, False, 0.0, False), 0, 0))


def slots_per_s(
    cluster: str, *, n_pods: int, per_slot: int, n_slots: int, until_s: float = math.inf, repeats: int = 2
) -> float:
    """Return slots per second of processor time, the best of some runs."""
    jobs = marl_jobs(5, n_pods=n_pods, per_slot=per_slot, n_slots=n_slots)
    best = 0.0
    for _ in range(repeats):
        experiment = Experiment.of(jobs, cluster=cluster, interference="calibrated", cadence=every_slot(SLOT_S))
        scheduler = make("fifo", placer="even", backfill=True)
        session = experiment.session(scheduler)
        began = time.process_time()
        session.run(scheduler, until_s=until_s)
        best = max(best, session.now_s / SLOT_S / (time.process_time() - began))
    return best


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
    # not ru_maxrss: a process inherits that of the process which started it
    status = Path("/proc/self/status").read_text()
    print(int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1e6)

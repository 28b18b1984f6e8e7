"""The simulator with step times and interference: slots per second, and against timing all jobs at each change.

python -m benchmarks retiming
"""

from __future__ import annotations

import time
from unittest.mock import patch

from benchmarks import Row, size
from labkit.experiment import Experiment, every_slot
from labkit.schedulers import make
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
    large = slots_per_s("marl-fat-tree", n_pods=20, per_slot=15, n_slots=size(12, short=1))
    return [*found, Row("step time and interference, 20 x 100", round(large, 1), "slots/s", 10, True, COMMAND)]


def slots_per_s(cluster: str, *, n_pods: int, per_slot: int, n_slots: int) -> float:
    """Return slots per second of processor time, the better of two runs."""
    jobs = marl_jobs(5, n_pods=n_pods, per_slot=per_slot, n_slots=n_slots)
    best = 0.0
    for _ in range(2):
        experiment = Experiment.of(jobs, cluster=cluster, interference="calibrated", cadence=every_slot(SLOT_S))
        scheduler = make("fifo", placer="even", backfill=True)
        session = experiment.session(scheduler)
        began = time.process_time()
        session.run(scheduler)
        best = max(best, session.now_s / SLOT_S / (time.process_time() - began))
    return best

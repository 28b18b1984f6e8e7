"""A job that configures itself on this machine, against the best plan that was measured and an autoscaler, one budget.

python -m benchmarks dlrover_live

Wide&Deep really trains, with 0.6 cores in all. Plans that do not change are measured one after the other while one job
trains; the brain and the autoscaler have a job of their own each. Throughput depends on what else the machine does:
rows are ratios, and the load is told beside them.
"""

from __future__ import annotations

import os
import resource
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import Row, size
from labkit.core import Placement, Role
from labkit.core.errors import StoppedError
from labkit.core.events import Events, Kind
from labkit.core.snapshot import Snapshot
from labkit.experiment.auto import auto
from labkit.results.record import RunRecord
from labkit.results.store import load
from labkit.results.tuning import configurations
from labkit.schedulers.dlrover.plan import Plan
from labkit.testbed.training import Training

COMMAND = "python -m benchmarks dlrover_live"
CORES = 0.6
TRAINING = Training(width=0.3, batch=256, samples=2048)
PLANS = tuple(
    Plan(*each)
    for each in (
        (1, 0.29, 1, 0.29), (2, 0.145, 1, 0.29), (3, 0.115, 1, 0.24), (4, 0.085, 1, 0.24), (6, 0.055, 1, 0.24),
        (4, 0.085, 2, 0.12), (6, 0.055, 2, 0.12), (8, 0.04, 1, 0.24), (7, 0.045, 4, 0.06), (4, 0.1, 1, 0.18),
        (3, 0.135, 1, 0.18), (6, 0.065, 1, 0.18),
    )
)  # fmt: skip
EACH_S, WHOLE_S = size(10, short=4), size(60, short=12)
LAST_S = size(20, short=4)
"""Throughput is that of the last so many seconds."""
ENDLESS = 10**6


@dataclass
class InTurn:
    """Plans that do not change, one after the other."""

    plans: tuple[Plan, ...]
    each_s: float
    quantum_s: float = 1.0
    measure_every_s: float = 2.0
    _changed_s: float = -np.inf
    _todo: list[Plan] = field(default_factory=list)

    def begin(self, _: object) -> None:
        self._todo, self._changed_s = list(self.plans), -np.inf

    def schedule(self, snapshot: Snapshot) -> Placement:
        if snapshot.now_s < self._changed_s + self.each_s or not self._todo:
            return Placement.nothing()
        plan, self._changed_s = self._todo.pop(0), snapshot.now_s
        return Placement.of(
            [0], job=[0, 0], role=[Role.WORKER, Role.PS], group=[0, 0], count=[plan.n_workers, plan.n_ps],
            cpus=[plan.worker_cores, plan.ps_cores],
        )  # fmt: skip


def ran(folder: Path, until_s: float, **options: object) -> tuple[RunRecord, float]:
    """Return what a job came to in so many seconds, and which part of a core this process used in the later half."""
    halfway: list[float] = []

    def end(batch: Events) -> None:
        if len(batch) and batch["time_s"][-1] > until_s / 2 and not halfway:
            halfway.append(used_s())
        if len(batch) and batch["time_s"][-1] > until_s:
            raise StoppedError("long enough")

    known = set(folder.iterdir()) if folder.exists() else set()
    with suppress(StoppedError):
        auto("wide_deep", steps=ENDLESS, cores=CORES, folder=folder, training=TRAINING, observers=[end], **options)
    (made,) = [path for path in folder.iterdir() if path not in known and (path / "run.json").exists()]
    return load(made), (used_s() - halfway[0]) / (until_s / 2)


def used_s() -> float:
    """Return the processor seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def speed_between(rows: Events, since_s: float, until_s: float) -> float:
    """Return the steps/s of a job between two moments."""
    told = rows[rows["kind"] == Kind.PROGRESSED]
    steps = np.interp([since_s, until_s], told["time_s"], told["value"])
    return float(steps[1] - steps[0]) / (until_s - since_s)


def best_of_plans(folder: Path) -> tuple[float, float]:
    """Return the steps/s of the fastest plan, and of the worst: of the last part of the time that each had."""
    whole, _ = ran(folder, EACH_S * (len(PLANS) + 1), scheduler=InTurn(PLANS, EACH_S))
    held = configurations(whole.events, whole.jobs)
    speeds = [
        speed_between(whole.events, max(row.start_s, row.end_s - EACH_S / 2), row.end_s)
        for row in held.itertuples()
        if row.end_s - row.start_s > EACH_S / 3
    ]
    return max(speeds), min(speeds)


def rows() -> list[Row]:
    """Return the brain's throughput against the best plan's and the autoscaler's, and what it costs itself."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as place:
        best, worst = best_of_plans(Path(place) / "plans")
        brain, used = ran(Path(place) / "brain", WHOLE_S)
        scaled, _ = ran(
            Path(place) / "autoscale", WHOLE_S, servers=1, workers=1, max_workers=12,
            scheduler="autoscale(step=1, interval_s=8, quantum_s=2)",
        )  # fmt: skip
    found, other = (speed_between(each.events, WHOLE_S - LAST_S, WHOLE_S) for each in (brain, scaled))
    told = f"load {os.getloadavg()[1]:.0f}"
    measured = (
        ("brain after 60 s, of the best of 12 measured plans", found / best, f"ratio, {told}", 0.85, True),
        ("brain after 60 s, of Or et al.'s autoscaler, same cores", found / other, f"ratio, {told}", 1.5, True),
        ("the worst of 12 plans, of the best", worst / best, "ratio", None, True),
        ("processor time of the brain's process", 100 * used, "% of a core", 1.0, False),
    )
    return [
        Row(f"live: {name}", round(value, 3), unit, goal, higher, COMMAND)
        for name, value, unit, goal, higher in measured
    ]

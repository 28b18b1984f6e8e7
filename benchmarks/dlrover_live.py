"""A job that configures itself on this machine, against the best plan that was measured and an autoscaler, one budget.

python -m benchmarks dlrover_live

Wide&Deep and two scripts (`benchmarks/ports`) really train, with 0.6 cores in all. The brain comes to a plan in five
jobs that know nothing of each other, the autoscaler in another one of Wide&Deep. Then one job has these and twelve
others in turn, one of the brain's again and again between them: the machine may do something else meanwhile, and each
plan is compared with that one just before and after it. The brain's plans and the fastest ones are then measured for
twice as long, which is what counts: the fastest of many is so in part by luck. What is declared is no limit on
machines, so that the autoscaler's decisions are given the cores that its jobs declare.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import Row, size
from benchmarks.ports import SCRIPTS
from labkit.core import Placement, Role
from labkit.core.errors import StoppedError
from labkit.core.events import Events, Kind
from labkit.core.life import Context, begin
from labkit.core.protocols import Scheduler
from labkit.core.resources import CPUS
from labkit.core.snapshot import Snapshot
from labkit.experiment.auto import auto, brain_for
from labkit.results.record import RunRecord
from labkit.results.spans import configurations
from labkit.results.store import load
from labkit.schedulers import make
from labkit.schedulers.dlrover.plan import Plan
from labkit.testbed.run.training import TrainingTable

COMMAND = "python -m benchmarks dlrover_live"
CORES = 0.6
TRAINED: Final = {
    "wide_deep": ("wide_deep", {"training": TrainingTable(width=0.3, batch=256, samples=2048)}),
    **{name: (str(SCRIPTS / f"{name}.py"), {}) for name in ("mnist", "dlrm")},
}
"""Name -> the model of `auto`, and its options."""
PLANS = tuple(
    Plan(*each)
    for each in (
        (1, 0.29, 1, 0.29), (2, 0.145, 1, 0.29), (3, 0.115, 1, 0.24), (4, 0.085, 1, 0.24), (6, 0.055, 1, 0.24),
        (4, 0.085, 2, 0.12), (6, 0.055, 2, 0.12), (8, 0.04, 1, 0.24), (7, 0.045, 4, 0.06), (4, 0.1, 1, 0.18),
        (3, 0.135, 1, 0.18), (6, 0.065, 1, 0.18),
    )
)  # fmt: skip
EACH_S, WHOLE_S = size(12, short=4), size(60, short=20)
SETTLED: Final = 0.6
"""Part of a plan's time in which tasks may still start and stop: on a slow machine some seconds, with a script more."""
BETWEEN: Final = 4
"""So many plans stand between two turns of the one that they are compared with."""
FASTEST: Final = 4
"""So many plans, beside the brain's, are measured once more."""
N_RUNS: Final = size(5, short=1)
"""Jobs in which the brain comes to a plan."""
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


@dataclass
class Timed:
    """A scheduler, and the processor seconds that its decisions took in the later half of a run."""

    inner: Scheduler
    quantum_s: float = 2.0
    measure_every_s: float = 2.0
    took_s: float = 0.0

    def begin(self, context: Context) -> None:
        begin(self.inner, context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        began_s = time.thread_time()
        decided = self.inner.schedule(snapshot)
        self.took_s += (time.thread_time() - began_s) * (snapshot.now_s > WHOLE_S / 2)
        return decided


class Held(Timed):
    """A scheduler whose tasks are held to the cores that they declare."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        decided = super().schedule(snapshot)
        return replace(decided, cpus=snapshot.demand[decided.role, decided.job, CPUS].astype(decided.cpus.dtype))


def scaler() -> Scheduler:
    """Return the autoscaler, with seconds that suit this machine."""
    return make("autoscale(step=1, interval_s=8, quantum_s=2)")


def ran(folder: Path, until_s: float, *, of: str, **options: object) -> tuple[RunRecord, float]:
    """Return what a job of one of TRAINED came to in so many seconds, and the part of a core that this process used
    in the later half."""
    halfway: list[float] = []

    def end(batch: Events) -> None:
        if len(batch) and batch["time_s"][-1] > until_s / 2 and not halfway:
            halfway.append(used_s())
        if len(batch) and batch["time_s"][-1] > until_s:
            raise StoppedError("long enough")

    known = set(folder.iterdir()) if folder.exists() else set()
    model, its = TRAINED[of]
    with suppress(StoppedError):
        auto(model, steps=ENDLESS, cores=CORES, runs=folder, observers=[end], **its, **options)
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


def plan_at_end(record: RunRecord) -> Plan:
    """Return what a job held last."""
    last = configurations(record.events, record.jobs).iloc[-1]
    return Plan(int(last.n_workers), round(float(last.worker_cores), 4), int(last.n_ps), round(float(last.ps_cores), 4))


def in_turn(mine: Plan, others: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return plans with one of them before, after and between the others."""
    groups = [others[i : i + BETWEEN] for i in range(0, len(others), BETWEEN)]
    return (*(plan for group in groups for plan in (mine, *group)), mine)


def against(mine: Plan, speeds: Sequence[tuple[Plan, float]]) -> dict[Plan, float]:
    """Return the speed of each plan as a part of that of one, between the turns of that before and after it; medians.

    >>> a, b = Plan(1, 1, 1, 1), Plan(2, 1, 1, 1)
    >>> against(a, [(a, 10.0), (b, 18.0), (a, 14.0)])[b]
    1.5
    """
    at = [i for i, (plan, _) in enumerate(speeds) if plan == mine]
    usual = np.interp(range(len(speeds)), at, [speeds[i][1] for i in at])
    found: dict[Plan, list[float]] = {}
    for (plan, speed), its in zip(speeds, usual.tolist(), strict=True):
        found.setdefault(plan, []).append(speed / its)
    return {plan: float(np.median(each)) for plan, each in found.items()}


def measured(folder: Path, plans: tuple[Plan, ...], *, of: str, each_s: float = EACH_S) -> list[tuple[Plan, float]]:
    """Return the steps/s of plans in turn, of the time that each had once it was settled."""
    whole, _ = ran(folder, each_s * (len(plans) + 1), of=of, scheduler=InTurn(plans, each_s))
    known = {(plan.n_workers, plan.n_ps, round(plan.worker_cores, 4), round(plan.ps_cores, 4)): plan for plan in plans}
    found = []
    for row in configurations(whole.events, whole.jobs).itertuples():
        plan = known.get((row.n_workers, row.n_ps, round(row.worker_cores, 4), round(row.ps_cores, 4)))
        if plan is not None and row.end_s - row.start_s > each_s / 3:
            since_s = row.start_s + SETTLED * (row.end_s - row.start_s)
            found.append((plan, speed_between(whole.events, since_s, row.end_s)))
    return found


def rows() -> list[Row]:
    """Return the brain's throughput against the best plan's and the autoscaler's, and what it costs itself."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as place:
        scaled, _ = ran(
            Path(place) / "scaled", WHOLE_S / 3, of="wide_deep", servers=1, workers=1, scheduler=Held(scaler())
        )
        found = [row for name in TRAINED for row in against_plans(Path(place) / name, name, plan_at_end(scaled))]
    return [
        Row(f"live, {name}", round(value, 3), unit, goal, higher, COMMAND) for name, value, unit, goal, higher in found
    ]


def against_plans(place: Path, name: str, its: Plan) -> list[tuple[str, float, str, float | None, bool]]:
    """Return the rows of one of TRAINED; `its` is the autoscaler's plan."""
    brains = [Timed(make(brain_for(CORES))) for _ in range(N_RUNS)]
    runs = [ran(place / f"brain-{i}", WHOLE_S, of=name, scheduler=brain) for i, brain in enumerate(brains)]
    mine = [plan_at_end(record) for record, _ in runs]
    load = f"load {os.getloadavg()[1]:.0f}"
    others = [*({*mine} - {mine[0]}), *PLANS[:6], its, *PLANS[6:], its]
    first = against(mine[0], measured(place / "plans", in_turn(mine[0], others), of=name))
    fastest = sorted(first, key=first.__getitem__)[-FASTEST:]
    once_more = [plan for plan in dict.fromkeys((*mine, *fastest)) if plan != mine[0]]
    again = against(mine[0], measured(place / "again", in_turn(mine[0], once_more), of=name, each_s=2 * EACH_S))
    ratios, best = first | again, max(again.values())
    print(f"{name}: brain: {'; '.join(map(str, mine))}; autoscaler of wide_deep: {its}")
    print("\n".join(f"{ratio / best:.2f} of the best: {plan}" for plan, ratio in ratios.items()))
    rows: list[tuple[str, float, str, float | None, bool]] = [
        (
            f"{name}: brain after 60 s, of the best measured plan, median of {N_RUNS}",
            float(np.median([ratios[plan] for plan in mine])) / best, f"ratio, {load}", 0.85, True,
        ),
        (f"{name}: the worst plan, of the best", min(ratios.values()) / best, "ratio", None, True),
    ]  # fmt: skip
    if name != "wide_deep":
        return rows
    took_s, used = (float(np.median(each)) for each in ([b.took_s for b in brains], [used for _, used in runs]))
    of_scaler = ratios[mine[0]] / ratios[its]
    return [
        *rows,
        ("brain after 60 s, of Or et al.'s autoscaler, same cores", of_scaler, f"ratio, {load}", 1.5, True),
        ("processor time of the brain's decisions", 200 * took_s / WHOLE_S, "% of a core", 1.0, False),
        ("processor time of its process, with all that it hears of the job", 100 * used, "% of a core", None, False),
    ]

"""A job beside a generator of load on the same cores."""

from __future__ import annotations

from typing import Final

from labkit.core.errors import LabkitError
from labkit.speed.profiled.nouns import ColocationSample
from labkit.testbed.profiling.alone import GangPace, Measurements, Say, pace, short
from labkit.testbed.profiling.cores import load
from labkit.testbed.profiling.gangs import GangShape
from labkit.testbed.profiling.trainee import MeasuredJob

SHARED_S: Final = 1.2


def beside_load(
    trainee: MeasuredJob, gang: GangShape, found: Measurements, *, loads: tuple[int, ...], say: Say
) -> list[ColocationSample]:
    """Return how a job is slowed by loads that keep some cores busy; it trains with a gang already."""
    stage, kind = trainee.stage, trainee.stage.kinds[trainee.number]
    alone = found.paces.get((trainee.number, gang))
    host = stage.inventory.names[0]
    rows = []
    for k in loads:
        try:
            if alone is not None:
                with load(stage, host, k):
                    shared = pace(trainee, least_s=SHARED_S)
                rows.append(_load_sample(str(kind), f"load-{k}", alone, shared, co_cores=float(k), co_weight=float(k)))
        except (LabkitError, OSError) as error:
            found.notes.append(f"{kind} beside {k} busy cores: {error}")
        say(f"{kind} beside {k} busy cores")
    return rows


def _load_sample(
    job: str, beside: str, alone: GangPace, shared: GangPace, *, co_cores: float, co_weight: float
) -> ColocationSample:
    numbers = {
        "cpu_cores": alone.cores, "co_cpu_cores": co_cores, "weight": alone.weight, "co_weight": co_weight,
        "alone_s": alone.step_s, "shared_s": shared.step_s,
    }  # fmt: skip
    numbers["busy_cores"] = max(alone.busy_cores, shared.busy_cores)
    rounded = {name: short(value) for name, value in numbers.items()}
    return ColocationSample(job=job, co_runners=beside, what="step", **rounded)

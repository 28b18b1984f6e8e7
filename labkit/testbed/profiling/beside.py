"""A job beside others on the same cores: a generator of load, and a job of another model."""

from __future__ import annotations

from typing import Final

from labkit.core.errors import LabkitError
from labkit.speed.profiled.nouns import Beside
from labkit.testbed.profiling.alone import Found, Pace, Say, pace
from labkit.testbed.profiling.cores import load
from labkit.testbed.profiling.gangs import Gang, place_of
from labkit.testbed.profiling.stage import Stage
from labkit.testbed.profiling.trainee import Trainee

SHARED_S: Final = 1.2


def beside_load(trainee: Trainee, gang: Gang, found: Found, *, loads: tuple[int, ...], say: Say) -> list[Beside]:
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
                rows.append(_row(str(kind), f"load-{k}", alone, shared, co_cores=float(k), co_weight=float(k)))
        except (LabkitError, OSError) as error:
            found.notes.append(f"{kind} beside {k} busy cores: {error}")
        say(f"{kind} beside {k} busy cores")
    return rows


def pair(stage: Stage, one: Trainee, other: Trainee, gangs: tuple[Gang, Gang], found: Found) -> list[Beside]:
    """Return how two jobs that train slow each other."""
    alone = [found.paces.get((job.number, gang)) for job, gang in zip((one, other), gangs, strict=True)]
    names = [str(stage.kinds[job.number]) for job in (one, other)]
    rows = []
    for me, it in ((0, 1), (1, 0)):
        mine, its = alone[me], alone[it]
        if mine is None or its is None:
            continue
        shared = pace((one, other)[me], least_s=SHARED_S)
        rows.append(_row(names[me], names[it], mine, shared, co_cores=its.cores, co_weight=its.weight))
    return rows


def smallest(stage: Stage, *, first: int) -> tuple[Gang, dict[str, tuple[int, int]]]:
    """Return the smallest gang of a kind, and where it sits from a machine on."""
    gang = Gang(1, 1)
    return gang, place_of(gang, stage.cluster, first=first % stage.cluster.n_machines)


def _row(job: str, beside: str, alone: Pace, shared: Pace, *, co_cores: float, co_weight: float) -> Beside:
    numbers = {
        "cpu_cores": alone.cores, "co_cpu_cores": co_cores, "weight": alone.weight, "co_weight": co_weight,
        "alone_s": alone.step_s, "shared_s": shared.step_s,
    }  # fmt: skip
    numbers["busy_cores"] = max(alone.busy_cores, shared.busy_cores)
    return Beside(job=job, co_runners=beside, **{name: float(f"{value:.5g}") for name, value in numbers.items()})

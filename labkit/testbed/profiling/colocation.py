"""Measure the mutual slowdown of jobs on one machine: beside a load on some cores, and with one job more at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from labkit.core.errors import LabkitError
from labkit.speed.profiled.overheads import Costs, weight_of
from labkit.speed.profiled.profile import ColocationSample, Overhead
from labkit.testbed.profiling.gangs import GangShape, place_of, room
from labkit.testbed.profiling.isolated import GangPace, Measurements, Say, pace, paces_of, short, warm_up_s
from labkit.testbed.profiling.session import MeasuredJob, ProfilingSession, load

SHARED_S: Final = 1.2
SIZE: Final = 4
"""Jobs at once, where the machine has GPUs for so many; as many extra kinds the stage must have."""
LEAST_S: Final = 2.5
What = Literal["step", "start", "rescale"]


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
    job: str, load: str, alone: GangPace, shared: GangPace, *, co_cores: float, co_weight: float
) -> ColocationSample:
    numbers = {
        "cpu_cores": alone.cores, "co_cpu_cores": co_cores, "weight": alone.weight, "co_weight": co_weight,
        "alone_s": alone.step_s, "shared_s": shared.step_s,
    }  # fmt: skip
    numbers["busy_cores"] = max(alone.busy_cores, shared.busy_cores)
    rounded = {name: short(value) for name, value in numbers.items()}
    return ColocationSample(job=job, co_runners=load, what="step", **rounded)


@dataclass(slots=True)
class ColocatedJob:
    """A co-located job: the pace of its gang alone, and the overhead of its start alone."""

    trainee: MeasuredJob
    name: str
    gang: GangShape
    alone: GangPace
    host: int

    def place(self, stage: ProfilingSession) -> float:
        """Place its gang on its host; return the seconds until it trains."""
        return self.trainee.place(place_of(self.gang, stage.cluster, first=self.host))


def crowd(
    stage: ProfilingSession, found: Measurements, costs: Sequence[Overhead], *, n_kinds: int, n_crowd: int, say: Say
) -> list[ColocationSample]:
    """Return the slowdown of co-located jobs for each job that is added: updates, starts, and at last a rescale.

    They go on to train until the session ends.

    Parameters
    ----------
    stage : ProfilingSession
        Its first `n_kinds` kinds were measured alone; the next `n_crowd` are the same again, in turn.
    found : Measurements
        Measurements of jobs alone; failures are noted there.
    costs : sequence of Overhead
        Overheads of starts and rescales alone.
    """
    members: list[ColocatedJob] = []
    rows: list[ColocationSample] = []
    try:
        for member in _members(stage, found, n_kinds, n_crowd):
            rows += _joined(stage, members, member, costs)
            say(f"{len(members)} jobs at once")
        rows += _grown(stage, members, costs) if len(members) > 1 else []
    except (LabkitError, OSError) as error:
        found.notes.append(f"{len(members) + 1} jobs at once: {error}")
    return rows


def _members(stage: ProfilingSession, found: Measurements, n_kinds: int, n_crowd: int) -> list[ColocatedJob]:
    """Return jobs for the machine with most room, small and large gangs in turn; none if only one fits."""
    free = _free(stage)
    members: list[ColocatedJob] = []
    for i, number in enumerate(range(n_kinds, n_kinds + n_crowd)):
        host = max(free, key=lambda host: free[host])
        alone = {gang: pace for (of, gang), pace in found.paces.items() if of == i % n_kinds and gang.n_hosts == 1}
        gangs = sorted(alone, key=lambda gang: (gang.n_ps, gang.n_workers))
        gang = next((each for each in gangs[i % 2 :] + gangs[:1] if each.n_workers <= free[host]), None)
        if gang is not None:
            free[host] -= gang.n_workers
            members.append(ColocatedJob(MeasuredJob(stage, number), stage.kinds[number].model, gang, alone[gang], host))
    return members if len(members) > 1 else []


def _free(stage: ProfilingSession) -> dict[int, int]:
    """Return by host number how many workers each host of the machine with most room can take."""
    names, there = list(stage.inventory.names), room(stage.cluster).astype(int)
    pools = [{host: int(there[host]) for host in map(names.index, hosts)} for hosts in stage.machines.values()]
    return max(pools, key=lambda free: sum(free.values()))


def _joined(
    stage: ProfilingSession, members: list[ColocatedJob], new: ColocatedJob, costs: Sequence[Overhead]
) -> list[ColocationSample]:
    """Add one job; return its start beside the others, and the pace of all."""
    others = list(members)
    members.append(new)
    took_s = new.place(stage)
    paces = paces_of(stage, [member.trainee for member in members], least_s=LEAST_S)
    took_s += warm_up_s(new.trainee, paces[-1].step_s)
    if not others:
        return []
    cold = bool(new.trainee.n_cold)  # it says nothing of warm starts in a crowd
    n_new = new.gang.n_ps + new.gang.n_workers
    rows = [_change("start", new, others, took_s, costs, n_new=n_new, busy_cores=paces[-1].busy_cores)]
    for member, shared in zip(members, paces, strict=True):
        others = [other for other in members if other is not member]
        alone = member.alone
        rows.append(_sample(member, others, what="step", alone_s=alone.step_s, shared_s=shared.step_s,
                            cores=alone.cores, weight=alone.weight, busy_cores=shared.busy_cores))  # fmt: skip
    return [row for row in rows[cold:] if row is not None]


def _grown(stage: ProfilingSession, members: list[ColocatedJob], costs: Sequence[Overhead]) -> list[ColocationSample]:
    """Add a worker to the first job; return the rescale."""
    first = members[0]
    larger = replace(first, gang=replace(first.gang, n_workers=first.gang.n_workers + 1))
    took_s = larger.place(stage)
    (pace,) = paces_of(stage, [first.trainee], least_s=0.5)
    row = _change("rescale", first, members, took_s, costs, n_new=1, busy_cores=pace.busy_cores)
    return [] if row is None else [row]


def _change(
    what: What,
    member: ColocatedJob,
    others: Sequence[ColocatedJob],
    took_s: float,
    costs: Sequence[Overhead],
    *,
    n_new: int,
    busy_cores: float,
) -> ColocationSample | None:
    """Return a start or a rescale beside other jobs; None if none was measured alone."""
    alone = Costs(costs, member.name)
    cost = alone.start(n_new) if what == "start" else alone.rescale(n_new)
    alone_s = cost.seconds - (alone.finish_s if what == "start" else 0.0)
    if alone_s <= 0:
        return None
    cores = cost.cpu_s / cost.seconds
    return _sample(member, others, what=what, alone_s=alone_s, shared_s=took_s, cores=cores,
                weight=weight_of(what, cores, n_new=n_new), busy_cores=busy_cores)  # fmt: skip


def _sample(
    member: ColocatedJob, others: Sequence[ColocatedJob], *, what: What, alone_s: float, shared_s: float, cores: float,
    weight: float, busy_cores: float = 0.0,
) -> ColocationSample:  # fmt: skip
    numbers = {
        "cpu_cores": cores, "co_cpu_cores": sum(other.alone.cores for other in others), "weight": weight,
        "co_weight": sum(other.alone.weight for other in others), "alone_s": alone_s, "shared_s": shared_s,
        "busy_cores": busy_cores,
    }  # fmt: skip
    names = " + ".join(other.name for other in others)
    return ColocationSample(
        job=member.name, co_runners=names, what=what, **{name: short(n) for name, n in numbers.items()}
    )

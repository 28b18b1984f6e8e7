"""What if a gang went there? Speeds of the jobs that it would touch, for many placements a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, Floats, Ints
from labkit.core.running import Running
from labkit.kernels import by_reference, inner, kernel
from labkit.speed.interference.model import MAX_EXPONENT, MODELS, InterferenceModel
from labkit.speed.interference.profile import NO_LOAD
from labkit.speed.interference.use import ModelUse, task_use
from labkit.speed.step_time import StepTime

WORKER, PS = 0, 1
NOTHING, EXPONENTIAL, LINEAR, QUADRATIC = range(4)
KINDS: Final = {None: NOTHING, "exponential": EXPONENTIAL, "linear": LINEAR, "quadratic": QUADRATIC}
N_SLOWDOWN_FEATURES: Final = 6
"""What a network sees of a task: own cores, those of the others in its group, those in the machine's other groups, own
PCIe, that of the others, and 1."""
PCIE_UNIT: Final = 16.0
"""Gbps that count as 1 for a network."""


@by_reference
class Slow(NamedTuple):
    """How co-located tasks slow a worker: a fitted model's coefficients, or a small network in its place.

    Attributes
    ----------
    kind : array
        (3,) shape of the processor's and of PCIe's factor, and whether they add up.
    cpu, pcie : array
        (6,) coefficients of the factors, as many as the shape has.
    most : array
        (2,) cores and Gbps beside a task above which a load counts as this much.
    seen, out : array
        (6, H) and (H,) of the network 1 + softplus(out . relu(seen . x)); H = 0: the fitted model.
    """

    kind: Ints
    cpu: Floats
    pcie: Floats
    most: Floats
    seen: Floats
    out: Floats


@by_reference
class RunFacts(NamedTuple):
    """What never changes during a run: N jobs, G device groups, M machines.

    Attributes
    ----------
    group_machine, first_group : array
        (G,), (M + 1,) the machine of each group, and the first group of each machine.
    group_cores, group_gbps, socket_gbps : array
        (G,), (G,), (M,) cores, PCIe and the link between sockets.
    up_gbps, down_gbps : array
        (M,) network cards; infinite without a network.
    compute_s : array
        (N, G) seconds of one worker on the global batch, by group.
    gbit : array
        (N,) size of the parameters.
    requested_ps : array
        (N,) parameter servers asked for; 0: all-reduce.
    sync : array of bool
        (N,) synchronous training.
    per_update : array
        (N,) updates in a step of the trace.
    cores, moved : array
        (2, N) cores and PCIe Gbps of one worker and of one PS, alone.
    """

    group_machine: Ints
    first_group: Ints
    group_cores: Floats
    group_gbps: Floats
    socket_gbps: Floats
    up_gbps: Floats
    down_gbps: Floats
    compute_s: Floats
    gbit: Floats
    requested_ps: Ints
    sync: np.ndarray
    per_update: Floats
    cores: Floats
    moved: Floats


@by_reference
class TaskTable(NamedTuple):
    """Which job is where, and what follows for groups and cards; changed by `put` and `take`.

    Attributes
    ----------
    group : array
        (N, K) device groups of a job's tasks, workers first.
    n : array
        (N, 2) its workers and PSs.
    cores, moved : array
        (G,) what the tasks of a group use together, each as if alone.
    up, down : array
        (M,) flows that leave and enter a machine.
    head, after, before : array
        (M,), (N K,), (N K,) lists of tasks by machine; -1 ends one.
    speed : array
        (N,) updates per second as they are now.
    stamp : array
        (N + 1,) marks of jobs that were looked at, and the newest mark.
    """

    group: Ints
    n: Ints
    cores: Floats
    moved: Floats
    up: Ints
    down: Ints
    head: Ints
    after: Ints
    before: Ints
    speed: Floats
    stamp: Ints


def slow_of(model: InterferenceModel | None) -> Slow:
    """Return a fitted model for compiled code; None: no job slows another."""
    cpu, pcie, none = np.zeros(6), np.zeros(6), np.zeros((N_SLOWDOWN_FEATURES, 0))
    if model is None:
        return Slow(np.array([-1, 0, 0]), cpu, pcie, np.full(2, np.inf), none, np.zeros(0))
    if model.cpu_ is None and model.pcie_ is None:
        raise InputError(f"the {model.kind} interference model is not fitted yet; call fit(profile) first.")
    shape = MODELS[model.kind]
    for to, fitted in ((cpu, model.cpu_), (pcie, model.pcie_)):
        if fitted is not None:
            to[: len(fitted)] = fitted
    kind = np.array([KINDS[shape.cpu], KINDS[shape.pcie], int(shape.additive)])
    return Slow(kind, cpu, pcie, np.array(model.most_), none, np.zeros(0))


def learned(seen: Floats, out: Floats) -> Slow:
    """Return a network, (6, H) and (H,), in the place of a fitted model."""
    whole = np.ascontiguousarray(seen, np.float64), np.ascontiguousarray(out, np.float64)
    return Slow(np.zeros(3, np.int64), np.zeros(6), np.zeros(6), np.full(2, np.inf), *whole)


def facts_of(
    jobs: Jobs, cluster: Cluster, *, speed: StepTime, uses: Mapping[str, ModelUse] | None = None
) -> RunFacts:  # fmt: skip
    """Return the constants of a run.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Which jobs run, and where.
    speed : StepTime
        Whose compute times and sizes are taken; its interference is not looked at.
    uses : mapping, optional
        As for `task_use`.

    Raises
    ------
    InputError
        If the speed model has work on CPU cores: this one has not.
    """
    if speed.cpu is not None:
        raise InputError("step times with work on CPU cores cannot be looked ahead; leave cpu out.")
    cores, moved = task_use(jobs, uses=uses)
    machines, network = cluster.n_machines, cluster.network
    up, down = np.full(machines, np.inf), np.full(machines, np.inf)
    if network is not None:
        for ends, gbps in ((network.link_from, up), (network.link_to, down)):
            own = ends < machines
            gbps[:] = np.bincount(ends[own], network.link_gbps[own], machines)
    with np.errstate(divide="ignore"):
        compute_s = (speed.compute_s[:, None] / speed.type_speed)[:, cluster.group_type]
    return RunFacts(
        group_machine=cluster.group_machine.astype(np.int64),
        first_group=np.searchsorted(cluster.group_machine, np.arange(machines + 1)).astype(np.int64),
        group_cores=cluster.capacity[:, CPUS].copy(), group_gbps=cluster.group_pcie_gbps.astype(np.float64),
        socket_gbps=cluster.machine_socket_gbps.astype(np.float64), up_gbps=up, down_gbps=down,
        compute_s=np.ascontiguousarray(compute_s), gbit=speed.model_bytes * 8e-9,
        requested_ps=jobs.n_ps.astype(np.int64),
        sync=jobs.sync.copy(), per_update=speed.updates_per_step.copy(), cores=cores, moved=moved,
    )  # fmt: skip


def tasks_of(facts: RunFacts, *, most_tasks: int) -> TaskTable:
    """Return an empty cluster, for gangs of at most so many tasks."""
    n_jobs, n_groups, machines = len(facts.gbit), len(facts.group_machine), len(facts.up_gbps)
    return TaskTable(
        np.full((n_jobs, most_tasks), -1, np.int64), np.zeros((n_jobs, 2), np.int64), np.zeros(n_groups),
        np.zeros(n_groups), np.zeros(machines, np.int64), np.zeros(machines, np.int64),
        np.full(machines, -1, np.int64), np.full(n_jobs * most_tasks, -1, np.int64),
        np.full(n_jobs * most_tasks, -1, np.int64), np.zeros(n_jobs), np.zeros(n_jobs + 1, np.int64),
    )  # fmt: skip


def fill(facts: RunFacts, slow: Slow, tasks: TaskTable, running: Running) -> None:
    """Put the gangs of running jobs on an empty cluster, and note their speeds."""
    columns = (running.job, running.first, running.role, running.group, running.count)
    _fill(facts, slow, tasks, *(np.ascontiguousarray(column, np.int64) for column in columns))


@inner(error_model="numpy")
def _factor(kind: int, of: Floats, own: float, other: float) -> float:
    """Return one factor of a fitted model, as `labkit.speed.interference.model`."""
    if kind == EXPONENTIAL:
        return of[0] * np.exp(min(of[1] * own + of[2] * other, MAX_EXPONENT)) + of[3]
    if kind == LINEAR:
        return of[0] * own + of[1] * other + of[2]
    if kind == QUADRATIC:
        first = of[0] * own + of[1] * other + of[2] * own * own
        return first + of[3] * other * other + of[4] * own * other + of[5]
    return 1.0


@inner(error_model="numpy")
def _predicted(slow: Slow, own: float, others: float, elsewhere: float, pcie: float, moved: float) -> float:
    """Return the network's prediction; shares of cores, and PCIe in `PCIE_UNIT`."""
    seen, total = slow.seen, 0.0
    for h in range(len(slow.out)):
        x = seen[0, h] * own + seen[1, h] * others + seen[2, h] * elsewhere + seen[3, h] * pcie + seen[4, h] * moved
        total += slow.out[h] * max(x + seen[5, h], 0.0)
    return 1.0 + (np.log1p(np.exp(-abs(total))) + max(total, 0.0))


@inner(error_model="numpy")
def slowdown(facts: RunFacts, slow: Slow, tasks: TaskTable, job: int, g: int) -> float:
    """Return D >= 1 of a worker of a job in a group, which is among `tasks`."""
    own, pcie, m = facts.cores[WORKER, job], facts.moved[WORKER, job], facts.group_machine[g]
    others, moved = tasks.cores[g] - own, tasks.moved[g] - pcie
    over, elsewhere = 0.0, 0.0
    for h in range(facts.first_group[m], facts.first_group[m + 1]):
        if h != g:
            over += max(tasks.cores[h] - facts.group_cores[h], 0.0)
            elsewhere += tasks.cores[h] / max(facts.group_cores[h], 1.0)
    kind = slow.kind[0]
    if len(slow.out):
        if others + moved + elsewhere <= NO_LOAD:
            return 1.0
        there = max(facts.group_cores[g], 1.0)
        return _predicted(slow, own / there, others / there, elsewhere, pcie / PCIE_UNIT, moved / PCIE_UNIT)
    load = others + over
    if kind < 0 or (load <= NO_LOAD and moved <= NO_LOAD):
        return 1.0
    load, moved = load if load > NO_LOAD else 0.0, moved if moved > NO_LOAD else 0.0
    cpu = _factor(kind, slow.cpu, own, min(load, slow.most[0]))
    bus = (
        _factor(slow.kind[1], slow.pcie, pcie, min(moved, slow.most[1])) if kind == NOTHING or moved > NO_LOAD else 1.0
    )
    if slow.kind[2]:
        return max(cpu + bus - 1.0, 1.0)
    return max(max(cpu, 1.0) * bus if kind != NOTHING else bus, 1.0)


@inner(error_model="numpy")
def _gbps(facts: RunFacts, tasks: TaskTable, a: int, b: int) -> float:
    """Return the bandwidth of a flow from a group to another."""
    rate, m, o = min(facts.group_gbps[a], facts.group_gbps[b]), facts.group_machine[a], facts.group_machine[b]
    if m == o:
        return rate if a == b else min(rate, facts.socket_gbps[m])
    return min(rate, min(facts.up_gbps[m] / tasks.up[m], facts.down_gbps[o] / tasks.down[o]))


@inner
def _next_in_ring(group: Ints, n: int, w: int) -> int:
    """Return the worker behind w on the ring that follows the groups (ties by number)."""
    best, first = -1, w
    for v in range(n):
        if group[v] < group[first] or (group[v] == group[first] and v < first):
            first = v
        behind = group[v] > group[w] or (group[v] == group[w] and v > w)
        if behind and (best < 0 or group[v] < group[best] or (group[v] == group[best] and v < best)):
            best = v
    return best if best >= 0 else first


@inner(error_model="numpy")
def _exchange_s(facts: RunFacts, tasks: TaskTable, job: int, w: int) -> float:
    """Return seconds that a worker waits for its slowest exchange."""
    group, n_workers, n_ps = tasks.group[job], tasks.n[job, WORKER], tasks.n[job, PS]
    if n_ps:
        least = np.inf
        for s in range(n_workers, n_workers + n_ps):
            least = min(least, _gbps(facts, tasks, group[w], group[s]))
        return 2 * facts.gbit[job] / n_ps / least
    if n_workers > 1:
        v = _next_in_ring(group, n_workers, w)
        return 2 * (n_workers - 1) / n_workers * facts.gbit[job] / _gbps(facts, tasks, group[w], group[v])
    return 0.0


@inner(error_model="numpy")
def speed_of(facts: RunFacts, slow: Slow, tasks: TaskTable, job: int) -> float:
    """Return steps per second of a job as the tasks are now."""
    n_workers, n_ps = tasks.n[job, WORKER], tasks.n[job, PS]
    if n_workers == 0 or (n_ps == 0 and facts.requested_ps[job] > 0):
        return 0.0
    sync = facts.sync[job] or n_ps == 0
    part = 1.0 / n_workers if sync else 1.0
    compute, exchange, rate, slowest, at = 0.0, 0.0, 0.0, 1.0, -1
    for w in range(n_workers):
        g = tasks.group[job, w]
        if g != at:  # workers of a group are alike
            slowest, at = slowdown(facts, slow, tasks, job, g), g
        busy, waits = facts.compute_s[job, g] * part * slowest, _exchange_s(facts, tasks, job, w)
        compute, exchange = max(compute, busy), max(exchange, waits)
        rate += 1.0 / (busy + waits)
    return (1.0 / (compute + exchange) if sync else rate) / facts.per_update[job]


@inner
def _count_flows(facts: RunFacts, tasks: TaskTable, job: int, sign: int) -> None:
    """Add a gang's flows to those of its machines, or take them away."""
    group, n_workers, n_ps = tasks.group[job], tasks.n[job, WORKER], tasks.n[job, PS]
    for w in range(n_workers):
        m = facts.group_machine[group[w]]
        for s in range(n_workers, n_workers + n_ps):
            o = facts.group_machine[group[s]]
            if m != o:
                tasks.up[m] += sign
                tasks.down[o] += sign
        if facts.requested_ps[job] == 0 and n_ps == 0 and n_workers > 1:
            o = facts.group_machine[group[_next_in_ring(group, n_workers, w)]]
            if m != o:
                tasks.up[m] += sign
                tasks.down[o] += sign


@inner
def put(facts: RunFacts, tasks: TaskTable, job: int, groups: Ints, n_workers: int) -> None:
    """Put a gang that holds nothing into device groups, its workers first."""
    n, width = len(groups), tasks.group.shape[1]
    tasks.n[job, WORKER], tasks.n[job, PS] = n_workers, n - n_workers
    for t in range(n):
        g, role, node = groups[t], WORKER if t < n_workers else PS, job * width + t
        m = facts.group_machine[g]
        tasks.group[job, t] = g
        tasks.cores[g] += facts.cores[role, job]
        tasks.moved[g] += facts.moved[role, job]
        tasks.after[node], tasks.before[node] = tasks.head[m], -1
        if tasks.head[m] >= 0:
            tasks.before[tasks.head[m]] = node
        tasks.head[m] = node
    _count_flows(facts, tasks, job, 1)


@inner
def take(facts: RunFacts, tasks: TaskTable, job: int) -> None:
    """Take a gang away."""
    n_workers, width = tasks.n[job, WORKER], tasks.group.shape[1]
    _count_flows(facts, tasks, job, -1)
    for t in range(n_workers + tasks.n[job, PS]):
        g, role, node = tasks.group[job, t], WORKER if t < n_workers else PS, job * width + t
        m = facts.group_machine[g]
        tasks.cores[g] -= facts.cores[role, job]
        tasks.moved[g] -= facts.moved[role, job]
        if tasks.head[m] < 0 or tasks.head[m] == node:
            tasks.head[m] = tasks.after[node]
        else:
            tasks.after[tasks.before[node]] = tasks.after[node]
        if tasks.after[node] >= 0:
            tasks.before[tasks.after[node]] = tasks.before[node]
        if tasks.head[m] < 0:  # no rounding is left on an empty machine
            for h in range(facts.first_group[m], facts.first_group[m + 1]):
                tasks.cores[h] = tasks.moved[h] = 0.0
    tasks.n[job, WORKER] = tasks.n[job, PS] = 0


@inner
def touched(facts: RunFacts, tasks: TaskTable, job: int, others: Ints) -> int:
    """Write which other jobs hold tasks on the machines of a job into `others` (N,); return how many."""
    tasks.stamp[-1] += 1
    mark, n, width = tasks.stamp[-1], 0, tasks.group.shape[1]
    tasks.stamp[job] = mark
    for t in range(tasks.n[job, WORKER] + tasks.n[job, PS]):
        node = tasks.head[facts.group_machine[tasks.group[job, t]]]
        while node >= 0:
            other = node // width
            if tasks.stamp[other] != mark:
                tasks.stamp[other] = mark
                others[n] = other
                n += 1
            node = tasks.after[node]
    return n


@inner(error_model="numpy")
def seconds_more(
    facts: RunFacts, slow: Slow, tasks: TaskTable, left: Floats, job: int, groups: Ints, n_workers: int, others: Ints
) -> tuple[float, float]:  # fmt: skip
    """Return how long a job would take on some groups, and how much longer that makes those beside it, in all.

    Parameters
    ----------
    left : array
        (N,) steps that jobs have left.
    groups : array
        (n,) where its tasks go, workers first.
    others : array
        (N,) to be written to.
    """
    put(facts, tasks, job, groups, n_workers)
    own, more = left[job] / speed_of(facts, slow, tasks, job), 0.0
    for i in range(touched(facts, tasks, job, others)):
        other = others[i]
        more += left[other] / speed_of(facts, slow, tasks, other) - left[other] / tasks.speed[other]
    take(facts, tasks, job)
    return own, more


@inner
def renew(facts: RunFacts, slow: Slow, tasks: TaskTable, job: int, others: Ints) -> int:
    """Note the speed of a job that was put and of those beside it; return how many of `others` those are."""
    tasks.speed[job] = speed_of(facts, slow, tasks, job)
    n = touched(facts, tasks, job, others)
    for i in range(n):
        tasks.speed[others[i]] = speed_of(facts, slow, tasks, others[i])
    return n


@kernel(error_model="numpy")
def _fill(
    facts: RunFacts, slow: Slow, tasks: TaskTable, job: Ints, first: Ints, role: Ints, group: Ints, count: Ints
) -> None:  # fmt: skip
    """Put gangs on groups, and note their speeds."""
    groups = np.zeros(tasks.group.shape[1], np.int64)
    for i in range(len(job)):
        n, n_workers = 0, 0
        for what in (WORKER, PS):
            for row in range(first[i], first[i + 1]):
                if role[row] == what:
                    for _ in range(count[row]):
                        groups[n] = group[row]
                        n += 1
            if what == WORKER:
                n_workers = n
        put(facts, tasks, job[i], groups[:n], n_workers)
    for i in range(len(job)):
        tasks.speed[job[i]] = speed_of(facts, slow, tasks, job[i])

"""What `labkit.speed.what_if` looks at: where jobs are, what never changes, how co-located tasks slow a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, Floats, Ints
from labkit.kernels import by_reference
from labkit.speed.interference.model import MODELS, InterferenceModel
from labkit.speed.interference.use import ModelUse, task_use
from labkit.speed.step_time import StepTime

WORKER, PS = 0, 1
NOTHING, EXPONENTIAL, LINEAR, QUADRATIC = range(4)
KINDS: Final = {None: NOTHING, "exponential": EXPONENTIAL, "linear": LINEAR, "quadratic": QUADRATIC}
N_SEEN: Final = 6
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
    asked_ps : array
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
    asked_ps: Ints
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
    cpu, pcie, none = np.zeros(6), np.zeros(6), np.zeros((N_SEEN, 0))
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
    """Return what never changes.

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
        compute_s=np.ascontiguousarray(compute_s), gbit=speed.model_bytes * 8e-9, asked_ps=jobs.n_ps.astype(np.int64),
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

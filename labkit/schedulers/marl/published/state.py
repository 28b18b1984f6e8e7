"""What an agent sees: X, D, C and the nodes' features, as the text has them (sec. IV-A), and loads of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.marl.published.form import Form
from labkit.schedulers.marl.published.graphs import Graph, Numbers
from labkit.speed.interference.use import ModelUse, task_use
from labkit.speed.network import link_loads
from labkit.workloads.catalogue import model_bytes

TOLD = [CPUS, GPUS]
"""Resources in the order of the text's example: cores, then GPUs."""


@dataclass(frozen=True, eq=False, slots=True)
class AgentView:
    """What an agent sees when it is asked about a task.

    Attributes
    ----------
    agent : int
        The jobs.
    nodes : array
        (P, R + 2 J) of the nodes that take tasks: what is free, and workers and PSs of each job there.
    models : array
        (J, M) X: one-hot models of jobs.
    demands : array
        (J, 2 R + 2) D: number of workers, demand of one; number of PSs, demand of one.
    task : array
        (M + R + 2,) C: 1 for a PS, one-hot model, how many of them the job has, demand of one. 0: no task.
    mask : array of bool
        (P + N,) what may be done: places, then schedulers to forward to.
    """

    agent: int
    nodes: Numbers
    models: Numbers
    demands: Numbers
    task: Numbers
    mask: Bools


class Declared:
    """What was declared of the jobs of a run, as rows of X, D and C.

    Attributes
    ----------
    models : array
        (N, M) X.
    demands : array
        (N, 2 R + 2) D.
    tasks : array
        (N, 2, M + R + 2) C of a worker and of a PS.

    Raises
    ------
    InputError
        If the network does not know a job's model; it names the first one.
    """

    def __init__(self, jobs: Jobs, form: Form) -> None:
        self.jobs = jobs
        self.models = one_hot(jobs, form.models)
        worker, ps = jobs.worker_demand[:, TOLD], jobs.ps_demand[:, TOLD]
        self.demands: Numbers = np.column_stack([jobs.n_workers, worker, jobs.n_ps, ps]).astype(np.float32)
        self.tasks = np.zeros((len(jobs), 2, form.n_task), np.float32)
        for role, n, demand in ((Role.WORKER, jobs.n_workers, worker), (Role.PS, jobs.n_ps, ps)):
            is_ps = np.full(len(jobs), role == Role.PS)
            self.tasks[:, role] = np.column_stack([is_ps, self.models, n, demand])


def one_hot(jobs: Jobs, models: Sequence[str]) -> Numbers:
    """Return which model each job has, (N, M).

    Raises
    ------
    InputError
        If it is none of them.
    """
    place = np.array([models.index(name) if name in models else -1 for name in jobs.models], np.int64)
    if (strange := np.flatnonzero(place[jobs.model] < 0)).size:
        job = int(strange[0])
        raise InputError(
            f"marl: job {jobs.id[job]} trains {jobs.models[jobs.model[job]]}, which the network has not met; it knows "
            f"{', '.join(models)}. Train one with such jobs."
        )
    return np.eye(len(models), dtype=np.float32)[place[jobs.model]]


def placed_on(graph: Graph, snapshot: Snapshot, jobs: Ints) -> dict[int, Numbers]:
    """Return how many workers and PSs of each of some jobs sit in each place of a graph: job -> (P, 2)."""
    place_of = np.full(snapshot.cluster.n_groups, -1)
    place_of[graph.groups] = np.repeat(np.arange(graph.n_places), np.diff(graph.first_group))
    first, role, group, count = snapshot.tasks_of(jobs)
    told: dict[int, Numbers] = {}
    for j, job in enumerate(jobs.tolist()):
        rows = slice(int(first[j]), int(first[j + 1]))
        place = place_of[group[rows]]
        here = place >= 0
        if here.any():
            table = np.zeros((graph.n_places, 2), np.float32)
            np.add.at(table, (place[here], role[rows][here]), count[rows][here])
            told[job] = table
    return told


def nodes_of(graph: Graph, free: Floats, placed: Sequence[Numbers | None], *, n_jobs: int) -> Numbers:
    """Return the features of places, (P, R + 2 J): what is free there, and tasks of the J jobs, in their order."""
    nodes = np.zeros((graph.n_places, len(TOLD) + 2 * n_jobs), np.float32)
    nodes[:, : len(TOLD)] = np.add.reduceat(free[graph.groups][:, TOLD], graph.first_group[:-1], axis=0)
    for j, table in enumerate(placed):
        if table is not None:
            nodes[:, len(TOLD) + 2 * j : len(TOLD) + 2 * j + 2] = table
    return nodes


class Loads:
    """How busy links and PCIe buses are, as far as a scheduler can know it: by measured speeds and declared use."""

    def __init__(self, jobs: Jobs, cluster: Cluster, *, uses: Mapping[str, ModelUse] | None = None) -> None:
        self._cluster = cluster
        self._bytes = model_bytes(jobs)
        self._pcie = task_use(jobs, uses=uses)[1]

    def __call__(self, snapshot: Snapshot) -> tuple[Floats, Floats]:
        """Return the part of its bandwidth that each link (L,) and each group's bus (G,) carries."""
        cluster, running = self._cluster, snapshot.running()
        job = running.job[running.row_job()]
        moved = running.count * self._pcie[running.role, job]
        bus = np.bincount(running.group, moved, cluster.n_groups) / np.maximum(cluster.group_pcie_gbps, 1e-9)
        at = np.searchsorted(snapshot.jobs.number, running.job)
        speed = snapshot.jobs.speed[np.minimum(at, len(snapshot.jobs) - 1)] if len(running.job) else np.zeros(0)
        link = link_loads(running, jobs=snapshot.table, cluster=cluster, model_bytes=self._bytes, speed=speed)
        return link, np.asarray(bus, np.float64)

"""What agents see (X, D, C and features of nodes, sec. IV-A), and a decision: tasks one by one, jobs forwarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.speed.interference.use import ModelUse, task_use
from labkit.speed.network import link_loads
from labkit.workloads.catalogue import model_bytes
from reproductions.marl.graphs import Form, Graph, Graphs, Numbers

TOLD = [CPUS, GPUS]
"""Resources in the order of the text's example: cores, then GPUs."""


@dataclass(frozen=True, eq=False, slots=True)
class AgentView:
    """What an agent sees when it is asked about a task."""

    agent: int
    """The jobs."""
    nodes: Numbers
    """(P, R + 2 J) of the nodes that take tasks: what is free, and workers and PSs of each job there."""
    models: Numbers
    """(J, M) X: one-hot models of jobs."""
    demands: Numbers
    """(J, 2 R + 2) D: number of workers, demand of one; number of PSs, demand of one."""
    task: Numbers
    """(M + R + 2,) C: 1 for a PS, one-hot model, how many of them the job has, demand of one. 0: no task."""
    mask: Bools
    """(P + N,) what may be done: places, then schedulers to forward to."""


class Declared:
    """What was declared of the jobs of a run, as rows of X, D and C.

    Raise InputError if the network does not know a job's model; it names the first one.
    """

    def __init__(self, jobs: Jobs, form: Form) -> None:
        self.jobs = jobs
        self.models = one_hot(jobs, form.models)
        """(N, M) X."""
        worker, ps = jobs.worker_demand[:, TOLD], jobs.ps_demand[:, TOLD]
        self.demands: Numbers = np.column_stack([jobs.n_workers, worker, jobs.n_ps, ps]).astype(np.float32)
        """(N, 2 R + 2) D."""
        self.tasks = np.zeros((len(jobs), 2, form.n_task), np.float32)
        """(N, 2, M + R + 2) C of a worker and of a PS."""
        for role, n, demand in ((Role.WORKER, jobs.n_workers, worker), (Role.PS, jobs.n_ps, ps)):
            is_ps = np.full(len(jobs), role == Role.PS)
            self.tasks[:, role] = np.column_stack([is_ps, self.models, n, demand])


def one_hot(jobs: Jobs, models: Sequence[str]) -> Numbers:
    """Return which model each job has, (N, M); InputError if it is none of them."""
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


@dataclass(frozen=True, slots=True)
class TaskToPlace:
    """A task that is to be placed: whose, and which scheduler is asked."""

    agent: int
    job: int
    role: int


class PlacementSlot:
    """A decision while it is made: `task` is due, `see` tells what its scheduler sees, `take` answers.

    Each scheduler goes through the jobs that wait at its pod, in order of arrival, and places workers first. A job goes
    to another scheduler before its first task, as a whole; there it may not be forwarded again. One that finds no room,
    and no scheduler to go to, waits at home until the next decision. Raise InputError if the home of a job is no pod of
    the cluster.

    Parameters
    ----------
    snapshot : Snapshot
        What is known.
    graphs : Graphs
        Of its cluster.
    declared : Declared
        Of its jobs.
    form : Form
        Of the networks.
    rng : Generator
        Draws groups of servers, where a form decides about servers.
    room_elsewhere : bool
        Forward only to schedulers whose pods may hold the gang now; False: to any.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        graphs: Graphs,
        declared: Declared,
        form: Form,
        rng: np.random.Generator,
        *,
        room_elsewhere: bool = True,
    ) -> None:
        self.snapshot, self.graphs, self.form = snapshot, graphs, form
        self.trial = Trial(snapshot)
        self.task: TaskToPlace | None = None
        self._declared, self._rng, self._room_elsewhere = declared, rng, room_elsewhere
        self._queues = self._queued()
        running = snapshot.jobs.number[snapshot.holds(snapshot.jobs.number)]
        self._placed = [placed_on(graph, snapshot, running) for graph in graphs.inner]
        self._members = [sorted([*at, *queue]) for at, queue in zip(self._placed, self._queues, strict=True)]
        self._left: list[int] = []  # roles that are yet to be placed, of the job that is due
        self._forwarded: set[int] = set()
        self._mask: Bools = np.zeros(0, np.bool_)
        self._next()

    # --- what is asked

    @property
    def over(self) -> bool:
        """Whether no task is due any more."""
        return self.task is None

    @property
    def mask(self) -> Bools:
        """What may be done with the task that is due, (P + N,): places, then schedulers."""
        return self._mask

    def see(self) -> AgentView:
        """Return what the scheduler of the task that is due sees."""
        assert self.task is not None
        agent, job, role = self.task.agent, self.task.job, self.task.role
        return self._seen(agent, job, self._declared.tasks[job, role], self._mask)

    def look(self, agent: int) -> AgentView:
        """Return what a scheduler sees that is asked about no task."""
        n = self.graphs.inner[agent].n_places + self.graphs.n_agents
        return self._seen(agent, -1, np.zeros(self.form.n_task, np.float32), np.zeros(n, np.bool_))

    def _seen(self, agent: int, job: int, task: Numbers, mask: Bools) -> AgentView:
        form, declared, placed = self.form, self._declared, self._placed[agent]
        order = self._members[agent]
        if job >= 0 and form.current_first:
            order = [job, *(other for other in order if other != job)]
        order = order[: form.n_jobs]
        models = np.zeros((form.n_jobs, len(form.models)), np.float32)
        demands = np.zeros((form.n_jobs, form.n_demand), np.float32)
        models[: len(order)], demands[: len(order)] = declared.models[order], declared.demands[order]
        tasks = [placed.get(one) for one in order]
        nodes = nodes_of(self.graphs.inner[agent], self.trial.free, tasks, n_jobs=form.n_jobs)
        return AgentView(agent, nodes, models, demands, task, mask)

    # --- what is answered

    def take(self, action: int) -> None:
        """Place the task that is due, or forward its job; the next one is due then.

        Raise InputError if the mask does not allow it.
        """
        task = self.task
        if task is None or not 0 <= action < len(self._mask) or not self._mask[action]:
            raise InputError(f"marl: action {action} is not allowed here; take one where the mask is True.")
        graph = self.graphs.inner[task.agent]
        if action >= graph.n_places:
            self._forward(task, action - graph.n_places)
            return
        group = self._group(graph, action, task)
        self.trial.add(task.job, task.role, group)
        table = self._placed[task.agent].setdefault(task.job, np.zeros((graph.n_places, 2), np.float32))
        table[action, task.role] += 1
        self._left.pop(0)
        self._go_on(task)

    def drop(self) -> None:
        """Let the job of the task that is due wait until the next decision."""
        assert self.task is not None
        self._undo(self.task)
        self._next()

    def held(self) -> list[list[int]]:
        """Return the jobs that would have tasks at each scheduler."""
        return [list(placed) for placed in self._placed]

    def placement(self) -> Placement:
        """Return the decision that has come of it."""
        return self.trial.placement()

    # --- inside

    def _queued(self) -> list[list[int]]:
        """Return the jobs that wait at each scheduler, by arrival; one without a home waits where most is free."""
        snapshot, n = self.snapshot, self.graphs.n_agents
        waiting = snapshot.waiting
        if n == 1:
            return [waiting.tolist()]
        home = snapshot.table.home[waiting]
        if (strange := np.flatnonzero(home >= n)).size:
            job = int(waiting[strange[0]])
            raise InputError(
                f"marl: job {snapshot.table.id[job]} arrives in pod {home[strange[0]]}; {snapshot.cluster.name} has "
                f"pods 0 to {n - 1}. Take a cluster with more pods, or a trace with fewer homes."
            )
        free = np.bincount(self.graphs.agent_of_group, snapshot.free[:, GPUS], n)
        home = np.where(home < 0, int(free.argmax()), home)
        return [waiting[home == agent].tolist() for agent in range(n)]

    def _next(self) -> None:
        """Make the first task due that has a choice: of the jobs that wait, scheduler by scheduler."""
        self.task = None
        for agent, queue in enumerate(self._queues):
            while queue:
                job = queue.pop(0)
                mask = self._first_mask(agent, job)
                if mask.any():
                    n_workers, n_ps = self.snapshot.table.n_workers[job], self.snapshot.table.n_ps[job]
                    self._left = [int(Role.WORKER)] * int(n_workers) + [int(Role.PS)] * int(n_ps)
                    self.task, self._mask = TaskToPlace(agent, job, self._left[0]), mask
                    return

    def _go_on(self, task: TaskToPlace) -> None:
        """Make the next task of a job due; where it finds no room, the job waits."""
        if not self._left:
            self._next()
            return
        self.task = TaskToPlace(task.agent, task.job, self._left[0])
        places = self._places(task.agent, task.job, self._left[0])
        if not places.any():
            self.drop()
            return
        self._mask = np.concatenate([places, np.zeros(self.graphs.n_agents, np.bool_)])

    def _undo(self, task: TaskToPlace) -> None:
        self.trial.clear(task.job)
        self._placed[task.agent].pop(task.job, None)

    def _forward(self, task: TaskToPlace, to: int) -> None:
        self._members[task.agent].remove(task.job)
        self._members[to] = sorted([*self._members[to], task.job])
        self._queues[to].append(task.job)
        self._forwarded.add(task.job)
        self._next()

    def _first_mask(self, agent: int, job: int) -> Bools:
        """Return what may be done with the first task of a job, (P + N,)."""
        graph, n = self.graphs.inner[agent], self.graphs.n_agents
        table = self.snapshot.table
        role = Role.WORKER if table.n_workers[job] else Role.PS
        mask = np.zeros(graph.n_places + n, np.bool_)
        if self.holds(agent, job):
            mask[: graph.n_places] = self._places(agent, job, role)
        if job not in self._forwarded and table.home[job] in (agent, -1):
            for other in range(n):
                mask[graph.n_places + other] = other != agent and (not self._room_elsewhere or self.holds(other, job))
        return mask

    def _places(self, agent: int, job: int, role: int) -> Bools:
        """Return which places of a scheduler have room for a task, (P,)."""
        graph = self.graphs.inner[agent]
        room = self.trial.room(job, role)[graph.groups] > 0
        return np.asarray(np.logical_or.reduceat(room, graph.first_group[:-1]))

    def holds(self, agent: int, job: int) -> bool:
        """Return whether a pod may hold a gang now: what says no is sure, what says yes is not."""
        groups, table = self.graphs.inner[agent].groups, self.snapshot.table
        usable = self.trial.room(job, Role.WORKER)[groups]
        for_ps = self.trial.room(job, Role.PS)[groups]
        n_workers, n_ps = int(table.n_workers[job]), int(table.n_ps[job])
        if usable.sum() < n_workers or for_ps.sum() < n_ps:
            return False
        there = self.trial.free[groups[(usable > 0) | (for_ps > 0)]].sum(axis=0)
        return bool((table.gang_demand[job] <= there + SLACK).all())

    def _group(self, graph: Graph, place: int, task: TaskToPlace) -> int:
        """Return a device group of a place that has room: of a server, one at random (sec. VI-A)."""
        groups: Ints = graph.groups[graph.first_group[place] : graph.first_group[place + 1]]
        if len(groups) > 1:
            groups = groups[self.trial.room(task.job, task.role)[groups] > 0]
            return int(self._rng.choice(groups))
        return int(groups[0])

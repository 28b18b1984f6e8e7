"""MARL's schedulers, each of its pod: a network that was trained says where a gang goes, here or in another pod."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.life import Contention, Context, begin
from labkit.core.placement import Placement
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.placers import Even
from labkit.schedulers.base import requested_gangs
from labkit.schedulers.marl.candidates import MOST
from labkit.schedulers.marl.network import MOST_WAITED, CandidateBuffers, Net, Scene, desk_of
from labkit.schedulers.marl.queue import place_waiting
from labkit.schedulers.marl.scenes import MACHINES, PODS, declared_speed, scene_of
from labkit.schedulers.marl.weights import TrainedFor, load, servers_of
from labkit.schedulers.pods.room import refuse_pods_without_gpus
from labkit.speed.interference.levels import digest_of
from labkit.speed.what_if import Slow, fill, learned, slow_of


class RunKnowledge(NamedTuple):
    """What was made of a run's jobs and cluster, to be filled anew for each decision."""

    scene: Scene
    desk: CandidateBuffers
    slow: Slow
    net: Net


@dataclass(eq=False)
class Marl:
    """Give each gang the placement that is worth most to a network trained by imitation and policy gradient.

    Jobs wait in the order of arrival, and one that does not fit lets those behind it pass. For each, the ways to put
    its gang onto one machine of its home pod, and even splits over several, are weighed, and those of the pods with
    most free GPUs beside them: a job that goes there is forwarded, whole and once. A small network predicts from
    declared use what each task would suffer, the seconds follow that the gang and those beside it would take, and a
    head weighs the best dozen by what they leave behind, against leaving the job in the queue.

    What it knows is declared: demands, use of cores and PCIe by model (`labkit.speed.interference.task_use`; measured
    where interference is a file), compute time and size of the catalogue's models, durations. All is summed over
    tasks, machines and jobs, so the same weights serve any number of pods, machines and groups, in any order.

    Weights keep the interference that they were trained with. Where a run has another one, the model fitted to it takes
    the place of the network for slowdowns, and the head sees use in the unit of its training; the run's notes say so.
    They keep the servers of their training, too, by whose sockets features are divided: on a cluster of others
    `fallback` decides in its place, which a note says as well.

    Attributes
    ----------
    weights : str
        A name of `labkit.schedulers.marl.shipped()`, or the path of a .safetensors file of `labkit train-policy marl`.
    forwards : bool
        False: a job goes to another pod only where it finds no room at home.
    waits : bool
        False: a job that finds room is never left in the queue.
    fallback : str or None
        What decides on servers that its training had not; None: the network does all the same.
    """

    knows_types: ClassVar[bool] = False

    weights: str = "marl"
    forwards: bool = True
    waits: bool = True
    fallback: str | None = "interference_aware"
    _instead: Scheduler | None = field(default=None, init=False, repr=False)
    _net: Net = field(init=False, repr=False)
    _knowledge: RunKnowledge | None = field(default=None, init=False, repr=False)
    _of: tuple[int, int] = field(default=(0, 0), init=False, repr=False)
    _trained: TrainedFor = field(init=False, repr=False)
    _interference: Contention | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        weights = load(self.weights)
        self._trained, net = weights.trained, weights.net
        if not self.waits:
            net = net._replace(wait=np.zeros_like(net.wait))
            net.wait[:, -1] = -np.inf
        self._net = net

    def begin(self, context: Context) -> None:
        """Begin a run; InputError if a pod has no GPU."""
        refuse_pods_without_gpus(context.cluster)
        self._interference, self._instead = context.interference, None
        if self._hands_over(context.cluster):
            self._instead = self._fallback()
            begin(self._instead, context)
            return
        self._knowledge = self._knowledge_of(context.jobs, context.cluster, context.runs_on)
        self._of = (id(context.jobs), id(context.cluster))

    def _hands_over(self, cluster: Cluster) -> bool:
        """Return whether a cluster has servers that the training had not, and something else may decide there."""
        known = self._trained.servers.split("; ")
        return self.fallback is not None and known != [""] and servers_of(cluster) not in known

    def _fallback(self) -> Scheduler:
        from labkit.schedulers import make

        if self.fallback != "interference_aware":
            return make(str(self.fallback))
        return make("interference_aware", forwards=self.forwards, patience=2.0 if self.waits else np.inf)

    def _knowledge_of(self, jobs: Jobs, cluster: Cluster, runs_on: Bools) -> RunKnowledge:
        """Return the declared knowledge of the jobs, on an empty cluster."""
        speed, interference = declared_speed(jobs, cluster), self._interference
        if interference is not None and self._is_strange(interference):
            unit, uses, slow = self._trained.times, interference.uses, slow_of(interference.model)
        else:
            unit, uses = 1.0, None if interference is None else interference.declared
            slow = learned(self._net.seen, self._net.out)
        scene = scene_of(jobs, cluster, runs_on=runs_on, speed=speed, uses=uses, unit=unit)
        return RunKnowledge(scene, desk_of(scene), slow, self._net)

    def _is_strange(self, interference: Contention) -> bool:
        """Return whether a run's interference is another one than that of the training."""
        return digest_of(interference) != self._trained.digest

    def cautions(self, jobs: Jobs, cluster: Cluster, interference: Contention | None) -> list[str]:
        """Return the cautions for readers of a run's numbers, a sentence each."""
        found = [] if (cut := left_out(jobs, cluster)) is None else [cut]
        if self._hands_over(cluster):
            told = f"its weights were trained on servers of {self._trained.servers} per socket"
            return [*found, f"{told}, and this cluster has {servers_of(cluster)}; {self.fallback} decides instead."]
        if interference is not None and self._is_strange(interference):
            found.append(
                f"its weights were trained with the interference '{self._trained.name}', and this run has "
                f"'{interference.name}'; it foresees slowdowns by the model that was fitted to the run's."
            )
        return found

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return where the waiting jobs go."""
        if self._instead is not None:
            return self._instead.schedule(snapshot)
        waiting = snapshot.waiting
        if not len(waiting):
            return Placement.nothing()
        mine = (id(snapshot.table), id(snapshot.cluster))
        if self._knowledge is None or self._of != mine:
            self._knowledge, self._of = self._knowledge_of(snapshot.table, snapshot.cluster, snapshot.runs_on), mine
        return weighed(self._knowledge, snapshot, waiting, forwards=self.forwards)


def weighed(knowledge: RunKnowledge, snapshot: Snapshot, waiting: Ints, *, forwards: bool) -> Placement:
    """Return where waiting jobs go, each where the network of `knowledge` finds it best."""
    show(knowledge.scene, knowledge.slow, snapshot)
    chosen, groups = place_waiting(
        knowledge.scene, knowledge.slow, knowledge.net, waiting.astype(np.int64), snapshot.now_s,
        snapshot.table.arrival_s, snapshot.n_running, not forwards, knowledge.desk,
    )  # fmt: skip
    answer = placement(knowledge.scene, chosen, groups) if len(chosen) else beyond_pods(snapshot, knowledge.scene)
    return with_limit(snapshot.fitting(answer), snapshot, knowledge.scene)


def left_out(jobs: Jobs, cluster: Cluster) -> str | None:
    """Return a sentence if a gang may have more placements than are weighed."""
    groups = np.bincount(cluster.group_machine)
    pairs = max(int(groups.max() * (groups.max() - 1) // 2), 1)
    machines = min(MACHINES, len(groups)) * min(PODS + 1, int(cluster.partition.max()) + 1)
    ways = (jobs.n_workers + 1) * (jobs.n_ps + 1) * pairs * machines
    if ways.max(initial=0) <= MOST:
        return None
    return (
        f"{int((ways > MOST).sum())} jobs have gangs of up to {int(ways.max()):,} placements; it weighs the first "
        f"{MOST:,}, those at home before those in other pods."
    )


def with_limit(answer: Placement, snapshot: Snapshot, scene: Scene) -> Placement:
    """Return a decision that asks for the next one when a job that it leaves in the queue may wait no longer."""
    left = snapshot.waiting[~np.isin(snapshot.waiting, answer.set_jobs)]
    due_s = snapshot.table.arrival_s[left] + MOST_WAITED * scene.alone_s[left]  # as latest_s
    return replace(answer, again_s=float(due_s[due_s > snapshot.now_s].min(initial=np.inf)))


def beyond_pods(snapshot: Snapshot, scene: Scene) -> Placement:
    """Return where waiting jobs go, split evenly over the cluster, that not even an empty pod of it holds."""
    cluster, waiting, room = snapshot.cluster, snapshot.waiting, scene.room
    pod = cluster.partition[cluster.group_machine]
    offered = np.zeros((len(room.first_machine) - 1, cluster.capacity.shape[1]))
    np.add.at(offered, pod, cluster.capacity)
    demand = snapshot.table.gang_demand[waiting]
    held: Bools = np.all(demand[:, None] <= offered + SLACK, axis=2)  # (W, P)
    large = waiting[~held.any(axis=1)]
    return (
        Even(keep_order=True).place(snapshot, requested_gangs(snapshot, large)) if len(large) else Placement.nothing()
    )


def show(scene: Scene, slow: Slow, snapshot: Snapshot) -> None:
    """Fill a scene with what a snapshot shows."""
    tasks = scene.tasks
    for column, none in (
        (tasks.n, 0), (tasks.cores, 0), (tasks.moved, 0), (tasks.up, 0), (tasks.down, 0), (tasks.head, -1),
    ):  # fmt: skip
        column[:] = none
    scene.room.free[:] = snapshot.free
    scene.room.up[:] = snapshot.up[snapshot.cluster.group_machine]
    jobs = snapshot.jobs
    scene.left[jobs.number] = jobs.remaining_steps
    own = snapshot.table.home[jobs.number]
    scene.bound[jobs.number] = (own >= 0) & (jobs.pod != own)  # it was forwarded, and is not again
    scene.home[jobs.number] = np.where(jobs.pod < len(scene.room.first_machine) - 1, jobs.pod, -1)
    fill(scene.facts, slow, tasks, snapshot.running())


def placement(scene: Scene, chosen: Ints, groups: Ints) -> Placement:
    """Return the decision that puts some jobs on some groups, (C,) and (C, K)."""
    if not len(chosen):
        return Placement.nothing()
    n_workers = scene.n_workers[chosen]
    n = n_workers + scene.n_ps[chosen]
    inside = np.arange(groups.shape[1]) < n[:, None]
    role = np.where(np.arange(groups.shape[1]) < n_workers[:, None], 0, 1)[inside]
    rows = np.column_stack([np.repeat(np.arange(len(chosen)), n), role, groups[inside]])
    rows, count = np.unique(rows, axis=0, return_counts=True)
    return Placement.of(chosen, job=chosen[rows[:, 0]], role=rows[:, 1], group=rows[:, 2], count=count)

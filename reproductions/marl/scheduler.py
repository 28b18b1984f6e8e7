"""MARL as published: networks in files, and schedulers side by side that place tasks one by one, or forward a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.resources import GPUS
from labkit.core.snapshot import Snapshot
from labkit.core.weights import Tensors, WeightsFiles, fault_of, seconds
from labkit.schedulers.pods.room import refuse_pods_without_gpus
from labkit.speed.interference.use import ModelUse
from reproductions.marl.graphs import Form, Graphs, Numbers, graphs_of
from reproductions.marl.policy import Params, chances, encode, scores, shapes, states
from reproductions.marl.slot import AgentView, Declared, Loads, PlacementSlot

FILES: Final = WeightsFiles(
    policy="marl as published",
    version="1",
    remedy="Train it: labkit train-policy marl --published.",
    of="weights of MARL's own network",
)


@dataclass(frozen=True, eq=False)
class MarlWeights:
    """Trained networks of the published form."""

    nets: tuple[Params, ...]
    """Tensors by name (`reproductions.marl.policy.shapes`): one that all schedulers share, or one each."""
    form: Form
    """What they see and may do."""
    slot_s: float
    """Seconds of a scheduling interval in their training."""
    source: str
    """How they were made."""

    def net(self, agent: int) -> Params:
        """Return the network of a scheduler."""
        return self.nets[agent if len(self.nets) > 1 else 0]

    def refuse_other(self, graphs: Graphs, *, cluster: str) -> None:
        """Raise if the networks are for another cluster.

        Raise InputError if they are separate ones of other schedulers, or a flat head's for pods of another size.
        """
        n, places = graphs.n_agents, {graph.n_places for graph in graphs.inner}
        if len(self.nets) not in (1, n):
            raise InputError(
                f"marl: these are the weights of {len(self.nets)} schedulers, one network each; {cluster} has {n} "
                "pods. Take weights that schedulers share, or a cluster with as many pods."
            )
        form = self.form
        if form.head == "flat" and (places != {form.n_places} or n != form.n_agents):
            sizes = ", ".join(map(str, sorted(places)))
            raise InputError(
                f"marl: a flat head is for {form.n_agents} pods of {form.n_places} places; {cluster} has {n} of "
                f"{sizes}. Take weights with head=equivariant, which fit any size."
            )

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = {f"{k}.{name}": tensor for k, net in enumerate(self.nets) for name, tensor in net.items()}
        FILES.write(
            path, tensors, form=json.dumps(asdict(self.form)), n_nets=str(len(self.nets)), slot_s=repr(self.slot_s),
            source=self.source,
        )  # fmt: skip


def load_published(path: str | Path) -> MarlWeights:
    """Return networks from a file; InputError if it holds something else."""
    tensors, (form, n_nets, slot_s, source) = FILES.load(
        path, misfit=_fault, form=_form, n_nets=int, slot_s=seconds, source=str
    )
    nets = tuple({name: tensors[f"{k}.{name}"] for name in shapes(form)} for k in range(n_nets))
    return MarlWeights(nets, form, slot_s, source)


def _form(text: str) -> Form:
    """Return a form; raise KeyError, TypeError or ValueError if it is none."""
    kept = json.loads(text)
    return Form(**kept | {"models": tuple(kept["models"])})


def _fault(tensors: Tensors, form: Form, n_nets: int, *_: object) -> str:
    expected = {f"{k}.{name}": shape for k in range(n_nets) for name, shape in shapes(form).items()}
    if other := sorted(set(tensors) ^ set(expected)):
        what = "lacks" if other[0] in expected else "holds"
        return f"it {what} {other[0]}, which is {'' if other[0] in expected else 'not '}part of its form"
    return fault_of(tensors, expected)


class Minds:
    """The networks of all schedulers in one decision: what each told the others, and what it makes of a task.

    Schedulers exchange their embeddings when a decision begins; until the next one, others are as they were then.
    """

    def __init__(self, weights: MarlWeights, slot: PlacementSlot, loads: Loads) -> None:
        self.weights, self.graphs = weights, slot.graphs
        link, bus = loads(slot.snapshot)
        self.inner = [graph.features(link, bus) for graph in self.graphs.inner]
        self.inter: Numbers = self.graphs.inter.features(link, bus)
        """`inner` and `inter`: features of the edges of each inner graph, and of the graph among schedulers."""
        alone = [self._encoded(slot.look(agent))[0] for agent in range(self.graphs.n_agents)]
        self.told: Numbers = np.stack(alone)
        """(N, D) h0 of each scheduler."""

    def _encoded(self, seen: AgentView) -> tuple[Numbers, Numbers]:
        agent, weights = seen.agent, self.weights
        return encode(weights.net(agent), weights.form, seen, self.graphs.inner[agent], self.inner[agent])

    def scores(self, seen: AgentView) -> Numbers:
        """Return the score of each action, (P + N,)."""
        net, form = self.weights.net(seen.agent), self.weights.form
        mine, places = self._encoded(seen)
        told = self.told.copy()
        told[seen.agent] = mine
        return scores(net, form, states(net, form, told, self.graphs.inter, self.inter), places, seen.agent)


@dataclass(eq=False)
class PublishedMarl:
    """Place workers and parameter servers one by one as networks say that exchange what they see [1]_.

    Each pod of the cluster has a scheduler. It sees its pod as a graph of GPU groups, CPUs and switches, and the others
    by what they told when the decision began. Jobs wait at home in order of arrival; of each, every task goes where the
    network's score is highest, or the job as a whole to another scheduler, once.
    How large the networks are, and whether they decide about GPU groups or servers, stands in the file of weights.

    Attributes
    ----------
    weights : str
        The path of a .safetensors file of `labkit train-policy marl --published`.
    draws : bool
        Draw actions by their chances; False: the most probable one.
    seed : int
        Of the draws, and of groups within servers.
    room_elsewhere : bool
        Forward only to schedulers whose pods may hold the gang now; False: to any, as the text literally says.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", IEEE TNSM 2021.
    """

    knows_types: ClassVar[bool] = False

    weights: str | MarlWeights
    draws: bool = False
    seed: int = 0
    room_elsewhere: bool = True
    _weights: MarlWeights = field(init=False, repr=False)
    _jobs: Jobs | None = field(default=None, init=False, repr=False)
    _cluster: Cluster | None = field(default=None, init=False, repr=False)
    _uses: Mapping[str, ModelUse] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._weights = self.weights if isinstance(self.weights, MarlWeights) else load_published(self.weights)

    def begin(self, context: Context) -> None:
        """Refuse a run that the networks are not for.

        Raise InputError if they are of another size, or do not know a model, or a pod has no GPU, or a job is larger
        than every pod.
        """
        self._uses = None if context.interference is None else context.interference.declared
        self._jobs = None
        refuse_pods_without_gpus(context.cluster)
        self._meet(context.jobs, context.cluster)
        refuse_larger_than_pods(context.jobs, self._graphs(context), context)

    def _graphs(self, where: Context | Snapshot) -> Graphs:
        form = self._weights.form
        graphs = graphs_of(where.cluster, level=form.level, agents=form.agents)
        self._weights.refuse_other(graphs, cluster=where.cluster.name)
        return graphs

    def _meet(self, jobs: Jobs, cluster: Cluster) -> None:
        """Take note of the jobs of a run."""
        if self._jobs is not jobs or self._cluster is not cluster:
            self._declared, self._loads = Declared(jobs, self._weights.form), Loads(jobs, cluster, uses=self._uses)
            self._jobs, self._cluster = jobs, cluster

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, and where."""
        if not len(snapshot.waiting):
            return Placement.nothing()
        graphs = self._graphs(snapshot)
        self._meet(snapshot.table, snapshot.cluster)
        rng = np.random.default_rng([self.seed, snapshot.number])
        slot = PlacementSlot(
            snapshot, graphs, self._declared, self._weights.form, rng, room_elsewhere=self.room_elsewhere
        )  # fmt: skip
        if not slot.over:
            self._answer(slot, rng)
        return slot.placement()

    def _answer(self, slot: PlacementSlot, rng: np.random.Generator) -> None:
        """Place task by task until none is due."""
        minds = Minds(self._weights, slot, self._loads)
        while not slot.over:
            seen = slot.see()
            score = minds.scores(seen)
            if self.draws:
                slot.take(int(rng.choice(len(score), p=chances(score, seen.mask))))
            else:
                slot.take(int(np.where(seen.mask, score, -np.inf).argmax()))


def refuse_larger_than_pods(jobs: Jobs, graphs: Graphs, context: Context) -> None:
    """Raise if no pod holds the gang of some job, even when it is empty.

    Raise InputError, which names the first such job.
    """
    cluster = context.cluster
    pods = np.stack([cluster.capacity[graph.groups].sum(axis=0) for graph in graphs.inner])
    fits = np.asarray((jobs.gang_demand[:, None] <= pods[None] + 1e-9).all(axis=2), np.bool_)
    if (large := np.flatnonzero(~fits.any(axis=1))).size:
        job = int(large[0])
        raise InputError(
            f"marl: job {jobs.id[job]} asks for {jobs.gpus[job]:g} GPUs and {jobs.gang_demand[job, 1]:g} cores; no pod "
            f"of {cluster.name} holds it, the largest has {pods[:, GPUS].max():g} GPUs. Take larger pods, or drop it."
        )

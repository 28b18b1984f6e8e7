"""What learns in MARL as published: convolutions without weights per edge, networks, A2C (sec. IV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from labkit.learning.training import TrainingDivergedError
from reproductions.dl2.learner import Learned
from reproductions.marl.graphs import N_EDGE, N_KINDS, Form, Graph, Graphs, Numbers
from reproductions.marl.policy import NEVER, SCALE_DEMAND, SCALE_FREE, SCALE_TASKS, Params
from reproductions.marl.slot import AgentView
from reproductions.marl.switches import Published


@dataclass(frozen=True, eq=False)
class Wires:
    """The edges of a graph as torch takes them."""

    source: Tensor
    target: Tensor
    """`source` and `target`: (E,) nodes."""
    degree: Tensor
    """(V, 1) edges into each node, at least 1."""

    @classmethod
    def of(cls, graph: Graph) -> Wires:
        """Return those of a graph."""
        source, target = (torch.from_numpy(ends).long() for ends in (graph.source, graph.target))
        return cls.between(source, target, n_nodes=graph.n_nodes)

    @classmethod
    def between(cls, source: Tensor, target: Tensor, *, n_nodes: int) -> Wires:
        """Return edges between some of V nodes."""
        degree = torch.bincount(target, minlength=n_nodes).clamp_min(1).float()
        return cls(source, target, degree[:, None])


class Ecc(nn.Module):
    """A layer: a_i = mean over edges of F(e_ji) h_j + b with F(e) = W_0 + sum_k e_k W_k, and ReLU(W [h_i || a_i]) [1]_.

    All graphs of a batch have the same wires; features of edges may be those of each, or the same for all.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. IV-A.
    """

    def __init__(self, n_in: int, n_out: int, *, n_edge: int = N_EDGE) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn((n_edge + 1) * n_in, n_out) * n_in**-0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.weight = nn.Parameter(torch.randn(n_in + n_out, n_out) * (2 / (n_in + n_out)) ** 0.5)

    def around(self, h: Tensor, wires: Wires, edges: Tensor) -> Tensor:
        """Return a of all nodes, (..., V, F'), for features h (..., V, F) and edges ((...,) E, 3)."""
        sent = h.index_select(-2, wires.source)
        parts = [sent, *(edges[..., k : k + 1] * sent for k in range(edges.shape[-1]))]
        each = torch.cat(parts, dim=-1)
        sums = torch.zeros(*h.shape[:-1], each.shape[-1], dtype=h.dtype).index_add(-2, wires.target, each)
        return (sums / wires.degree.to(h.dtype)) @ self.filter + self.bias

    def forward(self, h: Tensor, wires: Wires, edges: Tensor) -> Tensor:
        """Return the next layer's features of all nodes, (..., V, F')."""
        return torch.relu(torch.cat([h, self.around(h, wires, edges)], dim=-1) @ self.weight)


SMALL = 0.05
"""Part of the usual deviation that the last weights of actor and critic begin with: nearly indifferent."""


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """B moments of schedulers of an interval whose graphs are alike: what `AgentView` has, and what all told before."""

    agent: Tensor
    """(B,) the agent."""
    nodes: Tensor
    models: Tensor
    demands: Tensor
    task: Tensor
    mask: Tensor
    """`nodes`, `models`, `demands`, `task` and `mask`: (B, ...) as in `AgentView`."""
    told: Tensor
    """(N, D) h0 of each scheduler when the interval began."""
    edges: Tensor
    """(B, E, 3) of the inner graphs."""
    inter_edges: Tensor
    """(E, 3) of the graph among schedulers."""

    @classmethod
    def of(cls, seen: Sequence[AgentView], *, told: Numbers, edges: Sequence[Numbers], inter_edges: Numbers) -> Self:
        """Return a batch of what schedulers saw; `edges` are those of every scheduler."""
        names = ("nodes", "models", "demands", "task", "mask")
        columns = {name: torch.from_numpy(np.stack([getattr(one, name) for one in seen])) for name in names}
        inner = torch.from_numpy(np.stack([edges[one.agent] for one in seen]))
        agent = torch.tensor([one.agent for one in seen])
        return cls(
            agent, **columns, told=torch.from_numpy(told), edges=inner, inter_edges=torch.from_numpy(inter_edges)
        )


class Two(nn.Module):
    """One hidden layer of ReLU, and a linear one."""

    def __init__(self, n_in: int, n_hidden: int, n_out: int, *, last: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(n_in, n_hidden) * (2 / n_in) ** 0.5)
        self.first_bias = nn.Parameter(torch.zeros(n_hidden))
        self.last = nn.Parameter(torch.randn(n_hidden, n_out) * (last * n_hidden**-0.5))
        self.last_bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., n_out) for (..., n_in)."""
        return torch.relu(x @ self.first + self.first_bias) @ self.last + self.last_bias


class Net(nn.Module):
    """All networks of an agent; tensors have the names of `reproductions.marl.policy.shapes`."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        widths = [form.n_node, *[form.width] * form.inner_layers]
        self.inner = nn.ModuleList(Ecc(a, b) for a, b in pairwise(widths))
        self.encoder = Two(form.n_seen, form.n_encoder, form.n_state)
        self.inter = nn.ModuleList(Ecc(form.n_state, form.n_state) for _ in range(form.n_layers_of_state - 1))
        self.critic = Two(form.n_whole, form.n_hidden, 1, last=SMALL)
        if form.head == "flat":
            self.actor = Two(form.n_whole, form.n_hidden, form.n_places + form.n_agents, last=SMALL)
        else:
            self.place = Two(form.n_whole + form.width, form.n_hidden, 1, last=SMALL)
            self.elsewhere = Two(2 * form.n_whole, form.n_hidden, 1, last=SMALL)

    def forward(
        self, batch: GraphBatch, inner: Wires, inter: Wires, n_nodes: int, n_inter: int
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, P + N), those of what is not allowed very low, and values (B,).

        `batch`: what was seen; `inner`, `inter`: of the inner graphs of `n_nodes` nodes, and of the graph among
        schedulers of `n_inter` nodes.
        """
        form = self.form
        mine, places = self.encode(batch, inner, n_nodes)
        told = batch.told.expand(len(mine), *batch.told.shape).clone()
        rows = torch.arange(len(mine))
        told[rows, batch.agent] = mine
        whole = self.states(told, inter, batch.inter_edges, n_inter)
        own = whole[rows, batch.agent]
        values = self.critic(own)[:, 0]
        if form.head == "flat":
            scores = self.actor(own)
        else:
            to_place = self.place(torch.cat([_each(own, places.shape[1]), places], dim=-1))[..., 0]
            to_agent = self.elsewhere(torch.cat([_each(own, whole.shape[1]), whole], dim=-1))[..., 0]
            scores = torch.cat([to_place, to_agent], dim=1)
        return scores.masked_fill(~batch.mask, NEVER), values

    def encode(self, batch: GraphBatch, inner: Wires, n_nodes: int) -> tuple[Tensor, Tensor]:
        """Return h0, (B, D), and the embeddings of places, (B, P, W)."""
        form, n_places = self.form, batch.nodes.shape[1]
        scale = torch.full((form.n_node,), SCALE_TASKS)
        scale[:N_KINDS] = torch.tensor(SCALE_FREE)
        h = torch.nn.functional.pad(batch.nodes * scale, (0, 0, 0, n_nodes - n_places))
        for layer in self.inner:
            h = layer(h, inner, batch.edges)
        places = h[:, :n_places]
        about = places.flatten(1) if form.head == "flat" else torch.cat([places.mean(1), places.amax(1)], dim=1)
        of_task = torch.ones(form.n_task)
        of_task[1 + len(form.models) :] = SCALE_DEMAND
        seen = [batch.models.flatten(1), batch.demands.flatten(1) * SCALE_DEMAND, about, batch.task * of_task]
        return torch.relu(self.encoder(torch.cat(seen, dim=1))), places

    def states(self, told: Tensor, inter: Wires, edges: Tensor, n_inter: int) -> Tensor:
        """Return s = h0 || h1 || h2 of each scheduler, (B, N, 3 D), for what each told, (B, N, D)."""
        n = told.shape[1]
        h, parts = torch.nn.functional.pad(told, (0, 0, 0, n_inter - n)), [told]
        for layer in self.inter:
            h = layer(h, inter, edges)
            parts.append(h[:, :n])
        return torch.cat(parts, dim=-1)

    def params(self) -> Params:
        """Return the weights for `reproductions.marl.policy`: the same numbers in the same place."""
        return {name: part.detach().numpy() for name, part in self.named_parameters()}

    def adopt(self, params: Params) -> None:
        """Begin with weights that were trained."""
        with torch.no_grad():
            for name, part in self.named_parameters():
                part.copy_(torch.from_numpy(np.ascontiguousarray(params[name])))


def wires_of(graph: Graph) -> tuple[Wires, int]:
    """Return the wires of a graph, and how many nodes it has."""
    return Wires.of(graph), graph.n_nodes


def _each(own: Tensor, n: int) -> Tensor:
    """Return a row for each of n: (B, n, F) from (B, F)."""
    return own[:, None].expand(len(own), n, own.shape[1])


@dataclass(eq=False)
class Interval:
    """What all schedulers did in an interval, and what each saw afterwards."""

    told: Numbers
    inner: Sequence[Numbers]
    inter: Numbers
    """`told`, `inner` and `inter`: as in `reproductions.marl.scheduler.Minds`."""
    seen: list[list[AgentView]]
    """By scheduler: one for each task, and the last one of after them."""
    action: list[list[int]]
    job: list[list[int]]
    """`action` and `job`: by scheduler, for each task."""

    @classmethod
    def of(cls, n_agents: int, *, told: Numbers, inner: Sequence[Numbers], inter: Numbers) -> Interval:
        """Return an interval in which no agent has acted yet."""
        return cls(told, inner, inter, *([[] for _ in range(n_agents)] for _ in range(3)))

    @property
    def n_tasks(self) -> int:
        """Tasks of all schedulers."""
        return sum(map(len, self.action))


class Learner:
    """The networks of all schedulers while they learn; their first weights are drawn from torch's seed."""

    def __init__(self, switches: Published, form: Form, graphs: Graphs) -> None:
        self.switches, self.form, self.graphs = switches, form, graphs
        self.nets = [Net(form) for _ in range(1 if switches.shared else graphs.n_agents)]
        """One that all share, or one of each scheduler."""
        self.n_updates = 0
        """Intervals from which they learned."""
        self._optimizers = [torch.optim.Adam(net.parameters(), lr=switches.rate) for net in self.nets]
        self._inner = [wires_of(graph) for graph in graphs.inner]
        self._inter = wires_of(graphs.inter)
        self._alike: list[list[int]] = []
        for agent, graph in enumerate(graphs.inner):
            same = [group for group in self._alike if alike(graphs.inner[group[0]], graph)]
            if same:
                same[0].append(agent)
            else:
                self._alike.append([agent])

    def params(self) -> tuple[Params, ...]:
        """Return the weights for schedulers; learning changes them."""
        return tuple(net.params() for net in self.nets)

    def update(self, did: Interval, reward: Sequence[Numbers]) -> Learned | None:
        """Learn from an interval, in which the tasks of each scheduler were worth `reward`; None: it placed nothing.

        Raise TrainingDivergedError if a loss or a gradient is not finite; the weights are those before it.
        """
        told = []
        for k, (net, optimizer) in enumerate(zip(self.nets, self._optimizers, strict=True)):
            alike = self._alike if self.switches.shared else [[k]]
            busy = [[agent for agent in group if did.action[agent]] for group in alike]
            parts = [self._parts(net, did, group, reward) for group in busy if group]
            if parts:
                told.append(self._step(net, optimizer, [torch.cat(column) for column in zip(*parts, strict=True)]))
        if not told:
            return None
        self.n_updates += 1
        return Learned(*np.mean(told, axis=0).tolist())

    def _parts(self, net: Net, did: Interval, agents: Sequence[int], reward: Sequence[Numbers]) -> tuple[Tensor, ...]:
        """Return of each task of some schedulers -log pi A, the squared error of V, and the entropy, (B,)."""
        seen = [one for agent in agents for one in did.seen[agent]]
        batch = GraphBatch.of(seen, told=did.told, edges=did.inner, inter_edges=did.inter)
        inner, n_nodes = self._inner[agents[0]]
        scores, values = net(batch, inner, self._inter[0], n_nodes, self._inter[1])
        after = np.cumsum([len(did.seen[agent]) for agent in agents]) - 1  # what was seen after the last task
        now = torch.from_numpy(np.delete(np.arange(len(seen)), after))
        worth = torch.from_numpy(np.concatenate([reward[agent] for agent in agents]))
        action = torch.tensor([one for agent in agents for one in did.action[agent]])
        logs = torch.log_softmax(scores[now], dim=1)
        target = worth + self.switches.discount * values[now + 1].detach()
        error = target - values[now]  # A = r + gamma V(s') - V(s)
        mine = logs.gather(1, action[:, None])[:, 0]
        entropy = -(logs.exp() * logs.masked_fill(~batch.mask[now], 0.0)).sum(1)
        return -mine * error.detach(), error**2, entropy

    def _step(self, net: Net, optimizer: torch.optim.Optimizer, parts: Sequence[Tensor]) -> list[float]:
        actor, critic, entropy = (part.mean() for part in parts)
        loss = actor + critic - self.switches.entropy * entropy
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise TrainingDivergedError(
                f"the loss of step {self.n_updates + 1} is {float(loss.detach()):g} and its gradient {float(norm):g}; "
                "expected finite numbers. The weights are those before it; try a smaller rate."
            )
        if self.switches.clip:
            nn.utils.clip_grad_norm_(net.parameters(), self.switches.clip)
        optimizer.step()
        return [float(part.detach()) for part in (actor, critic, entropy)]

    # --- what is kept

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""
        parts: list[Any] = [*self.nets, *self._optimizers]
        return {"n_updates": self.n_updates, "parts": [part.state_dict() for part in parts]}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        parts: list[Any] = [*self.nets, *self._optimizers]
        for part, kept in zip(parts, state["parts"], strict=True):
            part.load_state_dict(kept)
        self.n_updates = state["n_updates"]


def alike(one: Graph, other: Graph) -> bool:
    """Return whether two graphs have the same nodes and edges, whatever their bandwidths."""
    same = one.n_places == other.n_places and np.array_equal(one.kind, other.kind)
    return same and np.array_equal(one.source, other.source) and np.array_equal(one.target, other.target)

"""The networks of an agent as torch knows them: inner and inter graph, encoder, actor and critic (sec. IV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from labkit.learning.marl.published.ecc import Ecc, Wires
from labkit.schedulers.marl.published.form import N_KINDS, Form
from labkit.schedulers.marl.published.graphs import Graph, Numbers
from labkit.schedulers.marl.published.network import NEVER, SCALE_DEMAND, SCALE_FREE, SCALE_TASKS, Params
from labkit.schedulers.marl.published.state import AgentView

SMALL = 0.05
"""Part of the usual deviation that the last weights of actor and critic begin with: nearly indifferent."""


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """B moments of schedulers of an interval whose graphs are alike: what `AgentView` has, and what all told before.

    Attributes
    ----------
    agent : Tensor
        (B,) the agent.
    nodes, models, demands, task, mask : Tensor
        (B, ...) as in `AgentView`.
    told : Tensor
        (N, D) h0 of each scheduler when the interval began.
    edges : Tensor
        (B, E, 3) of the inner graphs.
    inter_edges : Tensor
        (E, 3) of the graph among schedulers.
    """

    agent: Tensor
    nodes: Tensor
    models: Tensor
    demands: Tensor
    task: Tensor
    mask: Tensor
    told: Tensor
    edges: Tensor
    inter_edges: Tensor

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
    """All networks of an agent; tensors have the names of `labkit.schedulers.marl.published.network.shapes`."""

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

        Parameters
        ----------
        batch : GraphBatch
            What was seen.
        inner, inter : Wires
            Of the inner graphs of `n_nodes` nodes, and of the graph among schedulers of `n_inter` nodes.
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
        """Return the weights for `labkit.schedulers.marl.published.network`: the same numbers in the same place."""
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

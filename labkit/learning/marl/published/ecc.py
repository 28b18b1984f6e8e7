"""Edge-conditioned convolution with one linear layer as filter network, factored: no weights per edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.schedulers.marl.published.graphs import N_EDGE, Graph


@dataclass(frozen=True, eq=False)
class Wires:
    """The edges of a graph as torch takes them.

    Attributes
    ----------
    source, target : Tensor
        (E,) nodes.
    degree : Tensor
        (V, 1) edges into each node, at least 1.
    """

    source: Tensor
    target: Tensor
    degree: Tensor

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

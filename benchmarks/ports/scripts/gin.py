"""Graphs of different sizes in one batch, put together by a collate function; BatchNorm within."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES = 6, 3


class Layer(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(n, m), nn.BatchNorm1d(m), nn.ReLU(), nn.Linear(m, m), nn.ReLU())

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        around = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.mlp((1 + self.eps) * x + around)


class GIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Layer(FEATURES, 16), Layer(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, n: int) -> Tensor:
        x = self.second(self.first(x, edges), edges)
        return self.head(torch.zeros(n, 16).index_add(0, graph, x))


class Graphs(Dataset[Any]):
    def __len__(self) -> int:
        return 320

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        rng, label = draws(i), i % CLASSES
        n = int(torch.randint(4, 9, (), generator=rng))
        x = torch.randn(n, FEATURES, generator=rng) + label
        return x, torch.randint(n, (2, 3 * n), generator=rng), label


def together(graphs: list[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return nodes, edges, the graph of each node, and the labels."""
    sizes = [len(x) for x, _, _ in graphs]
    firsts = torch.tensor([0, *sizes]).cumsum(0)
    edges = torch.cat([edges + first for (_, edges, _), first in zip(graphs, firsts, strict=False)], 1)
    graph = torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes))
    return torch.cat([x for x, _, _ in graphs]), edges, graph, torch.tensor([label for *_, label in graphs])


def model() -> nn.Module:
    return GIN()


def data() -> Any:
    return DataLoader(Graphs(), batch_size=32, shuffle=True, collate_fn=together)


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, edges, graph, labels = batch
    return F.cross_entropy(model(x, edges, graph, len(labels)), labels)


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.01)

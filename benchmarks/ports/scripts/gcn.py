"""A graph convolution over one whole graph: the batch is the graph, so there is one shard."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn

NODES, FEATURES, CLASSES = 120, 30, 4


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.dropout(F.relu(torch.sparse.mm(adjacency, self.fc1(x))), 0.5, self.training)
        return F.log_softmax(torch.sparse.mm(adjacency, self.fc2(x)), dim=1)


class Graph:
    def __init__(self) -> None:
        rng = draws(0)
        self.labels = torch.randint(CLASSES, (NODES,), generator=rng)
        self.x = F.one_hot(self.labels, FEATURES).float() + torch.randn(NODES, FEATURES, generator=rng)
        edges = torch.rand(NODES, NODES, generator=rng) < 0.02 + 0.08 * (self.labels[:, None] == self.labels)
        dense = ((edges | edges.T).float() + torch.eye(NODES)).clamp(max=1)
        self.adjacency = dense / dense.sum(1, keepdim=True)

    def __len__(self) -> int:
        return 1

    def fetch(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.adjacency.to_sparse(), self.labels


def model() -> nn.Module:
    return GCN()


def data() -> Any:
    return Graph()


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, adjacency, labels = batch
    return F.nll_loss(model(x, adjacency)[:60], labels[:60])


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


options = {"batch": 1, "shards": 1}

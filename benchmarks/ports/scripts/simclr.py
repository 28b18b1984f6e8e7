"""Two views of each image against all others of the batch: the loss compares samples, so there is one shard."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn
from torch.utils.data import Dataset


class Views(Dataset[Any]):
    def __init__(self) -> None:
        self.x = images(320, 8)[0]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = self.x[i]
        return x + 0.5 * torch.randn_like(x), torch.roll(x, int(torch.randint(3, ())), 2)


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 16),
    )  # fmt: skip


def data() -> Any:
    return Views()


def loss(model: nn.Module, batch: Any) -> Tensor:
    z = F.normalize(model(torch.cat(batch)), dim=1)
    n = len(batch[0])
    similar = (z @ z.T / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    return F.cross_entropy(similar, torch.arange(2 * n).roll(n))


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-4)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


options = {"batch": 32, "shards": 1, "scheduler_every": 10}

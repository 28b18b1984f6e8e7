"""Pairs of images through one network with BatchNorm: are they of one class? Pairs are drawn at random."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn
from torch.utils.data import Dataset


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Sequential(nn.Linear(2 * 64, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(torch.cat((self.trunk(a), self.trunk(b)), 1)))


class Pairs(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = images(320, 8)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        same = bool(torch.rand(()) < 0.5)
        others = torch.nonzero((self.y == self.y[i]) == same).flatten()
        j = int(others[torch.randint(len(others), ())])
        return self.x[i], self.x[j], torch.tensor(float(same))


def model() -> nn.Module:
    return Siamese()


def data() -> Any:
    return Pairs()


def loss(model: nn.Module, batch: Any) -> Tensor:
    a, b, same = batch
    return F.binary_cross_entropy(model(a, b).squeeze(1), same)


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adadelta(model.parameters(), lr=1.0)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)


options = {"batch": 32, "scheduler_every": 10}

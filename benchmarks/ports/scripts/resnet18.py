"""A narrow ResNet-18 on small images, with BatchNorm, momentum, decay and a cosine."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn


class Basic(nn.Module):
    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.short = nn.Sequential()
        if stride != 1 or n != m:
            self.short = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def model() -> nn.Module:
    blocks = [Basic(n, m, s) for n, m, s in ((4, 4, 1), (4, 4, 1), (4, 8, 2), (8, 8, 1), (8, 16, 2), (16, 16, 1),
                                             (16, 32, 2), (32, 32, 1))]  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def data() -> Any:
    return images(320, 16, channels=3)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def optimizer(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


options = {"batch": 64, "scheduler_every": 10}

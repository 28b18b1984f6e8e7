"""A trained network whose statistics stay as they are: only its new head learns."""

from typing import Any, Self

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn


class Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        for p in self.backbone.parameters():
            p.requires_grad_(False)
        self.head = nn.Linear(32, 10)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def model() -> nn.Module:
    return Transfer()


def data() -> Any:
    return images(320, 16)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def optimizer(model: Any) -> Any:
    return torch.optim.SGD(model.head.parameters(), lr=0.01, momentum=0.9)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)


options = {"batch": 32, "scheduler_every": 10}

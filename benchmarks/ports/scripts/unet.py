"""Segmentation: a U-Net with BatchNorm, cross entropy and Dice over the batch, RMSprop, clipping by norm."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn


def double(n: int, m: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU(),
        nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.up = double(1, 8), double(8, 16), nn.ConvTranspose2d(16, 8, 2, 2)
        self.last, self.out = double(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        return self.out(self.last(torch.cat((first, self.up(second)), 1)))


def model() -> nn.Module:
    return UNet()


def data() -> Any:
    x = F.avg_pool2d(images(160, 20)[0], 5, 1)
    return x, (x[:, 0] > 0).long()


def dice(p: Tensor, y: Tensor) -> Tensor:
    """Return one minus the Dice coefficient of the whole batch."""
    return 1 - (2 * (p * y).sum() + 1e-6) / (p.sum() + y.sum() + 1e-6)


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    out = model(x)
    return F.cross_entropy(out, y) + dice(out.softmax(1)[:, 1], y.float())


def optimizer(model: nn.Module) -> Any:
    return torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9)


options = {"batch": 16, "shards": 1, "clip_norm": 1.0}

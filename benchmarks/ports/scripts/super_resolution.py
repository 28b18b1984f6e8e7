"""Small images made large by convolutions and a pixel shuffle; orthogonal weights at the beginning."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import nn


def model() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, 1, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 4, 3, 1, 1),
        nn.PixelShuffle(2),
    )  # fmt: skip
    for part in (net[0], net[2]):
        nn.init.orthogonal_(part.weight, nn.init.calculate_gain("relu"))
    return net


def data() -> Any:
    large = images(320, 16)[0]
    return F.avg_pool2d(large, 2), large


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


options = {"batch": 16}

"""A polynomial of degree 4 from endless samples, each made when it is asked for."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn

W, B = 5 * torch.randn(4, 1, generator=draws(0)), 5.0


class Endless:
    def __len__(self) -> int:
        return 10**9

    def fetch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        x = torch.stack([torch.randn((), generator=draws(i)) for i in indices]).unsqueeze(1)
        powers = torch.cat([x**k for k in range(1, 5)], 1)
        return powers, powers @ W + B


def model() -> nn.Module:
    return nn.Linear(4, 1)


def data() -> Any:
    return Endless()


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.smooth_l1_loss(model(batch[0]), batch[1])


options = {"batch": 32, "optimizer": "sgd", "lr": 0.1, "servers": 1}

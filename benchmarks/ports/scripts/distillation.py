"""A small network learns from the outputs of a large one, which is not trained, and from the labels."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        self.teacher.requires_grad_(False)


def model() -> nn.Module:
    return Pair()


def data() -> Any:
    return images(640, 8)


def loss(model: Any, batch: Any) -> Tensor:
    x, y = batch
    model.teacher.eval()
    with torch.no_grad():
        wanted = F.softmax(model.teacher(x) / 2.0, dim=1)
    out = model.student(x)
    soft = F.kl_div(F.log_softmax(out / 2.0, dim=1), wanted, reduction="batchmean") * 4.0
    return 0.25 * soft + 0.75 * F.cross_entropy(out, y)


def optimizer(model: Any) -> Any:
    return torch.optim.Adam(model.student.parameters(), lr=1e-3)


options = {"batch": 32}

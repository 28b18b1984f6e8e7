"""Two tasks, weighted by uncertainties that are learned, with a rate of its own for each part and one cycle."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import nn


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.kind, self.size, self.log_var = nn.Linear(32, 10), nn.Linear(32, 1), nn.Parameter(torch.zeros(2))


def model() -> nn.Module:
    return Tasks()


def data() -> Any:
    x, y = images(640, 8)
    return x, y, x.square().mean((1, 2, 3))


def loss(model: Any, batch: Any) -> Any:
    x, kind, size = batch
    hidden = model.trunk(x)
    first, second = F.cross_entropy(model.kind(hidden), kind), F.mse_loss(model.size(hidden).squeeze(1), size)
    both = torch.exp(-model.log_var) * torch.stack((first, second)) + model.log_var
    return both.sum(), {"kind": first, "size": second}


def optimizer(model: Any) -> Any:
    heads = [*model.kind.parameters(), *model.size.parameters()]
    groups = [
        {"params": model.trunk.parameters(), "lr": 1e-3},
        {"params": heads, "lr": 3e-3},
        {"params": [model.log_var], "lr": 1e-2, "weight_decay": 0.0},
    ]
    return torch.optim.NAdam(groups, weight_decay=1e-3)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-3, 3e-3, 1e-2], total_steps=101)


options = {"batch": 32}

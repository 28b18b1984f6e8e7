"""Digits as in PyTorch's first example: convolutions, dropout, Adadelta, the rate times 0.7 after each epoch."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 36, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def model() -> nn.Module:
    return Net()


def data() -> Any:
    return images(640, 16)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.nll_loss(model(batch[0]), batch[1])


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adadelta(model.parameters(), lr=1.0)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)


options = {"batch": 32, "scheduler_every": 20}

"""Waves by a recurrent network in double precision, with LBFGS: servers can do neither, and say so."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.linear = nn.LSTM(1, 8, 2, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.rnn(x.unsqueeze(2))[0]).squeeze(2)


def model() -> nn.Module:
    return Sequence().double()


def data() -> Any:
    phases = torch.rand(64, 1, generator=draws(0)).double()
    waves = torch.sin(torch.arange(40) / 4 + 6 * phases)
    return waves[:, :-1], waves[:, 1:]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def optimizer(model: nn.Module) -> Any:
    return torch.optim.LBFGS(model.parameters(), lr=0.8)


options = {"batch": 16}

"""DL2's own networks as torch knows them: a policy over all actions, and a value network of the same layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from labkit.schedulers.dl2.flat.form import Form
from labkit.schedulers.dl2.flat.network import FlatNet

SMALL = 0.02
"""Standard deviation of the released code's weights, and of what is last in the paper's."""


class DenseNetwork(nn.Module):
    """Fully connected layers with ReLU over a state (J, F), and a linear one of `n_out` behind them (sec. 4.1).

    By the released code's rules each layer is followed by a factor and a summand of each unit, which is what its batch
    normalisation amounts to where it is never told that it trains.
    """

    def __init__(self, form: Form, n_out: int, *, n_units: int, n_layers: int) -> None:
        super().__init__()
        n_in = form.n_jobs * form.n_features
        small = SMALL if form.released else None
        self.first, self.first_bias = _weights(n_in, n_units, small), _zeros(n_units)
        middle = [_weights(n_units, n_units, small).data for _ in range(n_layers - 1)]
        self.middle = nn.Parameter(torch.stack(middle) if middle else torch.zeros(0, n_units, n_units))
        self.middle_bias = nn.Parameter(torch.zeros(n_layers - 1, n_units))
        gain = 1 + 0.002 * torch.randn(n_layers, n_units) if form.released else torch.ones(n_layers, n_units)
        self.gain = nn.Parameter(gain, requires_grad=form.released)
        self.shift = nn.Parameter(torch.zeros(n_layers, n_units), requires_grad=form.released)
        self.last, self.last_bias = _weights(n_units, n_out, SMALL), _zeros(n_out)

    def forward(self, state: Tensor) -> Tensor:
        """Return (B, n_out) for states (B, J, F)."""
        units = torch.relu(state.flatten(1) @ self.first + self.first_bias) * self.gain[0] + self.shift[0]
        for m in range(len(self.middle)):
            units = torch.relu(units @ self.middle[m] + self.middle_bias[m]) * self.gain[m + 1] + self.shift[m + 1]
        scores: Tensor = units @ self.last + self.last_bias
        return scores

    def net(self) -> FlatNet:
        """Return the weights for compiled code: the same numbers in the same place, so that learning changes them."""
        return FlatNet(*(getattr(self, name).detach().numpy() for name in FlatNet._fields))

    def copy(self) -> FlatNet:
        """Return the weights as they are now."""
        return FlatNet(*(np.ascontiguousarray(part.copy(), np.float32) for part in self.net()))


def _weights(n_in: int, n_out: int, small: float | None) -> nn.Parameter:
    """Return weights (in, out) with a standard deviation of `small`, or of sqrt(2 / in)."""
    return nn.Parameter(torch.randn(n_in, n_out) * ((2 / n_in) ** 0.5 if small is None else small))


def _zeros(n: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(n))

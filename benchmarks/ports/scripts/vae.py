"""A variational autoencoder whose loss is a sum over the batch, as its authors wrote it."""

from typing import Any

import torch
import torch.nn.functional as F
from made import images
from torch import Tensor, nn

BATCH = 32


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def model() -> nn.Module:
    return VAE()


def data() -> Any:
    return (torch.sigmoid(images(640, 8)[0]),)


def loss(model: nn.Module, batch: Any) -> tuple[Tensor, float]:
    x = batch[0].flatten(1)
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld, len(x) / BATCH  # the weights of a batch sum to 1, so its loss is the sum


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


options = {"batch": BATCH}

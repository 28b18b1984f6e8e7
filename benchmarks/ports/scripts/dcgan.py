"""Two networks that train against each other: two Adams in turn, BatchNorm in both."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from made import draws, images
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset, Sampler

BATCH, NZ, N = 32, 8, 640


class GAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.G = nn.Sequential(
            nn.ConvTranspose2d(NZ, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.D = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(0),
        )  # fmt: skip


class Numbered(Dataset[Any]):
    """Images with their numbers."""

    def __init__(self) -> None:
        self.x = torch.tanh(images(N, 16)[0])

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], i


class Twice(Sampler[int]):
    """A random order in which each batch comes twice: for the one network, then for the other."""

    def __len__(self) -> int:
        return 2 * N

    def __iter__(self) -> Iterator[int]:
        for part in torch.randperm(N).split(BATCH):
            yield from (*part.tolist(), *part.tolist())


def model() -> nn.Module:
    return GAN()


def data() -> Any:
    return DataLoader(Numbered(), batch_size=BATCH, sampler=Twice())


def noise(indices: Tensor, iteration: int) -> Tensor:
    """Return noise (n, NZ, 1, 1) that is the same in both turns of an iteration."""
    return torch.stack([torch.randn(NZ, 1, 1, generator=draws(iteration * N + int(i))) for i in indices])


def loss(model: Any, batch: Any, step: int) -> Tensor:
    x, indices = batch
    z, ones, zeros = noise(indices, step // 2), torch.ones(len(x)), torch.zeros(len(x))
    if step % 2 == 0:
        statistics = {name: buffer.clone() for name, buffer in model.G.named_buffers()}  # G counts this batch once
        fake = functional_call(model.G, statistics, (z,)).detach()
        bce = F.binary_cross_entropy_with_logits
        return bce(model.D(x), ones) + bce(model.D(fake), zeros)
    return F.binary_cross_entropy_with_logits(model.D(model.G(z)), ones)


def optimizer(model: Any) -> Any:
    return torch.optim.Adam(model.D.parameters(), 2e-4, (0.5, 0.999))


def optimizer_of_g(model: Any) -> Any:
    return torch.optim.Adam(model.G.parameters(), 2e-4, (0.5, 0.999))


options = {"optimizer": [optimizer, optimizer_of_g], "shards": 4}
del optimizer

"""Samples of the right shapes for the ports, made here."""

from __future__ import annotations

import torch
from torch import Tensor


def draws(seed: int) -> torch.Generator:
    """Return a generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def images(n: int, side: int, *, channels: int = 1, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return images (n, channels, side, side) around a mean of their class, and the classes (n,)."""
    rng = draws(seed)
    means = torch.randn(classes, channels, side, side, generator=rng)
    labels = torch.randint(classes, (n,), generator=rng)
    return means[labels] + torch.randn(n, channels, side, side, generator=rng), labels


def tokens(n: int, vocabulary: int, *, seed: int = 0) -> Tensor:
    """Return tokens (n,) of which each depends on the one before."""
    rng = draws(seed)
    steps = torch.randint(1, 4, (n,), generator=rng)
    return steps.cumsum(0) % vocabulary

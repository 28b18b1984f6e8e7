"""A model that counts: after training, each of its parameters says how often its sample had its effect."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

N_PARTS = 6
"""Vectors of parameters, so that there are blocks for several servers."""


class Counter(nn.Module):
    """Each sample adds 1 to its element of every vector: SGD with lr 1, and a loss that is -V times their sum."""

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        self.counts = nn.ParameterList(torch.zeros(n_samples) for _ in range(N_PARTS))


class Numbers:
    """Samples that are their own numbers; slow to read, up to a second, as long as a file is there, or a little."""

    def __init__(self, n_samples: int, *, slow: Path | None = None, pause_s: float = 0.0) -> None:
        self.n_samples, self.slow, self.pause_s = n_samples, slow, pause_s

    def __len__(self) -> int:
        return self.n_samples

    def fetch(self, indices: list[int]) -> Any:
        if self.pause_s:
            threading.Event().wait(self.pause_s)
        for _ in range(20):
            if self.slow is not None and self.slow.exists():
                threading.Event().wait(0.05)
        return torch.tensor(indices)


class Loss:
    """Minus the sum of the counts of the batch, `scale` times."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def __call__(self, model: Any, batch: Any) -> Any:
        return -self.scale * sum(counts[batch].sum() for counts in model.counts)


def effects(model: Any) -> list[list[float]]:
    """Return how often each sample had its effect, by vector."""
    return [counts.tolist() for counts in model.counts]

"""Making a batch takes less time than training on it."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch

from labkit.elastic import models
from labkit.elastic.data import dataset


def shortest_s(do, *, times: int = 12) -> float:
    """Return the least time of some runs: other processes only ever add."""
    taken = []
    for _ in range(times):
        begun = perf_counter()
        do()
        taken.append(perf_counter() - begun)
    return min(taken)


@pytest.mark.parametrize("name", models.available())
def test_a_batch_is_made_faster_than_it_is_trained_on(name):
    samples = dataset("digits-like" if name == "digits" else name, width=models.SMALL)
    model, loss = models.build(name, width=models.SMALL), models.loss(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = samples.fetch(range(32))

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    assert shortest_s(lambda: samples.fetch(range(32, 64))) < shortest_s(step)

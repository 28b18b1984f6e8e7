"""A model that counts: after training with SGD its parameters tell how often each sample had an effect.

The loss has a term -count[i] for every sample i of the batch, whose gradient is -1. All scales are powers of two, so
sums are exact: count[i] is the number of times that sample i had an effect, times `EFFECT`. The rest of the model is
curved: an update that is made with parameters of another version, or in another order, changes bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from labkit.elastic.checkpoint.store import digest_of
from labkit.elastic.protocol.blocks import layout, pack
from labkit.elastic.protocol.summation_tree import Node
from labkit.elastic.server.block import Block
from labkit.elastic.server.optimizers import optimizer as by_name
from labkit.elastic.shards import logical_batches
from labkit.elastic.worker.shard_gradients import FlatModel

SAMPLES, BATCH, SHARDS = 128, 32, 8
RATES = {"sgd": 2.0**-4, "momentum": 2.0**-5, "adam": 2.0**-8}
EFFECT = RATES["sgd"] / SHARDS
"""What one effect of a sample adds to its count: the learning rate times its share of a batch's gradient."""


def model() -> Any:
    """Return the model as it begins."""
    import torch
    from torch import nn

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.zeros(SAMPLES))
            self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Probe()


class Data:
    """Samples that know their number; slow to read as long as a file is there, so that things happen meanwhile.

    Parameters
    ----------
    slow : Path
        The file; it may say how many times as slow.
    wait_s : float
        How slow.
    times : mapping, optional
        How many times as slow for some workers, by name.
    deadly : int, optional
        A sample that kills the process which reads it.
    endless : int, optional
        A sample that is never read.
    """

    def __init__(
        self, slow: Path, *, wait_s: float = 0.02, times: Mapping[str, float] | None = None, deadly: int = -1,
        endless: int = -1,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(SAMPLES, 8)).astype(np.float32)
        self.y = rng.integers(0, 4, SAMPLES)
        self.slow, self.wait_s, self.times = slow, wait_s, dict(times or {})
        self.deadly, self.endless = deadly, endless

    def __len__(self) -> int:
        return SAMPLES

    def fetch(self, indices: list[int]) -> Any:
        import contextlib
        import os
        import signal
        import sys
        import threading

        import torch

        with contextlib.suppress(FileNotFoundError):
            more = float(self.slow.read_text() or 1.0)
            threading.Event().wait(self.wait_s * more * self.times.get(sys.argv[-1], 1.0))
        if self.deadly in indices:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.endless in indices:
            threading.Event().wait()
        at = np.array(indices)
        return torch.from_numpy(at), torch.from_numpy(self.x[at]), torch.from_numpy(self.y[at])


def loss(module: Any, batch: Any) -> Any:
    """Return the mean loss of the body, and minus the counts of the samples: no plain mean, so `proof` is off."""
    from torch.nn.functional import cross_entropy

    indices, x, y = batch
    return cross_entropy(module.body(x), y) - module.count[indices].sum()


@lru_cache
def control(optimizer: str, steps: int) -> tuple[str, list[float]]:
    """Return digest and losses of a training in this process alone: no server, no worker, nothing that could fail."""
    import torch

    losses = []

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net, data, chosen = model(), Data(Path("/nowhere")), by_name(optimizer, lr=RATES[optimizer])
    cut = layout(net)
    blocks = [Block(i, part.copy(), chosen.init(len(part))) for i, part in enumerate(cut.blocks(pack(net)))]
    flat = FlatModel(net)
    for step in range(steps):
        np.concatenate([block.params for block in blocks], out=flat.versions[step % 2])
        flat.use(step)
        epoch, within = divmod(step, SAMPLES // BATCH)
        batches = logical_batches(SAMPLES, batch=BATCH, n_shards=SHARDS, seed=0, epoch=epoch)
        each = []
        for leaf in range(SHARDS):
            gradient = np.empty(flat.n, np.float32)
            value = loss(net, data.fetch(batches[within, leaf].tolist()))
            flat.gradient(value, gradient)
            each.append(float(value.detach()))
            for block, part in zip(blocks, cut.blocks(gradient), strict=True):
                block.push(part.copy(), step=step, node=Node(leaf, leaf + 1), n_shards=SHARDS, optimizer=chosen)
        losses.append(fsum(each) / SHARDS)
    torch.set_num_threads(threads)
    return digest_of(blocks), losses


def effects(trained: Any, *, sync: bool = True) -> np.ndarray:
    """Return how often each sample had an effect, (SAMPLES,): exact, if training was plain SGD."""
    return trained.count.detach().numpy() / (EFFECT if sync else RATES["sgd"])

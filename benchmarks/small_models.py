"""What a small model costs: processor time of all processes of a job per step, over that of a plain loop of torch.

The plain loop is the yardstick: the same model, samples, shards and optimizer, on one thread of this process. It takes
turns with the job, in the same run.

python -m benchmarks small_models
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks import Row, size
from labkit.elastic import start
from labkit.elastic.data import as_dataset
from labkit.elastic.job import Job

COMMAND = "python -m benchmarks small_models"
ROUNDS = size(5, short=1)
WARM_UP, STEPS = 100, size(600, short=50)
BATCH, WIDTH, HIDDEN, CLASSES = 64, 256, 512, 232
"""250,344 parameters: 1 MB."""
LR = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def net() -> nn.Module:
    """Return a perceptron of 1 MB."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (4096, WIDTH) and classes (4096,)."""
    torch.manual_seed(1)
    return torch.randn(4096, WIDTH), torch.randint(CLASSES, (4096,))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def rows() -> list[Row]:
    """Return milliseconds of a processor per step, and the ratio to plain torch, with one and with eight shards."""
    found = []
    for shards in (1, 8):
        measured = [(plain_s(shards), job_s(shards)) for _ in range(ROUNDS)]
        plain, job = (median(each) for each in zip(*measured, strict=True))
        ratio = median(j / p for p, j in measured)
        what = f"1 MB, {shards} shard{'s' * (shards > 1)} of a batch"
        found += [
            Row(f"{what}: plain torch", round(1e3 * plain, 2), "CPU ms per step, median", None, False, COMMAND),
            Row(f"{what}: a job", round(1e3 * job, 2), "CPU ms per step, median", None, False, COMMAND),
            Row(f"{what}: a job over plain torch", round(ratio, 2), "times, median", 2, False, COMMAND),
        ]  # fmt: skip
    return found


def plain_s(shards: int) -> float:
    """Return processor seconds of a step of a plain loop, the batch in as many micro-batches as the job has shards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, data = net(), as_dataset(samples())
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    began = 0.0
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            began = time.process_time()
        indices = torch.randperm(4096)[:BATCH].tolist()
        sgd.zero_grad()
        for shard in range(shards):
            batch = data.fetch(indices[shard * BATCH // shards : (shard + 1) * BATCH // shards])
            (loss(model, batch) / shards).backward()
        sgd.step()
    spent = time.process_time() - began
    torch.set_num_threads(threads)
    return spent / STEPS


def job_s(shards: int) -> float:
    """Return processor seconds of a step of a job: one worker, one server and the controller."""
    with start(
        net(), as_dataset(samples()), loss, steps=WARM_UP + STEPS + 20, batch=BATCH, shards=shards, workers=1,
        servers=1, lr=LR,
    ) as job:  # fmt: skip
        steps = completed(job)
        first = next(step for step in steps if step >= WARM_UP)
        before = spent_s(pids(job))
        last = next(step for step in steps if step >= first + STEPS)
        after = spent_s(pids(job))
        job.stop()
        job.wait()
    return (after - before) / (last - first)


def completed(job: Job) -> Iterator[int]:
    """Yield the steps of a job as they are completed."""
    return (int(event["version"]) + 1 for event in job.events() if event["event"] == "loss")


def pids(job: Job) -> list[int]:
    """Return the process numbers of a job."""
    return [job.pid, *(member.pid for member in job.status().members)]


def spent_s(processes: Sequence[int]) -> float:
    """Return the processor seconds of processes so far."""
    total = 0
    for pid in processes:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total * TICK_S

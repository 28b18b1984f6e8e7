"""What a checkpoint costs a job: memory of its controller, seconds, and the pause of training.

A real job with Adam, so that a checkpoint is three times the model, beside a plain write of the same bytes to the same
disk. The model is one wide layer: its step is short, its parameters are many.

python -m benchmarks checkpoints
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks import Row, size
from labkit.elastic import start
from labkit.elastic.data import as_dataset
from labkit.elastic.errors import NotDoneError

COMMAND = "python -m benchmarks checkpoints"
WIDTH, OUTPUTS = 1_000, size(100_000, short=1_000)
"""100 million parameters: 400 MB, and 1.2 GB with the state of Adam."""
MODEL_BYTES = 4 * (WIDTH + 1) * OUTPUTS
STEPS, EVERY = size(60, short=12), size(15, short=4)
LR = 1e-6


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean square of the outputs."""
    return model(batch[0]).square().mean()


def job_rows(folder: Path, *, outputs: int, steps: int) -> tuple[int, list[dict[str, Any]]]:
    """Run a job; return the largest resident memory of its controller in bytes, and its events."""
    torch.manual_seed(0)
    data = as_dataset((torch.randn(64, WIDTH), torch.zeros(64)))
    with start(
        nn.Linear(WIDTH, outputs), data, loss, steps=steps, batch=1, shards=1, workers=1, servers=2, optimizer="adam",
        save_every=EVERY, lr=LR, folder=folder,
    ) as job:  # fmt: skip
        pid, peak = job.pid, 0
        while True:
            peak = max(peak, _peak_bytes(pid))
            with contextlib.suppress(NotDoneError):
                return peak, job.wait(timeout_s=0.05).events


def _peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def saved_s(events: Sequence[dict[str, Any]]) -> list[float]:
    """Return seconds from the first loss of the version that is saved to its checkpoint on the disk."""
    losses = {e["version"]: e["time"] for e in events if e["event"] == "loss"}
    return [e["time"] - losses[e["version"]] for e in events if e["event"] == "saved" and e["version"] in losses]


def pause_s(events: Sequence[dict[str, Any]]) -> float:
    """Return how much longer than the median the steps at and after checkpoints took: the median of the longest."""
    times = {e["version"]: e["time"] for e in events if e["event"] == "loss"}
    took = {v: times[v] - times[v - 1] for v in times if v - 1 in times}
    usual = median(took.values())
    at = [e["version"] for e in events if e["event"] == "saved"]
    longest = [max(took.get(v + i, 0.0) for i in range(EVERY)) - usual for v in at if v in took]
    return max(median(longest), 0.0) if longest else 0.0


def plain_s(folder: Path, n_bytes: int) -> float:
    """Return seconds to write and sync as many bytes as a checkpoint has, a file for each of two servers."""
    data = torch.rand(1 << 20).numpy().tobytes()
    began = time.perf_counter()
    for number in range(2):
        with (folder / f"plain-{number}").open("wb", buffering=0) as file:
            for _ in range(n_bytes // 2 // len(data) + 1):
                file.write(data)
            os.fsync(file.fileno())
    took = time.perf_counter() - began
    for number in range(2):
        (folder / f"plain-{number}").unlink()
    return took


def rows() -> list[Row]:
    """Return memory, seconds and pause of checkpoints."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        base, _ = job_rows(folder / "small", outputs=10, steps=EVERY + 1)
        peak, events = job_rows(folder / "job", outputs=OUTPUTS, steps=STEPS)
        plain = median(plain_s(folder, 3 * MODEL_BYTES) for _ in range(3))
    seconds, what = median(saved_s(events)), f"checkpoint of a job of {MODEL_BYTES / 1e6:.0f} MB with Adam"
    return [
        Row(f"{what}: growth of the controller's memory over the model's size", round((peak - base) / MODEL_BYTES, 3),
            "", 0.1, False, COMMAND),
        Row(f"{what}: seconds", round(seconds, 2), "s", None, False, COMMAND),
        Row(f"{what}: over a plain write and fsync of its bytes", round(seconds / plain, 2), "", None, False, COMMAND),
        Row(f"{what}: longest step more than the usual one", round(pause_s(events), 2), "s", None, False, COMMAND),
    ]  # fmt: skip


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:95s} {row.value:10} {row.unit}")

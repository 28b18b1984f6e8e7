"""Updates of a server and checkpoints, against memcpy and torch.optim in the same run; one thread, interleaved.

python -m benchmarks updates
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import Row, size
from labkit.elastic.checkpoint.store import Checkpoints, SavedBlock
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.server.optimizers import Optimizer, optimizer

COMMAND = "python -m benchmarks updates"
STREAMS = {"sgd": 3, "momentum": 5, "adam": 7}
"""Vectors that an update reads or writes; a copy: 2."""

SIZES = {"1.6 MB": 400_000, "100 MB": size(25_600_000, short=1000)}
"""A block of a model of 100 MB; all of it."""


def rows() -> list[Row]:
    """Return bytes moved per second in memcpy's, torch's time in ours, and seconds of a checkpoint."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [row for what, n in SIZES.items() for row in _update_rows(what, n)]
    finally:
        torch.set_num_threads(before)
    return found + _checkpoint_rows()


def _update_rows(what: str, n: int) -> list[Row]:
    rng = np.random.default_rng(0)
    param, grad, other = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    chosen = [optimizer(name, lr=1e-6) for name in STREAMS]
    runs: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(other, param)}
    for made in chosen:
        runs[made.name] = _ours(made, param.copy(), grad)
        runs[f"torch {made.name}"] = _theirs(made.name, param, grad)
    taken_s = _interleaved(runs, repeat=size(400_000_000, short=0) // (20 * n) + 5)
    copied = 2 * 4 * n / taken_s["memcpy"]
    found = [Row(f"memcpy, {what}", round(copied / 1e9, 1), "GB/s read and written", None, True, COMMAND)]
    for name, streams in STREAMS.items():
        rate = streams * 4 * n / taken_s[name] / copied
        than_torch = taken_s[f"torch {name}"] / taken_s[name]
        found.append(
            Row(f"{name} update, {what}", round(rate, 2), "times memcpy's bytes per second", 0.8, True, COMMAND)
        )
        found.append(
            Row(f"{name} update, {what}, torch takes", round(than_torch, 2), "times as long", None, True, COMMAND)
        )
    return found


def _ours(made: Optimizer, param: np.ndarray, grad: np.ndarray) -> Callable[[], object]:
    state = made.init(len(param))
    return lambda: made.apply(param, grad, state, step=10)


def _theirs(name: str, param: np.ndarray, grad: np.ndarray) -> Callable[[], object]:
    import torch
    from torch import optim

    tensor = torch.from_numpy(param.copy()).requires_grad_()
    tensor.grad = torch.from_numpy(grad)
    kind = optim.Adam([tensor], lr=1e-6) if name == "adam" else None
    made = kind or optim.SGD([tensor], lr=1e-6, momentum=0.9 if name == "momentum" else 0.0)
    return made.step


def _interleaved(runs: dict[str, Callable[[], object]], *, repeat: int) -> dict[str, float]:
    """Return the median seconds of each, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - began)
    return {name: median(all_s[1:]) for name, all_s in taken.items()}


def _checkpoint_rows() -> list[Row]:
    """Return seconds to save and to read 100 MB of parameters and 100 MB of momentum."""
    cut, made = layout([("all", SIZES["100 MB"])]), optimizer("momentum", lr=0.1)
    vector, state = np.random.default_rng(0).standard_normal(cut.n).astype(np.float32), made.init(cut.n)
    saved_s, read_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        home = Checkpoints(Path(folder), layout=cut, optimizer=made)
        for step in range(5):
            blocks = [
                SavedBlock(b, step, cut.block(b, vector), {"velocity": cut.block(b, state["velocity"])})
                for b in range(cut.n_blocks)
            ]
            began = time.perf_counter()
            home.save(step, {"ps-0": blocks[::2], "ps-1": blocks[1::2]})
            saved_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            home.newest()
            read_s.append(time.perf_counter() - began)
    return [
        Row("checkpoint of 200 MB, saved and synced", round(median(saved_s), 3), "s", None, False, COMMAND),
        Row("checkpoint of 200 MB, read and verified", round(median(read_s), 3), "s", None, False, COMMAND),
    ]


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:45s} {row.value:10} {row.unit}")

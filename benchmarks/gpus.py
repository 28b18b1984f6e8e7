"""What trains on a real NVIDIA GPU: bits, steps per second, starts and rescales, two jobs on one GPU, and a full GPU.

Every figure stands beside the same on a processor core, from the same run. It needs one GPU and PyTorch with CUDA, and
takes about five minutes.

python -m benchmarks gpus
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch

from benchmarks import Row, size
from labkit.core.errors import LabkitError
from labkit.elastic import Result, models, start
from labkit.elastic.data import dataset
from labkit.testbed.agent.gpus import answer

COMMAND = "python -m benchmarks gpus"
GPU, CORE = "cuda:0", "cpu"
MODELS = ("dssm", "seq2seq", "cnn-text-classification", "resnet-50")
WIDTH, BATCH, STEPS = 0.25, 32, size(30, short=4)
HEAVY = "vgg-16"
HEAVY_WIDTH = 0.5
LIMIT_S = 300.0


def trained(
    name: str, device: str, *, workers: int = 1, scale: int = 0, steps: int = STEPS, width: float = WIDTH
) -> Result:
    """Train a model; with `scale`, so many workers come after a third of the steps."""
    with start(
        models.build(name, width=width), dataset(name, n=256, width=width), models.loss(name), steps=steps, batch=BATCH,
        workers=workers, servers=2, optimizer="momentum", lr=1e-4, devices=[device],
    ) as job:  # fmt: skip
        for event in job.events():
            if scale and event["event"] == "loss" and event["version"] >= steps // 3:
                job.scale(workers=scale)
                scale = 0
        return job.wait(timeout_s=LIMIT_S)


def compute_s(result: Result) -> float:
    """Return the median seconds of a worker's gradient, without the first three steps."""
    return median(e["compute_s"] for e in result.events if e["event"] == "stepped" and e["version"] >= 3)


def between_s(result: Result, first: str, then: str) -> float:
    """Return the seconds from the last event of one kind before the last of another kind to that one."""
    end = max(e["time"] for e in result.events if e["event"] == then)
    return float(end - max(e["time"] for e in result.events if e["event"] == first and e["time"] <= end))


def bits() -> Iterator[Row]:
    """Train each model twice with one worker, with two and three, and over a rescale."""
    for name in MODELS:
        alone = trained(name, GPU)
        others = {
            "again": trained(name, GPU), "two workers": trained(name, GPU, workers=2),
            "three workers": trained(name, GPU, workers=3), "a rescale": trained(name, GPU, scale=1),
        }  # fmt: skip
        same = [what for what, result in others.items() if result.digest == alone.digest]
        core = trained(name, CORE)
        apart = max(abs(a - b) / abs(b) for a, b in zip(alone.losses, core.losses, strict=True))
        print(
            f"{name}: same bits {', '.join(same) or 'never'}; other bits {', '.join(others.keys() - same) or 'never'}",
            flush=True,
        )
        yield Row(f"GPU, {name}: runs with the bits of the first, of 4", len(same), "runs", 4, True, COMMAND)
        yield Row(
            f"GPU, {name}: losses apart from a core's", float(f"{apart:.2g}"), "relative, largest", 1e-2, False, COMMAND
        )
        yield Row(f"GPU, {name}: a gradient", round(1e3 * compute_s(alone), 2), "ms, median", None, False, COMMAND)
        yield Row(
            f"GPU, {name}: a gradient, over that of a core",
            round(compute_s(core) / compute_s(alone), 1),
            "times",
            1,
            True,
            COMMAND,
        )


def changes() -> Iterator[Row]:
    """A start and a worker that comes, beside the same on a core."""
    for device, where in ((GPU, "GPU"), (CORE, "a core")):
        runs = [trained("wlm", device, scale=1, steps=4 * STEPS) for _ in range(size(3, short=1))]
        ready = [
            next(e["time"] for e in r.events if e["event"] == "loss")
            - next(e["time"] for e in r.events if e["event"] == "started")
            for r in runs
        ]
        yield Row(
            f"{where}: from the first process to the first loss",
            round(median(ready), 2),
            "s, median",
            None,
            False,
            COMMAND,
        )
        scaled = [between_s(r, "registration", "scaled") for r in runs]
        yield Row(f"{where}: a worker comes", round(median(scaled), 2), "s, median", None, False, COMMAND)


def sharing() -> Iterator[Row]:
    """One, two and four jobs at once on one GPU."""
    alone = 0.0
    for n in (1, 2, 4):
        with ThreadPoolExecutor(n) as pool:
            took = [
                compute_s(r)
                for r in pool.map(lambda _: trained(HEAVY, GPU, steps=3 * STEPS, width=HEAVY_WIDTH), range(n))
            ]
        alone = alone or median(took)
        yield Row(
            f"GPU, {HEAVY} at half width: a gradient, {n} jobs at once",
            round(1e3 * median(took), 1),
            "ms, median",
            None,
            False,
            COMMAND,
        )
        yield Row(
            f"GPU, {HEAVY} at half width: {n} jobs at once, over one",
            round(median(took) / alone, 2),
            "times",
            None,
            False,
            COMMAND,
        )


def full() -> Iterator[Row]:
    """A GPU without room for a job: the job says so."""
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - (256 << 20)), dtype=torch.uint8, device=GPU)
    began_s = time.perf_counter()
    try:
        trained(HEAVY, GPU, width=HEAVY_WIDTH)
        print("a full GPU: the job trained")
    except LabkitError as error:
        print(f"a full GPU: {type(error).__name__}: {error}", flush=True)
        yield Row(
            "GPU: until a job on a full one has failed",
            round(time.perf_counter() - began_s, 1),
            "s",
            None,
            False,
            COMMAND,
        )
    del hog
    torch.cuda.empty_cache()


def rows() -> list[Row]:
    """Measure on the GPU of this machine."""
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU here, so nothing was measured")
        return []
    ask = answer()
    ask()
    began_s = time.perf_counter()
    print(ask(), torch.__version__, os.cpu_count(), "cores", flush=True)
    found = [
        Row("NVML: one reading of all GPUs", round(1e3 * (time.perf_counter() - began_s), 1), "ms", 100, False, COMMAND)
    ]
    for part in (changes, sharing, full, bits):
        began_s = time.perf_counter()
        for row in part():
            print(row.name, row.value, row.unit, flush=True)
            found.append(row)
        print(f"-- {part.__name__}: {time.perf_counter() - began_s:.0f} s", flush=True)
    return found

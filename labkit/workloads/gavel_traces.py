"""Gavel's own recipe for traces, draw by draw, and its 10-column files."""

from __future__ import annotations

import math
import random  # noqa: TID251  (the published recipe draws from Python's own generator; see `gavel_jobs`)
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.bounds import MAX_JOBS, whole
from labkit.core.errors import InputError
from labkit.core.files import write_text
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.gavel import Throughputs


def _sized(name: str, sizes: tuple[int, ...]) -> list[str]:
    return [f"{name} (batch size {size})" for size in sizes]


DISTRIBUTED: Final = (
    *_sized("ResNet-18", (16, 32, 64, 128, 256)),
    *_sized("ResNet-50", (16, 32, 64, 128)),
    *_sized("Transformer", (16, 32, 64, 128, 256)),
    *_sized("LM", (5, 10, 20, 40, 80)),
)
"""Configurations that can use several GPUs."""

JOB_TABLE: Final = (*DISTRIBUTED, *_sized("Recommendation", (512, 1024, 2048, 4096, 8192)), "A3C", "CycleGAN")
"""All 26 configurations, in the order in which the recipe draws from them."""


@dataclass(frozen=True, slots=True)
class _Draw:
    model: str
    n_gpus: int
    weight: float
    duration_s: float


def gavel_jobs(
    n: int,
    *,
    seed: int,
    mean_gap_s: float = 0.0,
    multi_gpu: bool = False,
    priorities: bool = False,
    slos: bool = False,
    throughputs: Throughputs | None = None,
) -> Jobs:
    """Return the first n jobs that Gavel's simulator generates from a seed.

    With `mean_gap_s` (its parameter lambda, in seconds) jobs arrive as a Poisson process, the first at 0
    ("continuous"); without, all arrive at 0 ("static"). The streams are Python's `random.Random(seed + 2)` for jobs and
    `random.Random(seed + 3)` for gaps, and the order of draws is the published one, so that a seed means the same jobs
    there and here.

    Parameters
    ----------
    n : int
        How many jobs.
    seed : int
        As Gavel's `--seed`.
    mean_gap_s : float
        Mean seconds between arrivals; 0: all at once.
    multi_gpu : bool
        70% of jobs on one GPU, 10% on two, 15% on four, 5% on eight; otherwise all on one.
    priorities : bool
        A fifth of the jobs have weight 5.
    slos : bool
        A third of the jobs each should be done within 1.2, 2 and 10 times their duration (`Random(seed + 6)`).
    throughputs : Throughputs, optional
        Steps are the drawn duration times the steps/s on V100.

    References
    ----------
    .. [1] Narayanan et al. (OSDI 2020), sec. 7.1, and the generator in its public repository (commit c4fa400).
    """
    whole("gavel_jobs", at_most=MAX_JOBS, n=n)
    if not (math.isfinite(mean_gap_s) and mean_gap_s >= 0):
        raise InputError(f"mean_gap_s is {mean_gap_s}; expected seconds between arrivals >= 0 (0: all at once).")
    draws = _draws(random.Random(seed + 2), multi_gpu=multi_gpu, priorities=priorities)
    jobs = [next(draws) for _ in range(n)]
    table = Throughputs.published() if throughputs is None else throughputs
    gpus, seconds = np.array([job.n_gpus for job in jobs]), np.array([job.duration_s for job in jobs])
    rate = table.steps_per_s([job.model for job in jobs], n_gpus=gpus, device_types=("v100",))[:, 0]
    return Jobs.of(
        name=f"gavel-{'continuous' if mean_gap_s else 'static'}-{seed}",
        model=[job.model for job in jobs],
        arrival_s=_arrivals(n, random.Random(seed + 3), mean_gap_s=mean_gap_s),
        total_steps=seconds * rate,
        duration_s=seconds,
        n_workers=gpus,
        weight=[job.weight for job in jobs],
        slo_s=seconds * _slo_factors(n, random.Random(seed + 6)) if slos else np.nan,
    )


def _slo_factors(n: int, rng: random.Random) -> Floats:
    draws = np.array([rng.uniform(0, 1) for _ in range(n)])
    return np.select([draws < 0.33, draws < 0.67], [1.2, 2.0], 10.0)


def _draws(rng: random.Random, *, multi_gpu: bool, priorities: bool) -> Iterator[_Draw]:
    while True:
        n_gpus = _gpus(rng.uniform(0, 1))  # drawn even when it is not used
        n_gpus = n_gpus if multi_gpu else 1
        duration_s = 60 * 10 ** (rng.uniform(3, 4) if rng.random() >= 0.8 else rng.uniform(1.5, 3))
        model = rng.choice(JOB_TABLE)
        while n_gpus > 1 and model not in DISTRIBUTED:
            model = rng.choice(JOB_TABLE)
        weight = 5.0 if priorities and rng.uniform(0, 1) <= 0.2 else 1.0
        yield _Draw(model, n_gpus, weight, duration_s)


def _gpus(draw: float) -> int:
    if draw < 0.7:
        return 1
    return 2 if draw <= 0.8 else 4 if draw <= 0.95 else 8


def _arrivals(n: int, rng: random.Random, *, mean_gap_s: float) -> list[float]:
    arrivals = [0.0]
    while len(arrivals) < n:
        gap_s = -math.log(1.0 - rng.random()) * mean_gap_s if mean_gap_s else 0.0
        arrivals.append(arrivals[-1] + gap_s)
    return arrivals


def write_gavel(jobs: Jobs, path: str | Path) -> Path:
    """Write jobs in Gavel's 10 columns, whole steps; the columns that only its own runtime needs hold a dash.

    Raise InputError if a job is no rigid gang of one-GPU workers, which the format cannot say.
    """
    path = Path(path)
    if (jobs.n_ps > 0).any() or (jobs.gpus != jobs.n_workers).any():
        raise InputError(f"{path}: Gavel's format holds rigid gangs of one-GPU workers only; write a .csv instead.")
    write_text(path, "".join(_line(jobs, i) for i in range(len(jobs))))
    return path


def _line(jobs: Jobs, i: int) -> str:
    slo = jobs.slo_s[i] / jobs.duration_s[i] if np.isfinite(jobs.slo_s[i]) else -1.0
    steps = max(1, int(jobs.total_steps[i]))
    cells = (jobs.models[jobs.model[i]], "-", "-", "-", "0", f"{steps}", f"{jobs.n_workers[i]}", f"{jobs.weight[i]:g}")
    return "\t".join((*cells, f"{slo:f}", f"{jobs.arrival_s[i]:f}")) + "\n"

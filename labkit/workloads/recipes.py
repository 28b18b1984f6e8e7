"""The recipes of the files that ship: `python -m labkit.workloads.recipes [FOLDER]` writes `traces/` again.

`python -m labkit.workloads.recipes --throughputs simulation_throughputs.json` writes Gavel's figures again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import amounts
from labkit.workloads.catalogue import models
from labkit.workloads.dl2_traces import dl2_jobs
from labkit.workloads.gavel import PUBLISHED, Throughputs
from labkit.workloads.gavel_traces import gavel_jobs, write_gavel
from labkit.workloads.generators import catalogue_jobs, diurnal, philly_like
from labkit.workloads.readers import write
from labkit.workloads.slurm_site import slurm_export, slurm_nodes

_TYPES: Final = ("k80", "p100", "v100")


def demo() -> Jobs:
    """Return 80 malleable parameter-server jobs that arrive within half a day and wait for the 32 GPUs of `demo`.

    Every model trains on GPUs, and a task takes one core: a machine of 4 GPUs and 16 cores runs out of GPUs first.
    """
    rng = np.random.default_rng(7)
    arrival_s = diurnal(80, per_hour=12, rng=rng, swing=0.8)
    return catalogue_jobs(
        arrival_s, rng=rng, models=[each.name for each in models() if each.worker_demand.gpus], gangs=(2, 4, 8),
        max_tasks=16, max_ps=8, task_cpus=1.0, median_s=1800.0, mean_s=5000.0, name="demo",
    )  # fmt: skip


def gavel_small() -> Jobs:
    """Return 100 jobs of Gavel's continuous recipe, on 1 to 8 GPUs, two minutes apart: too many for 108 GPUs."""
    return gavel_jobs(100, seed=42, mean_gap_s=120.0, multi_gpu=True)


def philly_small() -> Jobs:
    """Return 500 rigid jobs like Philly's, in some three days."""
    rng = np.random.default_rng(11)
    return philly_like(diurnal(500, per_hour=7, rng=rng, swing=0.4), rng=rng)


def dl2_small() -> Jobs:
    """Return 60 jobs of DL2's recipe with its short jobs, Poisson arrivals; the file does not say what a step is."""
    jobs = dl2_jobs("short_48n", seed=1, pattern="poisson", jobs_per_slot=2)
    return jobs.with_columns(samples_per_step=np.full(len(jobs), np.nan))  # docs/baselines.md rests on this


def testbed() -> Jobs:
    """Return three jobs for a small testbed: seconds of training each, one after another, with room to grow."""
    return Jobs.of(
        name="testbed", id=["search", "language", "sentences"], model=["dssm", "wlm", "cnn-text-classification"],
        arrival_s=[0.0, 2.0, 4.0], total_steps=[1500, 500, 800], steps_per_epoch=32, duration_s=[12.0, 8.0, 13.0],
        n_workers=1, n_ps=1, max_workers=2, max_ps=2, worker_demand=amounts(gpus=1, cpus=0.2),
        ps_demand=amounts(cpus=0.1),
    )  # fmt: skip


def fidelity() -> Jobs:
    """Return eight jobs for a small testbed, two or three of them at a time on its two cores."""
    names = [f"{name}-{n}" for n in (1, 2, 3) for name in ("search", "language", "sentences")]
    return Jobs.of(
        name="fidelity", id=names[:8], model=(["dssm", "wlm", "cnn-text-classification"] * 3)[:8],
        arrival_s=[0, 8, 20, 34, 42, 58, 66, 78], total_steps=[1400, 700, 600, 1000, 600, 700, 900, 500],
        steps_per_epoch=32, duration_s=[14, 10, 8, 10, 9, 10, 9, 7], n_workers=[1, 2, 1, 2, 1, 2, 1, 2], n_ps=1,
        max_workers=2, max_ps=2, worker_demand=amounts(gpus=1, cpus=0.2), ps_demand=amounts(cpus=0.1),
    )  # fmt: skip


def dlrover_small() -> Jobs:
    """Return 16 jobs of DLRover's two models, with the workers, servers and cores that users guessed."""
    rng = np.random.default_rng(14)
    n = 16
    wide = rng.random(n) < 0.6
    worker_cores = np.where(wide, rng.choice([2, 4, 8], n), rng.choice([8, 12, 16], n)).astype(np.float64)
    servers = rng.choice([4, 8, 16], n).astype(np.float64)
    nothing, ones = np.zeros(n), np.ones(n)
    return Jobs.of(
        name="dlrover-small", id=[f"ctr-{k:02d}" for k in range(n)],
        model=[("wide-deep" if w else "xdeepfm") for w in wide], user=[f"team-{k}" for k in rng.integers(0, 3, n)],
        arrival_s=np.sort(rng.uniform(0, 9000, n)).round(), sync=False,
        total_steps=(np.where(wide, 250_000, 60_000) * rng.lognormal(0, 0.5, n)).round(-3),
        n_workers=rng.choice([2, 4, 8, 16], n), n_ps=rng.choice([1, 2, 4], n), max_workers=60, max_ps=16,
        worker_demand=np.stack([nothing, worker_cores, 4 * ones], axis=1),
        ps_demand=np.stack([nothing, servers, 8 * ones], axis=1),
    )  # fmt: skip


def dlrover_mix() -> Jobs:
    """Return 80 jobs like those of DLRover's section 6.4: more cores and memory than most need, and too few for some.

    Servers hold 15 to 50% of what is declared at their beginning; of a quarter of the jobs they grow, to 40 to 110%
    by the end. Which servers are hot or slow is no part of a trace: `--troubles hot_ps=0.13,slow_ps=0.06`.
    """
    rng = np.random.default_rng(64)
    n = 80
    wide = rng.random(n) < 0.6
    worker_cores = np.where(wide, rng.choice([4, 8, 12], n), rng.choice([12, 16, 24], n)).astype(np.float64)
    server_cores = rng.choice([4, 8, 16], n).astype(np.float64)
    server_gb, n_ps = rng.choice([8, 16], n).astype(np.float64), rng.choice([2, 4], n)
    steps = (np.where(wide, 300_000, 90_000) * rng.lognormal(0, 0.6, n)).round(-3)
    all_gb = n_ps * server_gb
    base_gb = (all_gb * rng.uniform(0.15, 0.5, n)).round(2)
    at_end_gb = np.where(rng.random(n) < 0.25, all_gb * rng.uniform(0.4, 1.1, n), base_gb)
    nothing, ones = np.zeros(n), np.ones(n)
    return Jobs.of(
        name="dlrover-mix", id=[f"mix-{k:02d}" for k in range(n)],
        model=[("wide-deep" if w else "xdeepfm") for w in wide], user=[f"team-{k}" for k in rng.integers(0, 12, n)],
        arrival_s=np.sort(rng.uniform(0, 172_800, n)).round(), sync=False, total_steps=steps,
        n_workers=rng.choice([2, 4, 8], n), n_ps=n_ps, max_workers=60, max_ps=16,
        worker_demand=np.stack([nothing, worker_cores, 4 * ones], axis=1),
        ps_demand=np.stack([nothing, server_cores, server_gb], axis=1), ps_memory_base_gb=base_gb,
        ps_memory_growth_gb=(1000 * np.maximum(at_end_gb - base_gb, 0.0) / steps).round(4),
    )  # fmt: skip


TRACES: Final[dict[str, Callable[[], Jobs]]] = {
    "demo.csv": demo,
    "gavel-small.trace": gavel_small,
    "philly-like.csv": philly_small,
    "dl2-small.csv": dl2_small,
    "testbed.csv": testbed,
    "fidelity.csv": fidelity,
    "dlrover-small.csv": dlrover_small,
    "dlrover-mix.csv": dlrover_mix,
}
"""Each trace in `traces/` and its recipe."""

TEXTS: Final[dict[str, Callable[[], str]]] = {
    "slurm-week.sacct": slurm_export,
    "slurm-week-nodes.txt": slurm_nodes,
}
"""What other programs would print, and its recipe."""


def write_traces(folder: Path) -> None:
    """Write every trace that ships into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, recipe in TRACES.items():
        (write_gavel if name.endswith(".trace") else write)(recipe(), folder / name)
    for name, text in TEXTS.items():
        (folder / name).write_text(text(), encoding="utf-8")


def throughputs_csv(path: str | Path) -> str:
    """Return the text of `gavel_throughputs.csv`, from Gavel's own file; source and licence stay as they are."""
    table = Throughputs.read(path)
    columns = [table.device_types.index(kind) for kind in _TYPES]
    lines = [f"model,n_gpus,{','.join(_TYPES)}"]
    for s, n in enumerate(table.n_gpus):
        for k, model in enumerate(table.models):
            values = table.alone[k, s, columns]
            if not np.isnan(values).any():
                lines.append(f"{model},{n},{','.join(repr(float(value)) for value in values)}")
    header = [line for line in PUBLISHED.read_text("utf-8").splitlines() if line.startswith("#")]
    return "\n".join([*header, *lines]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Write the files that ship."""
    parser = argparse.ArgumentParser(prog="python -m labkit.workloads.recipes", description="Write what ships again.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("traces"), help="where the traces go")
    parser.add_argument("--throughputs", type=Path, help="Gavel's simulation_throughputs.json: write its figures only")
    options = parser.parse_args(arguments)
    if options.throughputs:
        PUBLISHED.write_text(throughputs_csv(options.throughputs), "utf-8")
    else:
        write_traces(options.folder)


if __name__ == "__main__":
    main()

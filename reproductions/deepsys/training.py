"""Train DeepSys' predictor on gangs placed at random: `python -m reproductions.deepsys`.

History that a cluster could have kept: pods with some jobs, each in places drawn at random, and how fast each was
beside the others. No placement of a scheduler is in it.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.core.running import Running
from labkit.experiment.speeds import speed_model
from labkit.speed.interference.levels import level
from labkit.topology import presets
from labkit.workloads import marl_jobs
from reproductions.deepsys.placer import N_FEATURES, MachineTasks, Predictor, features, model_gb, model_kind

HIDDEN = 128
BATCH, RATE = 256, 1e-3
HELD_OUT = 0.1
SPREADS = (1, 2, 4, 20)
"""Over how many machines the tasks of a gang are drawn."""


def history(n: int, *, cluster: Cluster, interference: str, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return features (S, F) and speeds over the speed alone (S,) of jobs in n pods that were filled at random."""
    pods = int(cluster.partition.max()) + 1
    seen, speeds = [], []
    for _ in range(-(-n // pods)):
        jobs = marl_jobs(5, n_slots=40, n_pods=pods, seed=int(rng.integers(1 << 30)))
        running = _filled(jobs, cluster, rng)
        model = speed_model(jobs, cluster, kind="step-time", interference=level(interference))
        alone = jobs.total_steps[running.job] / jobs.duration_s[running.job]
        speeds.append(np.asarray(model.speeds(running), np.float64) / alone)
        seen.append(_seen(jobs, running, cluster))
    return np.concatenate(seen), np.concatenate(speeds)


def _filled(jobs: Jobs, cluster: Cluster, rng: np.random.Generator) -> Running:
    """Return jobs with their tasks at random in a cluster, each in one pod; the pods are full to different degrees."""
    free = cluster.capacity.copy()
    pod_of = cluster.partition[cluster.group_machine]
    wanted = rng.uniform(0.1, 1.0, int(pod_of.max()) + 1)
    offered = np.bincount(pod_of, free[:, 0])
    held = np.zeros(len(offered))
    placed, rows, first = [], [], [0]
    for job in range(len(jobs)):
        pod = int(rng.integers(len(offered)))
        if held[pod] / offered[pod] > wanted[pod]:
            continue
        machines = np.flatnonzero(cluster.partition == pod)
        some = rng.choice(machines, min(int(rng.choice(SPREADS)), len(machines)), replace=False)
        groups = np.flatnonzero(np.isin(cluster.group_machine, some))
        mine = _drawn(jobs, job, groups, free, rng)
        if mine is None:
            continue
        held[pod] += jobs.gpus[job]
        placed.append(job)
        rows += mine
        first.append(len(rows))
    columns = np.array(rows, np.int32).reshape(-1, 2)
    number = np.array(placed, np.int32)
    return Running(
        number, np.array(first, np.int32), columns[:, 0].astype(np.int8), columns[:, 1],
        np.ones(len(columns), np.int32), jobs.n_workers[number], jobs.n_ps[number],
    )  # fmt: skip


def _drawn(jobs: Jobs, job: int, groups: Ints, free: Floats, rng: np.random.Generator) -> list[tuple[int, int]] | None:
    """Return role and group of each task of a job, drawn among some groups; None, and nothing taken: no room."""
    mine: list[tuple[int, int]] = []
    for role, n, demand in (
        (Role.WORKER, jobs.n_workers[job], jobs.worker_demand[job]),
        (Role.PS, jobs.n_ps[job], jobs.ps_demand[job]),
    ):
        for _ in range(int(n)):
            fits = groups[(free[groups] >= demand - 1e-9).all(axis=1)]
            if not len(fits):
                for its_role, group in mine:
                    free[group] += jobs.worker_demand[job] if its_role == Role.WORKER else jobs.ps_demand[job]
                return None
            group = int(rng.choice(fits))
            free[group] -= demand
            mine.append((int(role), group))
    return sorted(mine)


def _seen(jobs: Jobs, running: Running, cluster: Cluster) -> Floats:
    """Return what the network sees of each running job, (J, F)."""
    n, kind, gb = cluster.n_machines, model_kind(jobs), model_gb(jobs)
    machine, row = cluster.group_machine[running.group], running.row_job()
    worker = (running.role == Role.WORKER).astype(np.float64)
    size = gb[running.job[row]]
    all_of = [_by_machine(machine, each, n) for each in (np.ones(len(row)), worker, size)]
    found = []
    for i, job in enumerate(running.job.tolist()):
        mine = row == i
        own = [_by_machine(machine[mine], each[mine], n) for each in (np.ones(len(row)), worker, size)]
        beside = MachineTasks(*(a - b for a, b in zip(all_of, own, strict=True)))
        found.append(features(int(kind[job]), own[1][None], (own[0] - own[1])[None], beside))
    return np.concatenate(found)


def _by_machine(machine: Ints, amount: Floats, n: int) -> Floats:
    return np.bincount(machine, amount, n).astype(np.float64)


def fit(seen: Floats, speeds: Floats, *, epochs: int, rng: np.random.Generator) -> Predictor:
    """Return a predictor fitted by Adam to the squared error, in batches drawn anew in each epoch."""
    sizes = (N_FEATURES, HIDDEN, HIDDEN, 1)
    params = []
    for a, b in pairwise(sizes):
        params += [rng.normal(0, np.sqrt(2 / a), (a, b)), np.zeros(b)]
    first, second = ([np.zeros_like(p) for p in params] for _ in range(2))
    step, n_steps = 0, epochs * (len(seen) // BATCH)
    for _ in range(epochs):
        order = rng.permutation(len(seen))
        for start in range(0, len(seen) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            step += 1
            rate = RATE * (1 - (step - 1) / n_steps)
            for p, g, m, v in zip(params, _gradient(params, seen[rows], speeds[rows]), first, second, strict=True):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return Predictor(tuple(zip(params[::2], params[1::2], strict=True)))


def _gradient(params: list[Floats], seen: Floats, speeds: Floats) -> list[Floats]:
    """Return the gradient of the mean squared error by each parameter."""
    w1, b1, w2, b2, w3, b3 = params
    h1 = np.maximum(seen @ w1 + b1, 0)
    h2 = np.maximum(h1 @ w2 + b2, 0)
    off = 2 * ((h2 @ w3 + b3)[:, 0] - speeds)[:, None] / len(seen)
    d2 = (off @ w3.T) * (h2 > 0)
    d1 = (d2 @ w2.T) * (h1 > 0)
    return [seen.T @ d1, d1.sum(axis=0), h1.T @ d2, d2.sum(axis=0), h2.T @ off, off.sum(axis=0)]


def train(*, cluster: str, interference: str, n_pods: int, epochs: int, seed: int) -> Predictor:
    """Return a predictor, with what it was trained on and its error on a tenth of the jobs that it never saw."""
    rng = np.random.default_rng(seed)
    seen, speeds = history(n_pods, cluster=presets.build(cluster), interference=interference, rng=rng)
    cut = int(len(seen) * (1 - HELD_OUT))
    found = fit(seen[:cut], speeds[:cut], epochs=epochs, rng=rng)
    if not all(np.isfinite(w).all() for layer in found.layers for w in layer):
        raise ArithmeticError(f"weights of deepsys are not finite after {epochs} epochs; take another seed.")
    off = found(seen[cut:]) - speeds[cut:]
    explained = 1 - float((off**2).mean() / speeds[cut:].var())
    said = (
        f"python -m reproductions.deepsys --cluster {cluster} --interference {interference} --pods {n_pods} "
        f"--epochs {epochs} --seed {seed}: {cut} jobs; on {len(off)} others a mean absolute error of "
        f"{np.abs(off).mean():.3f} of the speed alone, R2 {explained:.3f}"
    )
    return Predictor(found.layers, said)


def main() -> None:
    """Train, write the weights and say how well they predict."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.deepsys", description=__doc__)
    parser.add_argument("--cluster", default="marl-4x20", help="where jobs ran at random")
    parser.add_argument("--interference", default="calibrated", help="how co-located jobs slow each other")
    parser.add_argument("--pods", type=int, default=2000, help="pods that are filled at random")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("deepsys.safetensors"))
    given = parser.parse_args()
    begun = time.process_time()
    found = train(
        cluster=given.cluster, interference=given.interference, n_pods=given.pods, epochs=given.epochs, seed=given.seed
    )
    found.save(given.out)
    print(f"{found.source}; {time.process_time() - begun:.0f} s of processor time. Written to {given.out}.")


if __name__ == "__main__":
    main()

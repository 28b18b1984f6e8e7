"""FGD's simulator of Alibaba's pods [1]_ and ours: how much of the GPUs is allocated when pods ask for 130 % of them.

    python -m benchmarks.foreign.fgd FOLDER [SEEDS [PLACER,...]]

FOLDER is a clone of github.com/hkust-adsl/kubernetes-scheduler-simulator, with a work tree or without. Theirs is what
it publishes for seeds 42 to 51 (`expected_results`); ours are seeds of our own, as their random numbers are Go's.

.. [1] Weng et al., "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent",
   USENIX ATC 2023.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core import Cluster, Jobs
from labkit.core.device_types import may_run_on
from labkit.core.events import Kind
from labkit.experiment import Session, at_events
from labkit.experiment.filling import OnArrival
from labkit.experiment.fitting import without_too_large
from labkit.placers import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random
from labkit.placers.fragments import TaskMix
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network
from labkit.topology.servers import Server

POLICIES: Final = {
    "01-Random": "random", "02-DotProd": "dot_product", "03-GpuClustering": "gpu_clustering",
    "04-GpuPacking": "gpu_packing", "05-BestFit": "best_fit", "06-FGD": "fgd",
}  # fmt: skip
LISTS: Final = ("openb_pod_list_default", "openb_pod_list_gpuspec33")
LOAD: Final = 1.3
SEEDS: Final = 10
SAME_POINTS: Final = 0.5
EXPECTED: Final = "experiments/analysis/expected_results/analysis_allo_discrete.csv"
NODES: Final = "data/csv/openb_node_list_gpu_node.csv"


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV of their repository."""
    if (folder / name).exists():
        return list(csv.DictReader((folder / name).read_text().splitlines()))
    git = ["git", f"--git-dir={folder / '.git' if (folder / '.git').exists() else folder}", "show", f"HEAD:{name}"]
    return list(csv.DictReader(subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()))


def theirs(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Return what they publish: (pod list, policy) -> % of GPUs allocated at 130 % asked for, of each seed."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in table(folder, EXPECTED):
        if float(row["tune"]) == LOAD:
            found.setdefault((row["workload"], row["sc_policy"]), []).append(float(row[str(round(100 * LOAD))]))
    return found


def cluster_of(nodes: list[dict[str, str]], rng: np.random.Generator) -> Cluster:
    """Return their machines in a random order, which is how equal scores are told apart."""
    servers = [
        (1, Server("node", ((int(n["gpu"]), int(n["cpu_milli"]) / 1000, int(n["memory_mib"]) / 1024),), n["model"]))
        for n in (nodes[i] for i in rng.permutation(len(nodes)))
    ]
    return no_network(len(servers), servers=servers)


def jobs_of(pods: list[dict[str, str]], *, gpus: float, rng: np.random.Generator) -> tuple[Jobs, int]:
    """Return pods in a random order, then copies until they ask for 130 % of some GPUs; and how many are no copies."""
    asks = np.array([int(p["num_gpu"]) * int(p["gpu_milli"]) / 1000 for p in pods])
    order = rng.permutation(len(pods)).tolist()
    total = asks.sum()
    while total < LOAD * gpus:
        order.append(int(rng.integers(len(pods))))
        total += asks[order[-1]]
    n, rows = len(order), [pods[i] for i in order]
    demand = np.stack(
        [asks[order], [int(p["cpu_milli"]) / 1000 for p in rows], [int(p["memory_mib"]) / 1024 for p in rows]], axis=1
    )
    jobs = Jobs.of(
        arrival_s=np.arange(n, dtype=np.float64), total_steps=1e9, duration_s=1e9, worker_demand=demand,
        device_type=[p["gpu_spec"] if int(p["num_gpu"]) else "" for p in rows],
    )  # fmt: skip
    return jobs, len(pods)


def allocated(folder: Path, pod_list: str, policy: str, seed: int) -> float:
    """Return the % of GPUs that are allocated once all pods have arrived."""
    rng = np.random.default_rng(seed)
    cluster = cluster_of(table(folder, NODES), rng)
    jobs, n = jobs_of(table(folder, f"data/csv/{pod_list}.csv"), gpus=cluster.n_gpus, rng=rng)
    mix = TaskMix.of(jobs.take(np.arange(n)), may_run_on(jobs, cluster)[:n])
    placers: dict[str, Any] = {
        "random": lambda: Random(seed), "dot_product": DotProduct, "gpu_clustering": GpuClustering,
        "gpu_packing": GpuPacking, "best_fit": BestFit,
        "fgd": lambda: Fgd(mix),
    }  # fmt: skip
    jobs = without_too_large(jobs, cluster, may_run_on(jobs, cluster))  # they are lost in any case
    simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster))
    session = Session(simulator, cadence=at_events(), runs_on=may_run_on(jobs, cluster))
    rows = session.run(OnArrival(placers[policy]()), until_s=float(jobs.arrival_s[-1]) + 1.0)
    started = np.unique(rows["job"][rows["kind"] == Kind.STARTED])
    return float(100 * jobs.gpus[started].sum() / cluster.n_gpus)


def compared(
    folder: Path, *, n_seeds: int = SEEDS, only: Sequence[str] = tuple(POLICIES.values()), lists: Sequence[str] = LISTS
) -> Iterator[tuple[str, str, list[float], list[float], float]]:
    """Return pod list, policy, their allocations and ours by seed, and CPU seconds of one of our runs."""
    published = theirs(folder)
    for pod_list in lists:
        for said, policy in ((said, policy) for said, policy in POLICIES.items() if policy in only):
            began_s = time.process_time()
            ours = [allocated(folder, pod_list, policy, seed) for seed in range(n_seeds)]
            yield pod_list, policy, published[pod_list, said], ours, (time.process_time() - began_s) / n_seeds


def rows(folder: Path) -> Iterator[Any]:
    """Return a row for each pod list and policy, as others' simulators have them (`benchmarks.foreign`)."""
    from benchmarks.foreign import Agreement

    for pod_list, policy, their, ours, cpu_s in compared(folder):
        gap = float(np.mean(ours) - np.mean(their))
        yield Agreement(
            "fgd", pod_list, f"{policy}: {np.mean(ours):.2f} % allocated, theirs {np.mean(their):.2f}",
            int(abs(gap) <= SAME_POINTS), 1, gap, ours_cpu_s=cpu_s, unit="points",
        )  # fmt: skip


def main(words: list[str]) -> int:
    """Print our allocations beside theirs."""
    if not words or not Path(words[0]).exists():
        print("skipped: clone github.com/hkust-adsl/kubernetes-scheduler-simulator and name its folder.")
        return 0
    print(f"{'pods':26} {'placer':15} {'theirs %':>24} {'ours %':>24} {'gap':>6} {'CPU s':>6}")
    n_seeds = int(words[1]) if words[1:] else SEEDS
    only = words[2].split(",") if words[2:] else tuple(POLICIES.values())
    for pod_list, policy, their, ours, cpu_s in compared(Path(words[0]), n_seeds=n_seeds, only=only):
        said = [f"{np.mean(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in (their, ours)]
        gap = np.mean(ours) - np.mean(their)
        print(f"{pod_list:26} {policy:15} {said[0]:>24} {said[1]:>24} {gap:+6.2f} {cpu_s:6.1f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""How many schedulers should share a cluster? The same machines in more and more pods, with the same stream of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.experiment.experiment import Experiment
from labkit.system.progress import counted
from labkit.workloads import marl_jobs

if TYPE_CHECKING:
    import pandas as pd


def jct_by_pods(
    schedulers: Sequence[str], pods: Sequence[int], *, seeds: Sequence[int], interference: str = "calibrated",
    n_machines: int = 80, per_slot: int = 12, slot_s: float = 1800.0, progress: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """Return the mean JCT when machines on one switch are divided among so many schedulers.

    Parameters
    ----------
    schedulers : sequence of str
        Names.
    pods : sequence of int
        Numbers of schedulers; each divides `per_slot`.
    seeds : sequence of int
        Of the traces.
    interference : str
        Level.
    n_machines, per_slot : int
        Machines of the cluster, and jobs that arrive in a slot at all pods together.
    slot_s : float
        Seconds of a slot.
    progress : bool
        Show a bar.

    Returns
    -------
    DataFrame
        pods, scheduler, seed, slots (mean JCT).
    """
    import pandas as pd

    rows = []
    cells = [(n_pods, name, seed) for n_pods in pods for name in schedulers for seed in seeds]
    for n_pods, name, seed in counted(cells, name="pods", shown=progress):
        jobs = marl_jobs(load=5, seed=seed, n_pods=n_pods, per_slot=per_slot // n_pods)
        cluster = f"single_switch({n_machines}, partitions={n_pods})"
        told = Experiment.of(jobs, cluster=cluster, interference=interference).run(name).summary
        rows.append((n_pods, name, seed, told["mean_jct_s"] / slot_s))
    return pd.DataFrame(rows, columns=["pods", "scheduler", "seed", "slots"])

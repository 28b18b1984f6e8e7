"""Shockwave's 120 jobs on 32 GPUs: means of ours beside the figures that its authors published.

Its own program needs two commercial solvers, and the profiles by which its simulator changes batch sizes are not in the
repository: jobs run with the durations that its trace declares, so that no job ends at the same moment. The published
figures are those of the results in its folder `reproduce`, which are pickles: they stand here as numbers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

import labkit
from benchmarks.foreign import Agreement, copied
from labkit.experiment import Experiment
from labkit.results import fair_share_s
from labkit.topology import no_network
from labkit.topology.servers import Server

TRACE: Final = "scheduler/traces/reproduce/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
CLUSTER: Final = no_network(8, servers=Server("four", sockets=((4, 64, 512),), device_type="v100"))
PUBLISHED: Final = {
    "shockwave": (24197.4, 9958.5, 1.784, 5.00),
    "gavel_las": (33207.7, 11274.1, 2.947, 25.00),
    "gavel_ftf": (31928.7, 11302.0, 3.438, 22.50),
    "gavel_allox": (32488.6, 9926.3, 4.964, 27.50),
    "gavel_makespan": (24204.8, 19806.7, 7.741, 74.17),
}
"""Scheduler -> makespan and mean JCT (s), worst finish-time ratio, and % of jobs with more than 1.05."""
TOLD: Final = (
    "makespan {:,.0f} s ({:,.0f}), mean JCT {:,.0f} s ({:,.0f}), worst ratio {:.2f} ({:.2f}), late {:.1f}% ({:.1f}%)"
)


def figures(jobs: labkit.Jobs, scheduler: str) -> tuple[float, float, float, float]:
    """Return ours, as PUBLISHED has them."""
    run = Experiment.of(jobs, cluster=CLUSTER, speed="recorded").run(scheduler)
    rho = run.table["jct_s"] / fair_share_s(run.table, n_gpus=CLUSTER.n_gpus, until_s=np.inf)
    late = 100 * float((rho > 1.05).mean())
    return run.summary["makespan_s"], run.summary["mean_jct_s"], float(rho.max()), late


def rows(folder: Path) -> Iterator[Agreement]:
    """Return a row for each scheduler; the gap is that of the mean JCT."""
    with tempfile.TemporaryDirectory() as scratch:
        jobs = labkit.read(copied(folder, TRACE, Path(scratch)))
    for name, published in PUBLISHED.items():
        began_s = time.process_time()
        ours = figures(jobs, name)
        yield Agreement(
            "shockwave", "120 jobs", name, 0, len(jobs), 100 * (ours[1] / published[1] - 1), unit="%",
            ours_cpu_s=time.process_time() - began_s,
            note=TOLD.format(*(each for pair in zip(ours, published, strict=True) for each in pair)),
        )  # fmt: skip

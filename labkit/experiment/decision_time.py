"""How long max-min fair shares take to compute: by a linear program, and by prices (Gavel, Fig. 12)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import sparse

from labkit.core.resources import Floats
from labkit.solvers.levels import fill
from labkit.solvers.lp import LinearProgram
from labkit.system.progress import counted
from labkit.workloads import Throughputs

if TYPE_CHECKING:
    import pandas as pd


def by_linear_program(value: Floats, capacity: Floats) -> float:
    """Return the highest level that all jobs reach together; columns are the shares, then the level.

    `value`: (J, V) normalised speed of each job on each device type; `capacity`: (V,) GPUs of each type.
    """
    n_jobs, n_types = value.shape
    job, kind = np.divmod(np.arange(value.size), n_types)
    share = np.arange(value.size)
    wide = value.size + 1
    time_of = sparse.csr_matrix((np.ones(value.size), (job, share)), shape=(n_jobs, wide))
    gpus_of = sparse.csr_matrix((np.ones(value.size), (kind, share)), shape=(n_types, wide))
    speed_of = sparse.csr_matrix((value.ravel(), (job, share)), shape=(n_jobs, value.size))
    program = LinearProgram(maximise=True)
    program.add_columns(np.append(np.zeros(value.size), 1.0))
    program.add_rows(sparse.vstack([time_of, gpus_of]), upper=np.append(np.ones(n_jobs), capacity))
    program.add_rows(sparse.hstack([speed_of, sparse.csr_matrix(-np.ones((n_jobs, 1)))]), lower=0.0)
    return float(program.solve().value)


METHODS: Final[dict[str, Callable[[Floats, Floats], float]]] = {
    "linear program (HiGHS)": by_linear_program,
    "prices, water filling": lambda value, capacity: float(fill(value, size=1, capacity=capacity).level),
    "prices": lambda value, capacity: float(fill(value, size=1, capacity=capacity, leximin=False).level),
}


def decision_times(
    counts: Sequence[int], *, repeats: int = 5, seed: int = 0, progress: bool = False
) -> pd.DataFrame:  # fmt: skip
    """Time each method on jobs with published speeds, six for each GPU: a third of the GPUs of each type.

    Parameters
    ----------
    counts : sequence of int
        Numbers of jobs.
    repeats : int
        The median of so many is taken, in seconds of the processor.
    seed : int
        Of the models, and of small differences of their speeds.
    progress : bool
        Show a bar.

    Returns
    -------
    DataFrame
        n_jobs, method, ms, level.
    """
    import pandas as pd

    rng, rows = np.random.default_rng(seed), []
    table = Throughputs.published()
    one_gpu = table.steps_per_s(list(table.models), n_gpus=1)
    for n_jobs in counted(counts, name="decisions", unit="size", shown=progress):
        speed = one_gpu[rng.integers(len(one_gpu), size=n_jobs)] * rng.uniform(0.9, 1.1, (n_jobs, 1))
        value, capacity = speed / speed.mean(axis=1, keepdims=True), np.full(speed.shape[1], n_jobs / 6)
        for name, method in METHODS.items():
            level = method(value, capacity)  # compiled by now
            took = []
            for _ in range(repeats):
                began = time.process_time()
                method(value, capacity)
                took.append(1e3 * (time.process_time() - began))
            rows.append((n_jobs, name, float(np.median(took)), level))
    return pd.DataFrame(rows, columns=["n_jobs", "method", "ms", "level"])

"""Which scheduler for which trace: paired runs over seeds or windows, as docs/assets/which-scheduler.csv holds them.

`python -m benchmarks.which_scheduler docs/assets/which-scheduler.csv` runs all of them and writes the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pandas as pd

import labkit
from labkit.results import sweep_differences

SCHEDULERS: Final = ("fifo", "easy", "srtf", "las", "drf", "tetris", "optimus", "hesrpt")
CASES: Final[dict[str, dict[str, Any]]] = {
    "fixed gangs, long tail": {"trace": "philly-like", "cluster": "no_network(2, servers='dgx1')", "windows": 5},
    "elastic, busy": {"trace": "poisson(60, per_hour=40)", "cluster": "no_network(2)"},
    "elastic, little queue": {"trace": "poisson(60, per_hour=20)", "cluster": "demo"},
    "elastic, slots of 20 min": {"trace": "dl2_jobs('testbed_6n')", "cluster": "dl2-6n", "slot_s": 1200.0},
    "three GPU types": {"trace": "gavel-small", "cluster": "gavel-8-16-24", "windows": 3, "arrival_rate": 8.0},
}
"""Kind of workload -> trace, cluster and options."""
SEEDS: Final = 5


def measured(case: str) -> pd.DataFrame:
    """Return the mean JCT of each scheduler in one case over that of fifo, with the interval of paired runs."""
    options = CASES[case]
    grid = labkit.Grid(schedulers=SCHEDULERS, seeds=options.get("windows", SEEDS), **options)
    table = labkit.sweep(grid, workers=0, progress=False)
    apart = sweep_differences(table, base="fifo")
    fifo = {"scheduler": "fifo", "n": int(apart["n"].max()), "ratio": 1.0, "low": 1.0, "high": 1.0}
    rows = [
        {"scheduler": row["scheduler"], "n": row["n"], "ratio": 1 + row["mean"] / row["base"],
         "low": 1 + row["low"] / row["base"], "high": 1 + row["high"] / row["base"]}
        for row in apart.to_dict("records")
    ]  # fmt: skip
    return pd.DataFrame([fifo, *rows]).round(4).assign(case=case)


if __name__ == "__main__":
    pd.concat([measured(case) for case in CASES], ignore_index=True).to_csv(Path(sys.argv[1]), index=False)

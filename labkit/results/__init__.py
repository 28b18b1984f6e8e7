"""What a run leaves behind: its record, its folder on disk, and the numbers that follow from its events.

A metric is a pure function of (events, jobs, cluster) in `metrics`, `intervals` or `spans`; add one there. What sets
several records side by side is in `comparison`.
"""

from labkit.results.comparison import Runs, jct_table, labels, run_table
from labkit.results.fidelity import explained, fidelity_summary, gap_parts, job_fidelity
from labkit.results.gpus import allocation, gpu_heat_map, gpu_lanes
from labkit.results.intervals import forwarding, gantt, heat_map, time_split, utilisation
from labkit.results.metrics import fair_share_s, finish_time_fairness, jain_index, jct_cdf, job_table, summary
from labkit.results.notes import notes
from labkit.results.record import RunInfo, RunRecord, RunState
from labkit.results.spans import configurations, lanes, rescalings, stretches
from labkit.results.store import RunWriter, free_id, load, run_ids
from labkit.results.sweep_folder import read_sweep
from labkit.results.sweeps import cell_table, interval, means_by, sweep_differences, sweep_means, with_bound

__all__ = [
    "RunInfo",
    "RunRecord",
    "RunState",
    "RunWriter",
    "Runs",
    "allocation",
    "cell_table",
    "configurations",
    "explained",
    "fair_share_s",
    "fidelity_summary",
    "finish_time_fairness",
    "forwarding",
    "free_id",
    "gantt",
    "gap_parts",
    "gpu_heat_map",
    "gpu_lanes",
    "heat_map",
    "interval",
    "jain_index",
    "jct_cdf",
    "jct_table",
    "job_fidelity",
    "job_table",
    "labels",
    "lanes",
    "load",
    "means_by",
    "notes",
    "read_sweep",
    "rescalings",
    "run_ids",
    "run_table",
    "stretches",
    "summary",
    "sweep_differences",
    "sweep_means",
    "time_split",
    "utilisation",
    "with_bound",
]  # fmt: skip

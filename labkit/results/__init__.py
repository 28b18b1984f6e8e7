"""What a run leaves behind: its record, its folder on disk, and the numbers that follow from its events.

A metric is a pure function of (events, jobs, cluster) in `metrics`, `intervals` or `fairness`; add one there.
"""

from labkit.results.fairness import fair_share_s, finish_time_fairness, jain_index
from labkit.results.intervals import gantt, heat_map, time_split, utilisation
from labkit.results.metrics import compare, jct_cdf, job_table, summary
from labkit.results.record import RunInfo, RunRecord, State, labels
from labkit.results.store import RunWriter, free_id, known_runs, load

__all__ = [
    "RunInfo",
    "RunRecord",
    "RunWriter",
    "State",
    "compare",
    "fair_share_s",
    "finish_time_fairness",
    "free_id",
    "gantt",
    "heat_map",
    "jain_index",
    "jct_cdf",
    "job_table",
    "known_runs",
    "labels",
    "load",
    "summary",
    "time_split",
    "utilisation",
]

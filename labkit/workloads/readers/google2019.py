"""Google's cluster trace of 2019: instance events as BigQuery exports them, in JSON, one on each line, or CSV.

Names of columns, kinds of events and units are those of `InstanceEvent` and `EventType` in
github.com/google/cluster-data: clusterdata_trace_format_v3.proto. Users stand in collection events alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import first_row, header_of, names_of, table_of
from labkit.workloads.readers.google2011 import AFTER_THE_TRACE_US, of_events
from labkit.workloads.readers.ledger import Read
from labkit.workloads.readers.records import table_text

COLUMNS: Final = ("time", "type", "collection_id", "instance_index")
REQUESTS: Final = ("cpus", "memory", "resource_request.cpus", "resource_request.memory", "user", "collection_type")
ALLOC_SET: Final = ("1", "ALLOC_SET")
EXPECTED: Final = "Google's 2019 instance events, records with " + ", ".join(COLUMNS)
KINDS: Final = ("SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING",
                "UPDATE_RUNNING")  # fmt: skip
"""Kinds of events by their numbers, which are others than in 2011 [1]_.

References
----------
.. [1] Wilkes, "Google cluster-usage traces v3", Google, 2020.
"""
_OF_2011: Final = np.array([0, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8], np.float64)
"""The kinds of 2011 for them; 7 and 8 are updates."""


def read_google_2019(path: str | Path, *, machine_cpus: float = 32.0, machine_memory_gb: float = 64.0) -> Jobs:
    """Return the jobs of Google's 2019 instance events, whose submission, start and end lie within these; no GPUs.

    Requests are fractions of the largest machine, for which `machine_cpus` and `machine_memory_gb` stand.

    Raises
    ------
    TraceError
        Every fault, with line and column; or if no job is complete.
    """
    return google_2019(path, machine_cpus=machine_cpus, machine_memory_gb=machine_memory_gb).jobs


def looks_like_events(head: str) -> bool:
    """Return whether a text begins like these events, in JSON or with their header."""
    first = first_row(head)
    return all(f'"{name}"' in head for name in COLUMNS) or set(COLUMNS) <= {
        cell.strip() for cell in header_of(first, ",")
    }


def google_2019(path: str | Path, *, machine_cpus: float = 32.0, machine_memory_gb: float = 64.0) -> Read:
    """Return the jobs of Google's 2019 instance events, and what became of them."""
    import pandas as pd

    path = Path(path)
    text, _ = table_text(path)
    header = header_of(first_row(text[: 1 << 16]), ",")
    table = table_of(
        path, columns=COLUMNS, names=("type", "user"), header=True, expected=EXPECTED, text=text, optional=REQUESTS
    )
    there = [name for name in REQUESTS if name in header]
    kinds = {name: float(i) for i, name in enumerate(KINDS)}
    table.frame["type"] = [kinds.get(name, name) for name in names_of(table.frame["type"])]
    kind = table.numbers("type", low=0, high=len(KINDS) - 1, whole=True)

    def requested(name: str) -> np.ndarray:
        column = next((each for each in there if each.endswith(name)), None)
        return np.nan_to_num(table.numbers(column, low=0, high=1, blank_ok=True)) if column else np.zeros(len(table))

    events = pd.DataFrame(
        {
            "time_us": table.numbers("time", low=0, high=2.0**64),
            "job": table.numbers("collection_id", low=0, high=2.0**53, whole=True),
            "task": table.numbers("instance_index", low=-1, high=2.0**53, whole=True, blank_ok=True),
            "kind": _OF_2011[np.nan_to_num(kind).astype(np.int64)],
            "user": names_of(table.frame["user"], blank="unknown") if "user" in there else "unknown",
            "cpu": requested("cpus"), "memory": requested("memory"), "disk": 0.0, "apart": 0.0,
        }
    )  # fmt: skip
    table.check()
    types = names_of(table.frame["collection_type"]) if "collection_type" in there else [""] * len(table)
    reserved = np.isin(types, ALLOC_SET)
    besides = f"{events['job'][reserved].nunique():,} sets of allocations, which hold room for jobs, are none."
    events = events[(events["time_us"] < AFTER_THE_TRACE_US) & (events["task"] >= 0) & ~reserved]
    return of_events(
        events, path, machine_cpus=machine_cpus, machine_memory_gb=machine_memory_gb,
        besides=besides if reserved.any() else "",
    )  # fmt: skip

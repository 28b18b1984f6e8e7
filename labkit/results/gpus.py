"""GPUs one by one: which job had which part of which GPU, and what was asked for, allocated and in fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.ledger import Ledger
from labkit.core.resources import GPUS
from labkit.placers.fragments import TaskMix, fragments_of, one_by_one
from labkit.results.intervals import end_s, holdings, placements
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd


def gpu_lanes(record: RunRecord) -> pd.DataFrame:
    """Return who had which part of each GPU, in runs where tasks take parts of GPUs.

    Returns
    -------
    DataFrame
        A row per job, GPU and stretch: gpu (machine, and number of the GPU on it), job, id, start_s, end_s, part (of
        the GPU), bottom (what others have of it, below).

    Raises
    ------
    InputError
        If the log does not say which GPUs tasks have.
    """
    import pandas as pd

    rows, cluster = record.events, record.cluster
    held, sets = holdings(rows, record.jobs), rows["task"][placements(rows)[0]]
    if len(held.group) != len(sets) or not (sets > 0).any():
        raise InputError("no task of this run takes a part of a GPU, so its log names no GPUs; see plot_heat_map.")
    n_gpus = np.ceil(cluster.capacity[:, GPUS]).astype(np.int64)
    before = np.cumsum(n_gpus) - n_gpus
    before -= before[np.searchsorted(cluster.group_machine, cluster.group_machine)]  # GPUs of a machine before a group
    row, device = np.nonzero((np.maximum(sets, 0)[:, None] >> np.arange(31)) & 1)
    each = held.gpus[row] / np.bincount(row, minlength=len(sets))[row]
    group = held.group[row]
    machines = np.array(cluster.machines, object)[cluster.group_machine[group]]
    table = pd.DataFrame(
        {
            "gpu": [f"{name} GPU {n}" for name, n in zip(machines, before[group] + device, strict=True)],
            "order": np.cumsum(n_gpus)[group] - n_gpus[group] + device,
            "job": held.job[row],
            "id": record.jobs.id[held.job[row]].astype(str),
            "start_s": held.start_s[row],
            "end_s": held.end_s[row],
            "part": each,
        }
    )
    table = table[table["end_s"] > table["start_s"]].sort_values(["order", "start_s"], kind="stable")
    table["bottom"] = np.concatenate(
        [np.empty(0), *(_stacked(lane) for _, lane in table.groupby("order", sort=False))]
    )  # fmt: skip
    return table.drop(columns="order").reset_index(drop=True)


def _stacked(lane: pd.DataFrame) -> np.ndarray:
    """Return where the part of each stretch of one GPU begins, so that no two that overlap in time cover each other."""
    bottom = np.zeros(len(lane))
    start, end, part = (lane[name].to_numpy() for name in ("start_s", "end_s", "part"))
    for i in range(len(lane)):
        beside = [k for k in range(i) if end[k] > start[i]]
        tops = sorted([0.0, *(bottom[k] + part[k] for k in beside)])
        free = [
            at for at in tops
            if all(at + part[i] <= bottom[k] + 1e-9 or at >= bottom[k] + part[k] - 1e-9 for k in beside)
        ]  # fmt: skip
        bottom[i] = free[0]
    return bottom


def allocation(record: RunRecord, *, n_times: int = 200) -> pd.DataFrame:
    """Return the requested, allocated and fragmented GPUs over time.

    Fragments are idle GPUs that the gangs of the run cannot use where they are, by how often each kind of gang comes
    (`labkit.placers.fragments`); asked: by the jobs that have arrived and are not over.

    Returns
    -------
    DataFrame
        A row per moment: time_s, asked, allocated, fragments.
    """
    import pandas as pd

    jobs, cluster, rows = record.jobs, record.cluster, record.events
    ledger, mix = Ledger(jobs, cluster), TaskMix.of(jobs, may_run_on(jobs, cluster))
    over = np.isin(rows["kind"], (Kind.COMPLETED, Kind.DROPPED))
    arrived = rows["kind"] == Kind.ARRIVED
    asks = np.cumsum(np.where(arrived, jobs.gpus[rows["job"]], 0) - np.where(over, jobs.gpus[rows["job"]], 0))
    times = np.linspace(0.0, end_s(rows), n_times)
    ends = np.searchsorted(rows["time_s"], times, side="right")
    total, first, found = cluster.capacity[:, GPUS].sum(), 0, []
    for time_s, end in zip(times, ends, strict=True):
        ledger.fold(rows[first:end])
        first = end
        left = one_by_one(ledger.book.left, cluster)
        wasted = fragments_of(left, cluster.capacity.shape[1], mix, cluster.group_type.astype(np.int32)).sum()
        found.append((time_s, float(asks[end - 1]) if end else 0.0, total - left[:, GPUS].sum(), wasted))
    return pd.DataFrame(found, columns=["time_s", "asked", "allocated", "fragments"])

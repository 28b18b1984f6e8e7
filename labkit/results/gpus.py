"""GPUs one by one: which job had which part of which GPU, and what was asked for, allocated and in fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.devices import NEAR
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.ledger import Ledger
from labkit.core.resources import GPUS
from labkit.placers.fragments import TaskMix, fragments_of, one_by_one
from labkit.results.intervals import cells, end_s, holdings, placements
from labkit.results.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd


def gpu_lanes(record: RunRecord) -> pd.DataFrame:
    """Return who had which part of each GPU, in runs where tasks take parts of GPUs.

    Returns
    -------
    DataFrame
        A row per job, GPU and stretch: gpu (machine, and number of the GPU on it), job, id, start_s, end_s, part (of
        the GPU), bottom (what others have of it, below). A stretch that fits only between others is in several rows.

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
    names, first = _names(cluster)
    row, device = np.nonzero((np.maximum(sets, 0)[:, None] >> np.arange(31)) & 1)
    each = held.gpus[row] / np.bincount(row, minlength=len(sets))[row]
    order = first[held.group[row]] + device
    table = pd.DataFrame(
        {
            "gpu": names[order],
            "order": order,
            "job": held.job[row],
            "id": record.jobs.id[held.job[row]].astype(str),
            "start_s": held.start_s[row],
            "end_s": held.end_s[row],
            "part": each,
        }
    )
    table = table[table["end_s"] > table["start_s"]].sort_values(["order", "start_s"], kind="stable")
    lanes = [_stacked(lane) for _, lane in table.groupby("order", sort=False)]
    return pd.concat(lanes or [table.assign(bottom=0.0)]).drop(columns="order").reset_index(drop=True)


def _names(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Return the name of each GPU, and which is the first of each device group, (G,)."""
    n_gpus = np.ceil(cluster.capacity[:, GPUS]).astype(np.int64)
    first = np.cumsum(n_gpus) - n_gpus
    of_machine = first[np.searchsorted(cluster.group_machine, cluster.group_machine)]
    names = [
        f"{cluster.machines[cluster.group_machine[g]]} GPU {gpu - of_machine[g]}"
        for g in range(cluster.n_groups) for gpu in range(first[g], first[g] + n_gpus[g])
    ]  # fmt: skip
    return np.array(names, object), first


def gpu_heat_map(record: RunRecord, *, n_bins: int = 60) -> pd.DataFrame:
    """Return how much of each GPU is allocated in each time bin, in the columns of `heat_map`: GPUs are its machines.

    Raise InputError where `gpu_lanes` does.
    """
    lanes, (names, _) = gpu_lanes(record), _names(record.cluster)
    number = {name: i for i, name in enumerate(names)}
    start_s, end, part = (lanes[name].to_numpy() for name in ("start_s", "end_s", "part"))
    lane = np.array([number[name] for name in lanes["gpu"]], np.int64)
    return cells(lane, start_s, end, part, names=names.tolist(), built=np.ones(len(names)),
                 until_s=end_s(record.events), n_bins=n_bins)  # fmt: skip


def _stacked(lane: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of one GPU with their bottoms, so that none covers another; in pieces where gaps are low."""
    start, end, part = (lane[name].to_numpy() for name in ("start_s", "end_s", "part"))
    row, bottom, high = list[int](), list[float](), list[float]()
    for i in range(len(lane)):
        beside = sorted((at, at + to) for k, at, to in zip(row, bottom, high, strict=True) if end[k] > start[i])
        tops, bottoms = [0.0, *(to for _, to in beside)], [*(at for at, _ in beside), 1.0]
        gaps = [(at, to - at) for at, to in zip(tops, bottoms, strict=True) if to - at > NEAR]
        gaps = [gap for gap in gaps if gap[1] >= part[i] - NEAR][:1] or gaps
        left = part[i]
        for at, room in gaps:
            row, bottom, high = [*row, i], [*bottom, at], [*high, min(room, left)]
            if (left := left - room) <= NEAR:
                break
    return lane.iloc[row].assign(bottom=bottom, part=high)


def allocation(record: RunRecord, *, n_times: int = 200) -> pd.DataFrame:
    """Return the requested, allocated and fragmented GPUs over time.

    Fragments are idle GPUs that the gangs of the run cannot use where they are, by how often each kind of gang comes
    (`labkit.placers.fragments`); asked: by the jobs that have arrived and are not over.

    Returns
    -------
    DataFrame
        A row per moment: time_s, asked, allocated, fragments.
    """
    return allocation_in(record.events, record.jobs, record.cluster, n_times=n_times)


def allocation_in(rows: Events, jobs: Jobs, cluster: Cluster, *, n_times: int) -> pd.DataFrame:
    """Return the table of `allocation` for a log."""
    import pandas as pd

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

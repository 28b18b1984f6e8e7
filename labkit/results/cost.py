"""Dollars and deadlines: what the GPUs that jobs held cost, and which jobs were in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labkit.core.errors import unknown
from labkit.core.resources import Floats
from labkit.results.intervals import holdings
from labkit.results.record import RunRecord


def dollars(record: RunRecord, *, prices: Mapping[str, float]) -> float:
    """Return what the GPUs that jobs held cost, at dollars per GPU and hour of each device type.

    Raises
    ------
    InputError
        If the price of a device type of the cluster's GPUs is not given.
    """
    for kind in record.cluster.gpu_types:
        if kind not in prices:
            raise unknown("price of device type", kind, prices)
    price = np.array([prices.get(kind, 0.0) for kind in record.cluster.device_types])
    held = holdings(record.events, record.jobs)
    return float(price[record.cluster.group_type[held.group]] @ held.gpu_s) / 3600


def late_by_s(record: RunRecord, *, slo_s: Floats | None = None) -> Floats:
    """Return seconds by which each job missed its SLO, negative: in time; NaN: no SLO, inf: never done, (N,).

    Parameters
    ----------
    record : RunRecord
        The run.
    slo_s : array, optional
        (N,) seconds after arrival by which jobs should have been done; by default what they had declared.
    """
    jct_s = np.full(len(record.jobs), np.inf)
    done = record.table[record.table["completion_s"].notna()]
    jct_s[done["job"].to_numpy()] = done["jct_s"].to_numpy(np.float64)
    late_s: Floats = jct_s - (record.jobs.slo_s if slo_s is None else slo_s)
    return late_s


def in_time(record: RunRecord) -> float:
    """Return the fraction of the jobs with an SLO that were done in time; NaN: no job has one."""
    late_s = late_by_s(record)
    late_s = late_s[~np.isnan(late_s)]
    return float((late_s <= 0).mean()) if len(late_s) else np.nan


def prices_of(record: RunRecord) -> dict[str, float]:
    """Return the prices that a run was made with; nothing where none of its schedulers is about cost."""
    told = record.info.config.get("prices")
    return {str(kind): float(price) for kind, price in told.items()} if isinstance(told, Mapping) else {}


def bills(records: Sequence[RunRecord]) -> list[float]:
    """Return what each run cost, at its own prices, else those of the first run that has some; NaN: none or no GPUs."""
    known = [prices_of(record) for record in records]
    usual = next((prices for prices in known if prices), {})
    return [_bill(record, own or usual) for record, own in zip(records, known, strict=True)]


def _bill(record: RunRecord, prices: Mapping[str, float]) -> float:
    types = record.cluster.gpu_types
    return dollars(record, prices=prices) if types and set(types) <= set(prices) else np.nan

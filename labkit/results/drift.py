"""The drift of machines: how much slower they were during a run than when its profile was measured.

Agents do a fixed piece of work every few seconds (YARDSTICK events of a run, `yardstick` of a profile). Work beside
busy cores takes longer, also where the machine is as fast as ever. So readings are compared with those of the profile
at which about as many cores were busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from labkit.core.events import Kind
from labkit.core.resources import Floats
from labkit.results.record import RunRecord
from labkit.speed.profiled.nouns import YardstickSample

REFERENCE: Final = "yardstick"
"""In the configuration of a simulated run: the readings of its profile, as `reference` returns them."""
BIN_S: Final = 10.0
"""Seconds of a run whose readings count together, by their median."""


def reference(readings: Iterable[YardstickSample]) -> list[list[Any]]:
    """Return the median reading of each host by whole busy cores, rows of host, cores and seconds, for JSON.

    >>> times = {0.9: 2.0, 1.1: 9.0, 1.2: 4.0, 2.0: 7.0}
    >>> reference(YardstickSample(host="a", work_s=times[cores], busy_cores=cores) for cores in times)
    [['a', 1, 4.0], ['a', 2, 7.0]]
    """
    found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for each in readings:
        found[each.host, round(each.busy_cores)].append(each.work_s)
    return [[host, cores, float(np.median(seconds))] for (host, cores), seconds in sorted(found.items())]


def readings_of(record: RunRecord) -> tuple[Floats, list[YardstickSample]]:
    """Return the readings of a run: times (R,), and the readings."""
    rows = record.events[record.events["kind"] == Kind.YARDSTICK]
    columns = (rows[name].tolist() for name in ("machine", "value", "cpus"))
    found = [
        YardstickSample(host=record.cluster.machines[machine], work_s=work_s, busy_cores=cores)
        for machine, work_s, cores in zip(*columns, strict=True)
    ]
    return rows["time_s"], found


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """How many times slower than in the profile the machines were, in each `BIN_S` seconds of a run, (B,)."""

    slower: Floats

    @classmethod
    def of(cls, real: RunRecord, predicted: RunRecord) -> Self | None:
        """Return the drift between a run and what predicted it; None: one of the two has no readings."""
        then = _by_host(predicted)
        times, now = readings_of(real)
        known = [i for i, reading in enumerate(now) if reading.host in then]
        if not known:
            return None
        ratio = np.array([now[i].work_s / _nearest(then[now[i].host], now[i].busy_cores) for i in known])
        number = (times[known] // BIN_S).astype(int)
        seen = np.unique(number)
        medians = np.array([np.median(ratio[number == each]) for each in seen])
        last = np.searchsorted(seen, np.arange(seen[-1] + 1), side="right") - 1
        return cls(medians[np.maximum(last, 0)])

    def machine_s(self, time_s: Floats) -> Floats:
        """Return how long the machines of the profile would have taken for what happened up to some times."""
        edges = BIN_S * np.arange(len(self.slower) + 1)
        passed = np.concatenate([[0.0], np.cumsum(BIN_S / self.slower)])
        later_s = np.maximum(time_s - edges[-1], 0.0) / self.slower[-1]
        seconds: Floats = np.interp(time_s, edges, passed) + later_s
        return seconds


def without_drift(said: Mapping[str, float]) -> str:
    """Return the drift and the gap without it, of a `labkit.results.fidelity_summary`, in words."""
    if not np.isfinite(said["drift_percent"]):
        return "drift of the machines unknown: the run or the profile has no yardstick"
    return (
        f"drift of the machines {said['drift_percent']:+.1f} %, gap without it "
        f"{said['gap_without_drift_percent']:+.1f} %"
    )


def _by_host(predicted: RunRecord) -> Mapping[str, dict[float, float]]:
    """Return seconds by busy cores for each host: of the profile of a simulated run, or those of a run on machines."""
    rows = predicted.info.config.get(REFERENCE) or reference(readings_of(predicted)[1])
    found: defaultdict[str, dict[float, float]] = defaultdict(dict)
    for host, cores, work_s in rows:
        found[str(host)][float(cores)] = float(work_s)
    return found


def _nearest(seconds: Mapping[float, float], busy_cores: float) -> float:
    return seconds[min(seconds, key=lambda cores: abs(cores - busy_cores))]

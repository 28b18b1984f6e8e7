"""What starts and rescales take on a measured testbed: seconds with no job beside them, and processor time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from labkit.speed.profiled.profile import Overhead, TestbedProfile

STARTER: Final = 0.8
"""As how many busy processes a start competes for each core that it wants alone: its processes wait for each other."""

NEWCOMER: Final = 1 / 3
"""As how many busy processes one competes that gets ready to join a job that trains. It does so at nice 10, a ninth of
the weight of others, which counts in full only among processes of one session."""


def weight_of(kind: str, cores: float, *, n_new: int) -> float:
    """Return as how many busy processes a start or a rescale competes for cores, of which it wants so many alone.

    The two constants are what crowds of jobs showed: see docs/testbed-fidelity.md.

    >>> weight_of("start", 1.0, n_new=3), weight_of("start", 2.5, n_new=5), weight_of("rescale", 0.4, n_new=3)
    (1.0, 2.0, 1.0)
    """
    return max(STARTER * cores, 1.0) if kind == "start" else NEWCOMER * max(n_new, 1)


class ChangeCost(NamedTuple):
    """Seconds with no job beside it, and processor seconds."""

    seconds: float
    cpu_s: float


class Costs:
    """What changes of one model's jobs take.

    `overheads`: where a model was not measured, what is typical of the others counts; `model`: which.
    """

    def __init__(self, overheads: Sequence[Overhead], model: str) -> None:
        self._rows = {kind: _rows_of(overheads, kind, model) for kind in ("start", "restart", "rescale", "stop")}
        self.cold_s = _cold_s(overheads, model)
        """By how many seconds a cold start is longer than a warm one."""
        self._each_cpu_s = _each_cpu_s(self._rows["rescale"])
        """Processor seconds of a process that joins."""

    def start(self, n_new: int, *, again: bool = False) -> ChangeCost:
        """Return the cost of a start of so many workers and servers, with the end of the job, which holds its tasks."""
        row = _nearest(self._rows["restart" if again else "start"], n_new)
        if row is None:
            return ChangeCost(0.0, 0.0)
        more = max(n_new - row.n_new, 0) * self._each_cpu_s
        return ChangeCost(row.median_s + self.finish_s, row.cpu_s + more)

    @property
    def finish_s(self) -> float:
        """Seconds from the last update until its tasks are free."""
        row = _nearest(self._rows["stop"], 0)
        return 0.0 if row is None else row.median_s

    def rescale(self, n_new: int) -> ChangeCost:
        """Return the cost of a rescale that starts so many processes; none if it ends some and was not measured."""
        row = _nearest([row for row in self._rows["rescale"] if bool(row.n_new) == bool(n_new)], n_new)
        if row is None:
            return ChangeCost(0.0, 0.0)
        return ChangeCost(row.median_s, row.cpu_s + (n_new - row.n_new) * self._each_cpu_s if n_new else 0.0)


def _rows_of(overheads: Sequence[Overhead], kind: str, model: str) -> list[Overhead]:
    """Return the measurements of a model, else of all; what was not measured is like what is nearest to it."""
    found = [row for row in overheads if row.kind == kind]
    if not found and kind in _LIKE:
        return _rows_of(overheads, _LIKE[kind], model)
    return [row for row in found if row.model == model] or found


_LIKE: Final = {"restart": "start", "start": "cold_start", "rescale": "cold_rescale"}
"""Without a fork server, all starts are cold ones."""


def _cold_s(overheads: Sequence[Overhead], model: str) -> float:
    """Return by how much cold starts were longer than warm ones of the same model, median; 0: not measured."""
    extra = []
    for cold in _rows_of(overheads, "cold_start", model):
        warm = _nearest(_rows_of(overheads, "start", cold.model), cold.n_new)
        extra.append(cold.median_s - (warm or cold).median_s)
    return max(float(np.median(extra)), 0.0) if extra else 0.0


def _nearest(rows: Sequence[Overhead], n_new: int) -> Overhead | None:
    """Return the measurement with the most similar number of new processes; the middle one of several."""
    if not rows:
        return None
    nearest = min(abs(row.n_new - n_new) for row in rows)
    chosen = sorted((row for row in rows if abs(row.n_new - n_new) == nearest), key=lambda row: row.median_s)
    return chosen[len(chosen) // 2]


def _each_cpu_s(rows: Sequence[Overhead]) -> float:
    each = [row.cpu_s / row.n_new for row in rows if row.n_new]
    return float(np.median(each)) if each else 0.0


def typical(profile: TestbedProfile, kind: str) -> float:
    """Return the seconds that something takes, of all models that it was measured on: median of their medians."""
    found = [row.median_s for row in profile.overheads if row.kind == kind]
    return float(np.median(found)) if found else 0.0

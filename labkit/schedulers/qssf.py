"""Quasi-shortest service first: the waiting job with the least predicted GPU time, as Helios has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.job_columns import JobColumns
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import start_in_order
from labkit.schedulers.recall import Recall

HISTORY, DECLARED = "history", "declared"
PREDICTIONS: Final = (HISTORY, DECLARED)
LONG_AGO: Final = 1e-12


@dataclass(frozen=True, eq=False, slots=True)
class Priced:
    """Predicted GPU-seconds of jobs, (N,), NaN where they were not asked yet; and how many jobs were known then."""

    gpu_s: Floats
    n_arrived: int


class Predictions:
    """What jobs will take, predicted once for each, when it is first asked for.

    Parameters
    ----------
    scheduler : str
        Whose they are, for messages.
    predict, decay : str, float
        As those of `Qssf`.
    """

    def __init__(self, scheduler: str, predict: str, *, decay: float) -> None:
        if predict not in PREDICTIONS:
            raise unknown(f"predict of {scheduler}", str(predict), PREDICTIONS)
        if not 0 < decay <= 1:
            raise InputError(f"{scheduler}: decay is {decay}; expected a part, more than 0 and at most 1.")
        self._predict, self._decay = predict, decay
        self._priced = Recall(Priced(np.empty(0), 0))

    def n_arrived_before(self, snapshot: Snapshot) -> int:
        """Return one more than the largest number of a job that had arrived at the decision before this one."""
        return self._priced.before(snapshot).n_arrived

    def gpu_s(self, snapshot: Snapshot, jobs: Ints) -> Floats:
        """Return the predicted GPU-seconds of these jobs and of those asked for before, (N,); NaN for the others."""
        before, table = self._priced.before(snapshot), snapshot.table
        gpu_s = before.gpu_s.copy() if len(before.gpu_s) else np.full(len(table), np.nan)
        new = jobs[np.isnan(gpu_s[jobs])]
        gpu_s[new] = self._seconds(snapshot, new) * table.gpus[new]
        self._priced.keep(Priced(gpu_s, int(snapshot.jobs.number.max(initial=-1)) + 1))
        return gpu_s

    def _seconds(self, snapshot: Snapshot, jobs: Ints) -> Floats:
        """Return the predicted seconds of jobs, (J,)."""
        seconds = np.nan_to_num(snapshot.table.duration_s[jobs], nan=inf)
        if self._predict == DECLARED or not len(jobs) or not len(snapshot.ended):
            return seconds
        return predicted_s(snapshot, snapshot.ended, jobs, decay=self._decay)


@dataclass(frozen=True, slots=True)
class Qssf:
    """Start the waiting job with the least predicted GPU-seconds; preempt none [1]_.

    What a job will take is predicted from those that ended before it started to wait, in this run: the mean seconds of
    the same user's jobs of the same model, later ones counting more; else of that user's, else of those with as many
    GPUs, else of all. Before any has ended, it is the declared duration. Helios adds a learned model of names and
    times, which its traces do not carry.

    Attributes
    ----------
    predict : str
        "history", as above; "declared": the declared durations, as if predictions were perfect.
    decay : float
        What a job that ended counts, each time another like it has ended since, as a part of that one.
    backfill : bool
        Pass over a job that does not fit now.
    placer : Placer
        Where gangs go.
    published : bool
        As in Helios' and Lucid's simulators: jobs that arrive while nobody waits go by their GPUs alone, the fewest
        first.

    Notes
    -----
    Read in github.com/S-Lab-System-Group/HeliosArtifact (MIT) and S-Lab-System-Group/Lucid (S-Lab License 1.0, not for
    commercial use), 63685a3; nothing is copied. `python -m benchmarks.foreign` runs it beside the latter.

    References
    ----------
    .. [1] Hu et al., "Characterization and prediction of deep learning workloads in large-scale GPU datacenters", SC
       2021, sec. 4.2.
    """

    knows_types: ClassVar[bool] = False

    predict: str = HISTORY
    decay: float = 0.8
    backfill: bool = False
    placer: Placer = ByNetwork()
    published: bool = False
    _predictions: Predictions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_predictions", Predictions("qssf", self.predict, decay=self.decay))

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        waiting, table = snapshot.waiting, snapshot.table
        if self.published and not (waiting < self._predictions.n_arrived_before(snapshot)).any():
            self._predictions.gpu_s(snapshot, waiting[:0])
            return start_in_order(snapshot, waiting, self.placer, backfill=self.backfill, by=table.gpus)
        gpu_s = self._predictions.gpu_s(snapshot, waiting)
        fewest_first = waiting[np.argsort(table.gpus[waiting], kind="stable")] if self.published else waiting
        return start_in_order(snapshot, fewest_first, self.placer, backfill=self.backfill, by=gpu_s)


def predicted_s(snapshot: Snapshot, ended: JobColumns, jobs: Ints, *, decay: float) -> Floats:
    """Return the seconds that jobs take by those that ended, (J,): of the nearest kind of which any has."""
    table = snapshot.table
    gpus = np.maximum(ended.gang_demand[:, GPUS], 1e-9)
    took_s = ended.attained_gpu_s / gpus
    ranks: tuple[tuple[Ints, Ints], ...] = (
        (ended.user * len(table.models) + ended.model, table.user[jobs] * len(table.models) + table.model[jobs]),
        (ended.user, table.user[jobs]),
        (np.round(gpus * 1000).astype(np.int64), np.round(table.gpus[jobs] * 1000).astype(np.int64)),
        (np.zeros(len(ended), np.int64), np.zeros(len(jobs), np.int64)),
    )
    seconds = np.full(len(jobs), np.nan)
    for of_ended, of_jobs in ranks:
        left = np.flatnonzero(np.isnan(seconds))
        if not len(left):
            break
        kinds, at = np.unique(of_ended, return_inverse=True)
        later = _since(at)
        weight = np.maximum(decay**later, LONG_AGO)
        mean_s = np.bincount(at, weight * took_s) / np.bincount(at, weight)
        where = np.searchsorted(kinds, of_jobs[left]).clip(max=len(kinds) - 1)
        known = kinds[where] == of_jobs[left]
        seconds[left[known]] = mean_s[where[known]]
    return seconds


def _since(kind: Ints) -> Floats:
    """Return how many of the same kind come after each, (J,).

    >>> _since(np.array([0, 1, 0, 0])).tolist()
    [2.0, 0.0, 1.0, 0.0]
    """
    order = np.argsort(kind, kind="stable")
    ends = np.searchsorted(kind[order], kind[order], "right")
    found = np.empty(len(kind))
    found[order] = ends - 1 - np.arange(len(kind))
    return found

"""Goodput: how much a step of a job is worth for its batch, from measured step times and gradient noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.workloads.readers.published import POLLUX_EPOCHS as EPOCHS

MOST_LOCAL: Final = {"yolov3": 8}
"""The largest batch of one GPU where it is not the largest one that was measured."""
FILES: Final = ("placements.csv", "scalability.csv")
ON_ONE_NODE: Final = 4
NEARLY: Final = 1e-8
MOST_WORKERS: Final = 64
CANDIDATES: Final = 50
"""Batches among which an adaptive job chooses, in geometric progression."""


@dataclass(frozen=True, eq=False, slots=True)
class Application:
    """What was measured of one kind of job: step times by placement and batch, and how gradients vary by epoch.

    Progress counts steps of the smallest batch: `progress` is what all batches have reached after an epoch.

    Attributes
    ----------
    name : str
        Of the kind.
    batches : array
        (B,) batches with which it was trained to the end, ascending; the first one is where jobs begin.
    iterations, square, variance : array
        (B, E) steps done after each epoch, squared norm and variance of gradients in it.
    progress : array
        (E,) progress after each epoch.
    times : mapping
        Placement (workers by machine, in its smallest rotation) -> (n, 3) local batch, seconds per step, those of them
        in which workers exchange gradients.
    scattered : array
        (n, 5) machines, workers, local batch, seconds per step and of exchange, for other placements.
    local : tuple of int
        The least and the largest batch of one GPU.
    """

    name: str
    batches: Floats
    iterations: Floats
    square: Floats
    variance: Floats
    progress: Floats
    times: Mapping[tuple[int, ...], Floats]
    scattered: Floats
    local: tuple[int, int]
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> Application:
        """Return an application of Pollux's artifact: a folder of `simulator/traces`.

        Raises
        ------
        InputError
            If files are missing.
        """
        import pandas as pd

        place = Path(folder)
        validation = sorted(place.glob("validation-*.csv"), key=lambda path: int(path.stem.partition("-")[2]))
        if not validation or not all((place / name).is_file() for name in FILES):
            raise InputError(
                f"{place} has no {', '.join(FILES)} and validation-*.csv; expected a folder of simulator/traces of "
                "github.com/petuum/adaptdl, branch osdi21-artifact."
            )
        epochs = [pd.read_csv(path) for path in validation]
        n = EPOCHS.get(place.name) or min(map(len, epochs))
        measured, scattered = (pd.read_csv(place / name) for name in FILES)
        iterations, square, variance = (
            np.array([of[name][:n] for of in epochs], np.float64) for name in ("iteration", "grad_sqr", "grad_var")
        )
        times, elsewhere = _step_times(measured, scattered)
        return cls(
            name=place.name, batches=np.array([float(path.stem.partition("-")[2]) for path in validation]),
            iterations=iterations, square=square, variance=variance,
            progress=np.array([each["progress"][:n] for each in epochs], np.float64).min(axis=0),
            times=times, scattered=elsewhere,
            local=(int(measured.local_bsz.min()), MOST_LOCAL.get(place.name) or int(measured.local_bsz.max())),
        )  # fmt: skip

    def step_s(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        """Return seconds per step, and of exchange, of workers by machine with a batch each; NaN: never measured."""
        key = placement, local
        if key not in self._cache:
            self._cache[key] = self._step_s(placement, local)
        found: tuple[float, float] = self._cache[key]
        return found

    def _step_s(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        turned = min(placement[i:] + placement[:i] for i in range(len(placement)))
        if (rows := self.times.get(turned)) is not None:
            if not rows[0, 0] <= local <= rows[-1, 0]:
                return math.nan, math.nan
            return float(np.interp(local, rows[:, 0], rows[:, 1])), float(np.interp(local, rows[:, 0], rows[:, 2]))
        if "scattered" not in self._cache:
            from scipy.interpolate import LinearNDInterpolator

            self._cache["scattered"] = LinearNDInterpolator(self.scattered[:, :3], self.scattered[:, 3:])
        step_s, exchange_s = self._cache["scattered"]([min(len(placement), 16), sum(placement), local])[0]
        return float(step_s), float(exchange_s)

    def split(self, batch: float, n_workers: int) -> tuple[int, int]:
        """Return the batch of each worker, and how many more passes it makes before gradients are exchanged."""
        each = math.ceil(batch / n_workers - NEARLY)
        more = math.ceil(each / self.local[1] - NEARLY) - 1
        if n_workers == 1 and batch > self.batches[0]:  # one pass of one worker shows no variance of gradients
            more = max(more, 1)
        local = math.ceil(each / (more + 1) - NEARLY)
        return min(local, int(self.batches[-1] / (n_workers * (more + 1)))), more

    def iteration_s(self, placement: tuple[int, ...], local: int, more: int) -> float:
        """Return seconds of one update of the parameters."""
        step_s, exchange_s = self.step_s(placement, local)
        return step_s + (step_s - exchange_s) * more

    def between(self, values: Floats, batch: float) -> Floats:
        """Return a row of values (B, E) for a batch, linear between the two that were measured, (E,)."""
        low = int(np.searchsorted(self.batches, batch, "right")) - 1
        if low < 0 or batch > self.batches[-1]:
            raise InputError(
                f"{self.name} with a batch of {batch:g}; expected {self.batches[0]:g} to {self.batches[-1]:g}."
            )
        if self.batches[low] == batch:
            row: Floats = values[low]
            return row
        a, b = self.batches[low], self.batches[low + 1]
        blend: Floats = ((batch - a) * values[low + 1] + (b - batch) * values[low]) / (b - a)
        return blend

    def gain(self, batch: float, epoch: int) -> float:
        """Return how many steps of the smallest batch one of this batch is worth in an epoch, counted from 0."""
        square, variance = self.between(self.square, batch)[epoch], self.between(self.variance, batch)[epoch]
        return float((variance + square) / (variance / (batch / self.batches[0]) + square))

    def goodput(self, placement: tuple[int, ...], batch: float, epoch: int) -> float:
        """Return progress per second; 0 where a batch cannot be split so."""
        n_workers = sum(placement)
        local, more = self.split(batch, n_workers)
        batch = float(n_workers * local * (more + 1))
        if not (self.local[0] <= local <= self.local[1] and self.batches[0] <= batch <= self.batches[-1]):
            return 0.0
        seconds = self.iteration_s(placement, local, more)
        return self.gain(batch, epoch) / seconds if seconds > 0 else 0.0

    def best_batch(self, placement: tuple[int, ...], epoch: int) -> float:
        """Return the batch with the most goodput."""
        batches, seconds = self._candidates(placement)
        square, variance = (np.interp(batches, self.batches, of[:, epoch]) for of in (self.square, self.variance))
        worth = (variance + square) / (variance / (batches / self.batches[0]) + square) / seconds
        return float(batches[int(np.argmax(worth))])

    def _candidates(self, placement: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the batches that an adaptive job may choose among, and seconds per step; inf: not to be split so."""
        if ("tried", placement) not in self._cache:
            n = sum(placement)
            least = max(self.batches[0], self.local[0] * n)
            split = [self.split(batch, n) for batch in np.geomspace(least, max(self.batches[-1], least), CANDIDATES)]
            batches = np.array([float(n * local * (more + 1)) for local, more in split])
            seconds = np.array([
                self.iteration_s(placement, local, more) if self.local[0] <= local <= self.local[1] else np.nan
                for local, more in split
            ])  # fmt: skip
            sound = (batches >= self.batches[0]) & (batches <= self.batches[-1]) & (seconds > 0)
            self._cache["tried", placement] = batches, np.where(sound, seconds, np.inf)
        found: tuple[Floats, Floats] = self._cache["tried", placement]
        return found


def _step_times(measured: Any, scattered: Any) -> tuple[dict[tuple[int, ...], Floats], Floats]:
    """Return step times by placement, and those of other placements with the means by machines and workers."""
    times, columns = {}, ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"]
    measured = measured.assign(
        num_nodes=[len(str(p)) for p in measured.placement],
        num_replicas=[sum(map(int, str(p))) for p in measured.placement],
    )
    for placement, rows in measured.groupby("placement"):
        of = rows.sort_values("local_bsz", kind="stable")
        times[tuple(map(int, str(placement)))] = of[columns[2:]].to_numpy(np.float64)
    means = measured.groupby(columns[:3])[columns].mean()
    return times, np.concatenate([means[columns].to_numpy(np.float64), scattered[columns].to_numpy(np.float64)])


class Goodput:
    """Progress per second of jobs of measured applications: throughput times what a step of their batch is worth [1]_.

    A step of a job is one of its smallest batch, so `total_steps` is the progress of all epochs. What a larger batch is
    worth changes from epoch to epoch: an epoch is a phase (`PhaseModel`). The model of a job is its application.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        What trains, and where.
    applications : mapping
        Name -> `Application`.
    batch : array, optional
        (N,) the batch that each job keeps; 0: it takes the one with the most goodput wherever it is placed, as
        Pollux' jobs do by themselves. All of them by default.
    interference : float
        Part of its speed that a job on several machines loses where it shares one with another such job.
    round_s : float
        Epochs end at multiples of this many seconds; 1 in Pollux' simulator.

    Raises
    ------
    InputError
        If an application is missing.

    References
    ----------
    .. [1] Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning", OSDI 2021.
    """

    in_words = "goodput: measured step times, and gradient noise by epoch"

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        applications: Mapping[str, Application],
        batch: Floats | None = None,
        interference: float = 0.0,
        round_s: float = 0.0,
    ) -> None:
        self._of = _applications_of(jobs, applications)
        if not 0 <= interference < 1:
            raise InputError(f"interference is {interference}; expected a part of the speed, 0 to less than 1.")
        self.jobs, self.cluster, self.round_s = jobs, cluster, round_s
        self.batch = np.zeros(len(jobs)) if batch is None else np.asarray(batch, np.float64)
        self.local, self._interference = not interference, interference
        self._ends = np.full((len(self._of), max(len(each.progress) for each in self._of) + 1), np.inf)
        for row, each in zip(self._ends, self._of, strict=True):
            row[: len(each.progress)] = each.progress
        self._rate = cache(self._goodput)

    def application(self, job: int) -> Application:
        """Return the measurements of a job's kind."""
        return self._of[int(self.jobs.model[job])]

    def epoch(self, job: int, steps: float) -> int:
        """Return the epoch, counted from 0, in which a job is that has done so many steps."""
        ends = self.application(job).progress
        return min(int(np.searchsorted(ends, steps, "right")), len(ends) - 1)

    def speeds(self, running: Running) -> Floats:
        """Return progress per second of each job, (J,)."""
        machine = self.cluster.group_machine[running.group]
        steps = running.steps if len(running.steps) else np.zeros(len(running.job))
        rows = list(zip(machine.tolist(), running.count.tolist(), running.role.tolist(), strict=True))
        first = running.first.tolist()
        where = [_by_machine(rows[a:b]) for a, b in pairwise(first)]
        speeds = np.array([
            self._rate(int(self.jobs.model[job]), tuple(at.values()), float(self.batch[job]), self.epoch(job, done))
            if at else 0.0
            for job, at, done in zip(running.job.tolist(), where, steps.tolist(), strict=True)
        ], np.float64)  # fmt: skip
        return speeds * (1 - self._interference * _crossed(where)) if self._interference else speeds

    def _goodput(self, model: int, placement: tuple[int, ...], batch: float, epoch: int) -> float:
        of = self._of[model]
        return of.goodput(placement, batch or of.best_batch(placement, epoch), epoch)

    def ends(self, jobs: Ints, steps: Floats) -> Floats:
        """Return the progress at which the epoch ends in which each job is, (J,)."""
        ends = self._ends[self.jobs.model[jobs]]
        past = (ends <= steps[:, None]).sum(axis=1)
        found: Floats = ends[np.arange(len(jobs)), past]
        return found

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types: all that they allow, (N, T)."""
        return may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with the gang that it asked for, four workers to a machine, (N,)."""
        return np.array([
            self.whole_s(job, packed(int(n))) for job, n in enumerate(self.jobs.n_workers)
        ])  # fmt: skip

    def whole_s(self, job: int, placement: tuple[int, ...]) -> float:
        """Return seconds of all epochs of a job on workers by machine; NaN where it cannot train so."""
        of, model = self.application(job), int(self.jobs.model[job])
        rates = np.array([self._rate(model, placement, float(self.batch[job]), e) for e in range(len(of.progress))])
        if not (rates > 0).all():
            return math.nan
        steps = np.minimum(of.progress, self.jobs.total_steps[job])
        return float((np.diff(steps, prepend=0.0) / rates).sum())


def packed(n_workers: int) -> tuple[int, ...]:
    """Return workers by machine, four on each.

    >>> packed(10)
    (4, 4, 2)
    """
    whole, rest = divmod(n_workers, ON_ONE_NODE)
    return (ON_ONE_NODE,) * whole + (rest,) * (rest > 0)


def _by_machine(tasks: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """Return workers by machine, in the order of the rows."""
    found: dict[int, int] = {}
    for machine, count, role in tasks:
        if role == Role.WORKER:
            found[machine] = found.get(machine, 0) + count
    return found


def _crossed(where: list[dict[int, int]]) -> Floats:
    """Return 1 for a job on several machines that shares one with another such job, else 0, (J,)."""
    spread = [set(at) if len(at) > 1 else set() for at in where]
    times: dict[int, int] = {}
    for at in spread:
        for machine in at:
            times[machine] = times.get(machine, 0) + 1
    return np.array([float(any(times[machine] > 1 for machine in at)) for at in spread])


def _applications_of(jobs: Jobs, applications: Mapping[str, Application]) -> list[Application]:
    """Return the application of each model of jobs; InputError if one is missing."""
    if missing := sorted(set(jobs.models) - set(applications)):
        raise InputError(
            f"no goodput of '{missing[0]}' was measured; known applications: {', '.join(applications) or 'none'}."
        )
    return [applications[name] for name in jobs.models]


def read_applications(folder: str | Path) -> dict[str, Application]:
    """Return Pollux' applications by name, from `simulator/traces` of its artifact [1]_, which is to be fetched.

    References
    ----------
    .. [1] github.com/petuum/adaptdl, branch osdi21-artifact; Apache-2.0.
    """
    return {name: Application.read(Path(folder) / name) for name in EPOCHS}


def in_progress(jobs: Jobs, applications: Mapping[str, Application]) -> tuple[Jobs, Floats]:
    """Return jobs of these applications whose steps are progress to their end, and the batches that they keep, (N,).

    Batch 0: a job chooses its own. Then it may have as many workers as its largest batch feeds, 64 at most; those of
    `ncf` keep the largest, on one GPU, as Pollux has it. Steps that a trace counts, such as epochs, do not matter.

    Raises
    ------
    InputError
        If an application is missing.
    """
    of = _applications_of(jobs, applications)
    fixed = np.array([each.name == "ncf" for each in of])[jobs.model]
    n_workers = np.where(fixed, np.int32(1), jobs.n_workers)
    most = np.where(fixed, 1, np.array([_most_workers(each, each.batches[-1]) for each in of])[jobs.model])
    steps = np.array([float(each.progress[-1]) for each in of])[jobs.model]
    longer = steps / jobs.total_steps
    changed = jobs.with_columns(
        total_steps=steps, true_steps=jobs.true_steps * longer, steps_per_epoch=jobs.steps_per_epoch * longer,
        samples_per_step=np.array([float(each.batches[0]) for each in of])[jobs.model],
        n_workers=n_workers, max_workers=np.maximum(most, n_workers).astype(np.int32),
    )  # fmt: skip
    return changed, np.where(fixed, np.array([float(each.batches[-1]) for each in of])[jobs.model], 0.0)


def _most_workers(of: Application, batch: float) -> int:
    """Return how many workers each have at least their least batch."""
    return min(MOST_WORKERS, int(batch // of.local[0]))


def read_workload(
    path: str | Path, applications: Mapping[str, Application], *, adaptive: bool = False
) -> tuple[Jobs, Floats]:
    """Return the jobs of one of Pollux' workloads, and their batches.

    Columns: name, time, application, num_replicas, batch_size.

    Jobs ask for the recorded gang and batch, and may have up to 64 workers that each train on their least batch.
    `adaptive`: they ask for one GPU, and are as of `in_progress`.
    """
    import pandas as pd

    rows = pd.read_csv(path)
    of = [applications[name] for name in rows.application]
    most = np.array([_most_workers(app, batch) for batch, app in zip(rows.batch_size, of, strict=True)])
    jobs = Jobs.of(
        name=Path(path).stem, id=rows.name.tolist(), model=rows.application.tolist(),
        arrival_s=rows.time.to_numpy(np.float64),
        total_steps=[float(app.progress[-1]) for app in of], samples_per_step=[float(app.batches[0]) for app in of],
        n_workers=rows.num_replicas.to_numpy(), max_workers=np.maximum(most, rows.num_replicas),
        worker_demand=np.tile([1.0, 0.0, 0.0], (len(rows), 1)),
    )  # fmt: skip
    if adaptive:
        return in_progress(jobs.with_columns(n_workers=np.ones(len(jobs), np.int32)), applications)
    return jobs, rows.batch_size.to_numpy(np.float64)

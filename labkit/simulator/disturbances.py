"""What makes a simulated run less than ideal: overheads, varying speeds, failing machines, noisy losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats

LONGEST_S: Final = 1e9
"""Thirty years: no start or change takes longer."""


def _refuse_negative(thing: object, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{type(thing).__name__}.{name} is {value}; expected a number >= 0.")


def _refuse_above_one(thing: object, **values: float) -> None:
    _refuse_negative(thing, **values)
    for name, value in values.items():
        if value > 1:
            raise InputError(f"{type(thing).__name__}.{name} is {value}; expected a fraction from 0 to 1.")


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds in which a job holds its tasks and makes no progress.

    Attributes
    ----------
    start_s : float
        First start of a job.
    restart_s : float
        Start from a checkpoint, after a preemption or a failure.
    rescale_s : float
        Change of the gang of a running job (rescaling; give `restart_s` here for checkpoint-restart systems).
    """

    start_s: float = 0.0
    restart_s: float = 0.0
    rescale_s: float = 0.0

    def __post_init__(self) -> None:
        _refuse_negative(self, start_s=self.start_s, restart_s=self.restart_s, rescale_s=self.rescale_s)
        for name in ("start_s", "restart_s", "rescale_s"):
            if getattr(self, name) > LONGEST_S:
                raise InputError(
                    f"Overheads.{name} is {getattr(self, name):g}; expected seconds, at most {LONGEST_S:g}."
                )

    @classmethod
    def published(cls, name: str) -> Self:
        """Return the overheads that a system's paper gives.

        >>> Overheads.published("dlrover")
        Overheads(start_s=120.0, restart_s=120.0, rescale_s=120.0)
        """
        if name not in PUBLISHED:
            raise unknown("overheads", name, PUBLISHED)
        return cls(*PUBLISHED[name])


PUBLISHED: Final[Mapping[str, tuple[float, float, float]]] = {"dlrover": (120.0, 120.0, 120.0)}
"""Overheads as published, by name. DLRover (section 6.3): about 20 s to launch pods and 100 s to initialise training,
each time that a job is started or changed; the 60 s that it names beside them pass in training: they are a sample."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Speeds that change from period to period.

    Attributes
    ----------
    period_s : float
        How long a drawn speed lasts.
    error : float
        Speed is multiplied by 1 + error * U(-1, 1), as DL2's simulator does (its TRAIN_SPEED_ERROR).
    straggler_probability : float
        Chance that a job is slowed by a straggler during a period.
    straggler_factor : float
        Speed of a job with a straggler, as a fraction of its speed without.
    """

    period_s: float
    error: float = 0.0
    straggler_probability: float = 0.0
    straggler_factor: float = 0.5

    def __post_init__(self) -> None:
        _refuse_above_one(
            self, error=self.error, straggler_probability=self.straggler_probability,
            straggler_factor=self.straggler_factor,
        )  # fmt: skip
        if self.straggler_factor == 0 and self.straggler_probability == 1:
            raise InputError("Variation: all jobs stand still for ever; let straggler_factor be > 0.")
        if not self.period_s > 0:
            raise InputError(f"Variation.period_s is {self.period_s}; expected seconds > 0.")

    def factors(self, n: int, *, rng: np.random.Generator) -> Floats:
        """Return this period's multiplier of each of `n` jobs' speeds."""
        drawn = 1 + self.error * (2 * rng.random(n) - 1)
        slow = rng.random(n) < self.straggler_probability
        return np.where(slow, self.straggler_factor * drawn, drawn)


@dataclass(frozen=True, slots=True)
class Faults:
    """Machines that fail and return, each after exponential times.

    Attributes
    ----------
    mtbf_s, mttr_s : float
        Mean seconds between failures of one machine, and until it is back.
    checkpoint_s : float
        A job on a failed machine falls back to its newest checkpoint; they are this far apart from its start on.
        0: nothing is lost.
    """

    mtbf_s: float
    mttr_s: float
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        _refuse_negative(self, mttr_s=self.mttr_s, checkpoint_s=self.checkpoint_s)
        if self.mttr_s > LONGEST_S:
            raise InputError(f"Faults.mttr_s is {self.mttr_s:g}; expected seconds, at most {LONGEST_S:g}.")
        if not self.mtbf_s > 0:
            raise InputError(f"Faults.mtbf_s is {self.mtbf_s}; expected seconds > 0.")


def checkpoints_s(faults: Faults | None, checkpoint_s: float | None) -> float:
    """Return how far apart checkpoints are: `checkpoint_s`, or None: as `faults` has it; 0: nothing is lost."""
    if checkpoint_s is not None:
        return checkpoint_s
    return faults.checkpoint_s if faults else 0.0


@dataclass(frozen=True, slots=True)
class Losses:
    """Training loss of each job as it would be measured: 1 / (b0 * epoch + b1) + b2, times noise.

    Attributes
    ----------
    curve : array
        (N, 3) b0, b1, b2 of each job: Optimus' convergence model (EuroSys'18, eq. 1).
    report_s : float
        Seconds between reports.
    noise : float
        Standard deviation of the relative error.
    """

    curve: NDArray[np.float64]
    report_s: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        _refuse_negative(self, noise=self.noise)
        if not self.report_s > 0:
            raise InputError(f"Losses.report_s is {self.report_s}; expected seconds > 0.")
        if self.curve.ndim != 2 or self.curve.shape[1] != 3 or not (self.curve >= 0).all():
            raise InputError(f"Losses.curve has the shape {self.curve.shape}; expected (N, 3) b0, b1, b2, all >= 0.")

    @classmethod
    def converging(cls, jobs: Jobs, *, report_s: float, noise: float = 0.0) -> Self:
        """Return losses of jobs that have converged, by their own `loss_delta`, when their true steps are done.

        All start at 1.1 and would end at 0.1.

        Raises
        ------
        InputError
            If a job has no `loss_delta`, or one with which it would converge sooner: `loss_targets` gives fitting ones.
        """
        n = _epochs_before_the_last(jobs)
        delta = 1.1 * jobs.loss_delta
        # 1/x - 1/(x + b0) = delta at x = b0 n + 1, solved for the steeper of two curves
        middle = 1 - delta * (2 * n + 1)
        square = middle**2 - 4 * delta**2 * n * (n + 1)
        bad = np.flatnonzero(~(square >= 0) | ~(middle > 0))
        if len(bad):
            raise InputError(
                f"job {jobs.id[bad[0]]} has loss_delta {jobs.loss_delta[bad[0]]} and {n[bad[0]] + 3:g} epochs, which "
                f"no curve joins; take jobs.with_columns(loss_delta=loss_targets(jobs))."
            )
        b0 = (middle + np.sqrt(square)) / (2 * delta * n * (n + 1))
        return cls(np.column_stack([b0, np.ones_like(b0), np.full_like(b0, 0.1)]), report_s, noise)

    def at(self, jobs: NDArray[np.int32], epochs: Floats, *, rng: np.random.Generator) -> Floats:
        """Return the loss that each job reports."""
        b0, b1, b2 = self.curve[jobs].T
        exact: Floats = 1 / (b0 * epochs + b1) + b2
        return exact * (1 + self.noise * rng.standard_normal(len(jobs)))


def loss_targets(jobs: Jobs) -> Floats:
    """Return a `loss_delta` for each job with which it converges after its true steps, (N,)."""
    return 1 / (8 * 1.1 * _epochs_before_the_last(jobs))


def _epochs_before_the_last(jobs: Jobs) -> Floats:
    """Return the epochs of each job before the three small ones that show that it has converged, at least 1."""
    return np.maximum(jobs.true_steps / jobs.steps_per_epoch - 3, 1.0)

"""Learning-rate schedules: pure functions of the update's number, which give a factor of the learning rate.

>>> half = Cosine(100, warm_up=10)
>>> half(0), half(9), round(half(55), 3), half(100)
(0.1, 1.0, 0.5, 0.0)

Any function of one's own will do, too, such as `lambda step: 0.99**step`: every server calls it for each update, so it
may depend on nothing but the step. `torch.optim.lr_scheduler.LambdaLR` takes the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, isfinite, pi
from typing import Any, Final

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.models.sizes import whole

Schedule = Callable[[int], float]
"""From the number of an update, 0 for the first, to a factor of the learning rate, 0 or more."""

LOOKS: Final = 1000
"""Steps of a job at most at which a schedule is tried before the job starts."""


class ScheduleError(LabkitError):
    """A schedule that raises, or whose factor is no finite number of 0 or more."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Rise evenly to 1 over the first `steps` updates, and stay there.

    >>> [WarmUp(4)(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    steps: int

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=1)

    def __call__(self, step: int) -> float:
        """Return the factor of an update."""
        return min(1.0, (step + 1) / self.steps)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Fall from 1 to `floor` along half a cosine by update `steps`, after an even rise over the first `warm_up`.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without restarts.
    """

    steps: int
    warm_up: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        whole("warm_up", self.warm_up, least=0)
        whole("steps", self.steps, least=self.warm_up + 1)
        if not 0 <= self.floor <= 1:
            raise InputError(f"floor is {self.floor!r}; expected a factor from 0 to 1.")

    def __call__(self, step: int) -> float:
        """Return the factor of an update."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        done = min(1.0, (step - self.warm_up) / (self.steps - self.warm_up))
        return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True, slots=True)
class Steps:
    """Multiply by `factor` after every `every` updates.

    >>> [Steps(2, factor=0.5)(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        whole("every", self.every, least=1)
        if not (isfinite(self.factor) and self.factor > 0):
            raise InputError(f"factor is {self.factor!r}; expected a number above 0.")

    def __call__(self, step: int) -> float:
        """Return the factor of an update."""
        return float(self.factor ** (step // self.every))


def factor_of(schedule: Schedule, step: int) -> float:
    """Return the factor of an update.

    Raises
    ------
    ScheduleError
        If the schedule raises, or its factor is no finite number of 0 or more.
    """
    try:
        factor = float(schedule(step))
    except Exception as error:
        raise ScheduleError(f"schedule({step}) raised {type(error).__name__}: {error}") from error
    if not (isfinite(factor) and factor >= 0):
        raise ScheduleError(f"schedule({step}) is {factor}; expected a finite factor of 0 or more.")
    return factor


def check_schedule(schedule: Any, *, n_steps: int) -> None:
    """Raise InputError unless a schedule gives a factor for the steps of a job, of which `LOOKS` at most are tried."""
    if schedule is None:
        return
    if not callable(schedule) or isinstance(schedule, type):
        raise InputError(
            f"schedule is {schedule!r}; expected a function of the step that returns a factor of lr, such as "
            "labkit.elastic.schedules.Cosine(steps)."
        )
    try:
        for step in {*range(0, n_steps, max(1, n_steps // LOOKS)), n_steps - 1}:
            factor_of(schedule, step)
    except ScheduleError as error:
        raise InputError(str(error)) from None

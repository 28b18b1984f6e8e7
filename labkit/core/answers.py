"""What schedulers, placers and speed models answer, looked at before it is believed: a line each for what is wrong."""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from labkit.core.errors import InputError, PlacementError
from labkit.core.jobs import Jobs
from labkit.core.placement import REPAIR, Placement, Reason
from labkit.core.protocols import ChangeModel, SpeedModel
from labkit.core.resources import Floats, Ints
from labkit.core.running import Running
from labkit.kernels import kernel

_FLOAT: Final = np.dtype(np.float64)
_AMOUNT: Final = np.dtype(np.float32)
_COLUMNS: Final = ("set_jobs", "job", "role", "group", "count", "partner", "declined")
_AMOUNTS: Final = ("cpus", "memory_gb")


def placement_of(answer: object, *, source: str) -> Placement:
    """Return what a scheduler or a placer answered.

    Raise PlacementError if it is no placement, its columns are no arrays of whole numbers (amounts: of float32) of one
    length, its repairs are not of dtype `REPAIR`, its reasons are no `Reason`s, or its `again_s` is no number.

    `answer`: the answer; `source`: what answered, for messages: "Fifo.schedule()".
    """
    if not isinstance(answer, Placement):
        raise PlacementError(
            f"{source} returns {_shown(answer)}; expected a Placement, and Placement.nothing() where nothing changes."
        )
    for name in _COLUMNS:
        column = getattr(answer, name)
        if not (isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "i"):
            raise PlacementError(
                f"{source} returns a placement whose {name} is {_shown(column)}; expected a one-dimensional array of "
                "whole numbers, as Placement.of makes them."
            )
    n = len(answer.job)
    if not len(answer.role) == len(answer.group) == len(answer.count) == n:
        lengths = ", ".join(f"{name} {len(getattr(answer, name))}" for name in _COLUMNS[1:5])
        raise PlacementError(f"{source} returns a placement with columns of different lengths: {lengths}.")
    for name in _AMOUNTS:
        given = getattr(answer, name)
        if not (isinstance(given, np.ndarray) and given.dtype == _AMOUNT and given.shape in ((0,), (n,))):
            raise PlacementError(
                f"{source} returns a placement of {n} rows whose {name} is {_shown(given)}; expected a float32 for "
                "each row, NaN for what was declared, or none at all, as Placement.of makes them."
            )
    if len(answer.partner) not in (0, len(answer.set_jobs)):
        raise PlacementError(
            f"{source} returns a placement that sets {len(answer.set_jobs)} jobs and has {len(answer.partner)} "
            "partners; expected one for each, -1 for none, or no partners at all."
        )
    _refuse_unsound(answer, source=source)
    return answer


def _refuse_unsound(answer: Placement, *, source: str) -> None:
    """Raise if repairs, reasons or the moment of the next decision are of another kind."""
    repairs, reasons, again_s = answer.repairs, answer.reasons, answer.again_s
    if not (isinstance(repairs, np.ndarray) and repairs.ndim == 1 and repairs.dtype == REPAIR):
        raise PlacementError(
            f"{source} returns a placement whose repairs are {_shown(repairs)}; expected an array as "
            "repairs_of makes it."
        )
    sound = isinstance(reasons, tuple) and all(
        isinstance(each, Reason)
        and isinstance(each.job, int | np.integer)
        and isinstance(each.text, str)
        and isinstance(each.speed, float)
        for each in reasons
    )
    if not sound:
        raise PlacementError(
            f"{source} returns a placement whose reasons are {_shown(reasons)}; expected a tuple of Reason(job, text) "
            "or Reason(job, text, speed), with steps/s as a float."
        )
    if not isinstance(again_s, int | float | np.number) or again_s != again_s:
        raise PlacementError(
            f"{source} returns a placement whose again_s is {_shown(again_s)}; expected seconds since the run began, "
            "or inf."
        )


def speeds_of(model: SpeedModel, running: Running, *, jobs: Jobs) -> Floats:
    """Return the steps per second that a model tells of running jobs, (J,).

    Raise InputError if they are not J finite numbers >= 0 (rounding apart); it names the model, a job and its value.
    """
    speeds = model.speeds(running)
    if not _sound_array(speeds, len(running.job)):
        raise InputError(_unsound("speeds() gives", "steps per second", model, speeds, running.job, jobs))
    return speeds


def rates_of(model: ChangeModel, running: Running, *, jobs: Jobs) -> tuple[Floats, Floats]:
    """Return the steps per second that a model tells of running jobs and the paces of their changes, (J,) each.

    Raise InputError as `speeds_of`.
    """
    speeds, paces = model.rates(running)
    for values, unit in ((speeds, "steps per second"), (paces, "as the pace of its change")):
        if not _sound_array(values, len(running.job)):
            raise InputError(_unsound("rates() gives", unit, model, values, running.job, jobs))
    return speeds, paces


def refuse_unsound_model(model: SpeedModel, *, runs_on: object, shape: tuple[int, int], jobs: Jobs) -> None:
    """Raise if what a model tells of (N, T) jobs and device types is not a table of that shape, or strands a job.

    Raise InputError, which names the model and the first such job.
    """
    what = f"speed model {type(model).__name__}"
    if not isinstance(runs_on, np.ndarray) or runs_on.shape != shape or runs_on.dtype != np.bool_:
        told = f"{runs_on.shape} of {runs_on.dtype}" if isinstance(runs_on, np.ndarray) else f"{_shown(runs_on)}"
        raise InputError(f"{what}: runs_on() returns {told}; expected an array of bool with the shape {shape}.")
    stranded = np.flatnonzero(~runs_on.any(axis=1))
    if len(stranded):
        raise InputError(
            f"{what}: job {jobs.id[stranded[0]]} runs on no device type of the cluster; let runs_on() name one, or "
            "drop the job."
        )


def _shown(thing: object) -> str:
    """Return the beginning of what something looks like, in one line."""
    return " ".join(repr(thing).split())[:80]


def _sound_array(values: object, n: int) -> bool:
    """Return whether values are n finite numbers that are not negative."""
    right = isinstance(values, np.ndarray) and values.dtype == _FLOAT and values.shape == (n,)
    return bool(right and _first_unsound(cast("Floats", values)) < 0)


@kernel
def _first_unsound(values: Floats) -> int:
    """Return where the first value is that is negative or no finite number, -1: none."""
    for i in range(len(values)):
        if not (values[i] >= -1e-9 and values[i] < np.inf):
            return i
    return -1


def _unsound(said: str, unit: str, model: object, values: object, numbers: Ints, jobs: Jobs) -> str:
    """Return what is wrong with the answer of a model."""
    what, n = f"speed model {type(model).__name__}: {said}", len(numbers)
    asked = f"it was asked about {n} jobs, the first is job {jobs.id[numbers[0]]}" if n else "it was asked about no job"
    if not isinstance(values, np.ndarray):
        return f"{what} {_shown(values)}; expected an array of {n} float64 ({asked})."
    if values.shape != (n,) or values.dtype != _FLOAT:
        return f"{what} an array of {values.dtype} with the shape {values.shape}; expected float64 and ({n},): {asked}."
    at = _first_unsound(values)
    return (
        f"{what} job {jobs.id[numbers[at]]} {values[at]:g} {unit}; expected a finite number >= 0, 0: it stands still."
    )

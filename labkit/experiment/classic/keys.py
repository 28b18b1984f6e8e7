"""What jobs are ordered by, as the columns of a snapshot have it."""

from __future__ import annotations

from labkit.core.clock import steps_at
from labkit.core.work_left import believed_left, is_overdue
from labkit.experiment.classic.nouns import Belief, Trace
from labkit.kernels import inner, kernel
from labkit.schedulers.rule import BY_ARRIVAL, BY_DURATION, BY_REMAINING


@inner(_nrt=False)
def _left(j: int, trace: Trace, mind: Belief, now_s: float) -> float:
    """Return the declared steps that a job has left; negative where it outlived them."""
    return float(trace.total_steps[j] - steps_at(mind.belief[j], now_s))


@kernel(_nrt=False)
def has_turned(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> bool:
    """Return whether the key of a job stays as it is from now on: it is overdue, or in the second queue."""
    if by == BY_REMAINING:
        return is_overdue(trace.total_steps[j], _left(j, trace, mind, now_s))
    at = mind.belief[j]
    return bool(at.attained_gpu_s + at.held_gpus * (now_s - at.held_since_s) >= threshold)


@inner(_nrt=False)
def key_of(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> float:
    """Return what a job is ordered by, the least first."""
    if by == BY_ARRIVAL:
        return 0.0
    if by == BY_DURATION:
        return float(trace.duration_s[j])
    if by == BY_REMAINING:
        left = believed_left(trace.total_steps[j], _left(j, trace, mind, now_s))
        return float(trace.duration_s[j] * (left / trace.total_steps[j]))
    return 1.0 if has_turned(by, j, trace, mind, now_s, threshold) else 0.0

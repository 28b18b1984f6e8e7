"""Windows of a trace: parts of equal length that stand in for seeds where jobs were recorded, not drawn."""

from __future__ import annotations

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs


def window(jobs: Jobs, number: int, *, n_windows: int, n_jobs: int | None = None) -> Jobs:
    """Return one of several windows of a trace, its first job arriving at time 0.

    Windows do not overlap, and are spread evenly over the trace: the first begins with its first job, the last ends
    with its last one. Times that the trace recorded move with the arrivals. A job that comes after one outside the
    window does not wait for it.

    Parameters
    ----------
    jobs : Jobs
        The whole trace, by arrival.
    number : int
        Which window, from 0 on.
    n_windows : int
        How many there are.
    n_jobs : int, optional
        Jobs in each; by default as many as fit.

    Raises
    ------
    InputError
        If there is no such window, or the trace has too few jobs for them.

    Examples
    --------
    >>> trace = Jobs.of(arrival_s=[0, 5, 9, 12, 20], total_steps=10)
    >>> [window(trace, n, n_windows=2, n_jobs=2).arrival_s.tolist() for n in (0, 1)]
    [[0.0, 5.0], [0.0, 8.0]]
    """
    of = len(jobs) // n_windows if n_jobs is None else n_jobs
    if of < 1 or of * n_windows > len(jobs):
        raise InputError(
            f"{jobs.name} has {len(jobs):,} jobs; {n_windows} windows of {max(of, 1):,} need "
            f"{n_windows * max(of, 1):,}. Ask for fewer or smaller ones, such as --of {len(jobs) // n_windows}."
        )
    if not 0 <= number < n_windows:
        raise InputError(f"seed {number} is no window of {jobs.name}; expected 0 to {n_windows - 1}.")
    first = 0 if n_windows == 1 else round(number * (len(jobs) - of) / (n_windows - 1))
    part = jobs.take(np.arange(first, first + of))
    from_s = part.arrival_s[0]
    return part.with_columns(
        arrival_s=part.arrival_s - from_s, begin_s=part.begin_s - from_s,
        recorded_start_s=part.recorded_start_s - from_s, zero_s=part.zero_s and part.zero_s + from_s,
    )  # fmt: skip

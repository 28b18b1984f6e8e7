"""One job of a trace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One job, for people; schedulers read the columns of `Jobs`."""

    number: int
    id: str
    model: str
    user: str
    arrival_s: float
    total_steps: float
    duration_s: float
    n_workers: int
    n_ps: int
    max_workers: int
    max_ps: int
    gpus_per_worker: float
    weight: float

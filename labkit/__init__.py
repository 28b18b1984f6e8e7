"""labkit: a laboratory for deep-learning cluster scheduling.

>>> import labkit
>>> jobs = labkit.Jobs.of(arrival_s=[0, 10], total_steps=[60, 30], duration_s=[60, 30])
>>> run = labkit.simulate(jobs, cluster="no_network(1)", scheduler="fifo")
>>> run.summary["mean_jct_s"]
45.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit import early, kernel_cache

if TYPE_CHECKING:
    from labkit.core import Cluster, Gangs, Jobs, Placement, Snapshot
    from labkit.experiment import Experiment, Grid, Session, at_events, compare, every_slot, replay, simulate, sweep
    from labkit.experiment.auto import auto
    from labkit.results.store import load
    from labkit.schedulers import make as scheduler
    from labkit.topology import build as cluster
    from labkit.workloads import read

early.arm()
kernel_cache.use()

_HOMES = {
    "Cluster": ("labkit.core", "Cluster"),
    "Experiment": ("labkit.experiment", "Experiment"),
    "Gangs": ("labkit.core", "Gangs"),
    "Grid": ("labkit.experiment", "Grid"),
    "Jobs": ("labkit.core", "Jobs"),
    "Placement": ("labkit.core", "Placement"),
    "Session": ("labkit.experiment", "Session"),
    "Snapshot": ("labkit.core", "Snapshot"),
    "at_events": ("labkit.experiment", "at_events"),
    "auto": ("labkit.experiment.auto", "auto"),
    "cluster": ("labkit.topology", "build"),
    "compare": ("labkit.experiment", "compare"),
    "every_slot": ("labkit.experiment", "every_slot"),
    "load": ("labkit.results.store", "load"),
    "read": ("labkit.workloads", "read"),
    "replay": ("labkit.experiment", "replay"),
    "scheduler": ("labkit.schedulers", "make"),
    "simulate": ("labkit.experiment", "simulate"),
    "sweep": ("labkit.experiment", "sweep"),
}
"""What `import labkit` offers, loaded when it is first used."""

__all__ = [
    "Cluster",
    "Experiment",
    "Gangs",
    "Grid",
    "Jobs",
    "Placement",
    "Session",
    "Snapshot",
    "at_events",
    "auto",
    "cluster",
    "compare",
    "every_slot",
    "load",
    "read",
    "replay",
    "scheduler",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit' has no attribute '{name}'")
    home, attribute = _HOMES[name]
    return getattr(import_module(home), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]

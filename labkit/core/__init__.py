"""Nouns and protocols: what a cluster, a job, a snapshot, a placement and an event are, and what each part offers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError, LabkitError, PlacementError, ProfileError, StalledError, TraceError
from labkit.core.events import EVENT, Cause, EventLog, Events, Kind, Quantity, Role
from labkit.core.job import Job
from labkit.core.jobs import Jobs
from labkit.core.placement import Gangs, Placement, Reason, Repair, repairs_of
from labkit.core.protocols import Backend, Placer, Scheduler, SpeedModel
from labkit.core.running import Running

if TYPE_CHECKING:
    from labkit.core.job_columns import JobColumns
    from labkit.core.ledger import Ledger
    from labkit.core.pod_snapshot import PodSnapshot
    from labkit.core.snapshot import Snapshot
    from labkit.core.trial import Trial

__all__ = [
    "EVENT",
    "Backend",
    "Cause",
    "Cluster",
    "EventLog",
    "Events",
    "Gangs",
    "InputError",
    "Job",
    "JobColumns",
    "Jobs",
    "Kind",
    "LabkitError",
    "Ledger",
    "Network",
    "Placement",
    "PlacementError",
    "Placer",
    "PodSnapshot",
    "ProfileError",
    "Quantity",
    "Reason",
    "Repair",
    "Role",
    "Running",
    "Scheduler",
    "Snapshot",
    "SpeedModel",
    "StalledError",
    "TraceError",
    "Trial",
    "repairs_of",
]

_WITH_KERNELS = {
    "JobColumns": "job_columns",
    "Ledger": "ledger",
    "PodSnapshot": "pod_snapshot",
    "Snapshot": "snapshot",
    "Trial": "trial",
}


def __getattr__(name: str) -> Any:
    """Import what brings numba along only when it is asked for: a process that trains needs none of it."""
    if name not in _WITH_KERNELS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"labkit.core.{_WITH_KERNELS[name]}"), name)

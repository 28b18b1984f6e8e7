"""Nouns and protocols: what a cluster, a job, a snapshot, a placement and an event are, and who offers what."""

from labkit.core.cluster import Cluster, Network
from labkit.core.errors import InputError, LabkitError, PlacementError, ProfileError, StalledError, TraceError
from labkit.core.events import EVENT, EventLog, Events, Kind, Role
from labkit.core.jobs import Job, Jobs
from labkit.core.ledger import Ledger
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Backend, Placer, Running, Scheduler, SpeedModel
from labkit.core.snapshot import JobColumns, Snapshot

__all__ = [
    "EVENT",
    "Backend",
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
    "ProfileError",
    "Role",
    "Running",
    "Scheduler",
    "Snapshot",
    "SpeedModel",
    "StalledError",
    "TraceError",
]

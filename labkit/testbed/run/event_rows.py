"""Events of a run on machines, built one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role, events
from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.run.amounts import Given, by_row
from labkit.testbed.run.training import site_names


def row(kind: Kind, **columns: Any) -> Events:
    """Return one event."""
    made = events(1)
    made["kind"] = kind
    for name, value in columns.items():
        made[name] = value
    return made


def at(rows: list[Events], time_s: float) -> list[Events]:
    """Set the time of events."""
    for each in rows:
        each["time_s"] = time_s
    return rows


def seats(
    cluster: Cluster, job: int, place: JobPlacement, *, with_ps: bool, amounts: Sequence[Given] = ()
) -> list[Events]:  # fmt: skip
    """Return PLACED rows for the tasks of a job; a PS that the job did not ask for has none."""
    names = site_names(cluster)
    return [
        row(Kind.PLACED, job=job, role=role, group=names.index(site), value=float(n), cpus=cpus, memory_gb=memory_gb)
        for site, counts in place.items()
        for role in (Role.WORKER, Role.PS)
        if counts[role] and (role == Role.WORKER or with_ps)
        for n, cpus, memory_gb in by_row(amounts, site, role, counts[role])
    ]


def hosts_of(place: JobPlacement) -> set[str]:
    """Return the hosts that a placement has tasks on."""
    return {site.rpartition("/")[0] for site, counts in place.items() if any(counts)}


def wall_s() -> float:
    """Return seconds since 1970, which another process can continue."""
    return datetime.now(UTC).timestamp()

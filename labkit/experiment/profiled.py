"""A simulation of a measured testbed: what its profile says, where nothing else was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, ProfileError
from labkit.core.jobs import Jobs
from labkit.core.protocols import ChangeModel, SpeedModel
from labkit.simulator import Overheads
from labkit.speed.interference.levels import Level
from labkit.speed.interference.measured import of_testbed
from labkit.speed.profiled import ProfiledSpeed, TestbedProfile, read
from labkit.speed.profiled.overheads import typical
from labkit.topology import presets


def profiled(
    jobs: Jobs,
    profile: TestbedProfile | str | Path,
    *,
    cluster: Cluster | str | None,
    speed: SpeedModel | str,
    options: Mapping[str, Any],
) -> tuple[Cluster, SpeedModel | str, dict[str, Any]]:
    """Return cluster, speed model and options of an experiment: those given, else the profile's.

    Raises
    ------
    InputError
        If the profile cannot be read, or does not know a model of the jobs.
    """
    if not isinstance(profile, TestbedProfile | str | Path):
        raise InputError(f"profile is a {type(profile).__name__}; expected a name or a file, or a TestbedProfile.")
    known = profile if isinstance(profile, TestbedProfile) else read(profile)
    there = known.cluster() if cluster is None else presets.build(cluster) if isinstance(cluster, str) else cluster
    made = ProfiledSpeed(jobs, there, profile=known) if speed == "auto" else speed
    if isinstance(made, ChangeModel):  # it knows what starts and rescales take beside others
        return there, made, dict(options)
    return there, made, {**options, "overheads": options.get("overheads") or overheads(known)}


def without_cold_starts(profile: TestbedProfile | str | Path) -> TestbedProfile:
    """Return a profile for a run whose hosts were warm when it began, and stayed so."""
    if not isinstance(profile, TestbedProfile | str | Path):
        raise InputError(f"profile is a {type(profile).__name__}; expected a name or a file, or a TestbedProfile.")
    known = profile if isinstance(profile, TestbedProfile) else read(profile)
    return replace(known, overheads=[row for row in known.overheads if row.kind != "cold_start"])


def interference_of(speed: SpeedModel) -> Level | None:
    """Return the interference in a testbed's profile, for schedulers; None: too little, or no profile.

    >>> interference_of(None) is None
    True
    """
    if not isinstance(speed, ProfiledSpeed):
        return None
    try:
        found = of_testbed(speed.profile)
    except ProfileError:
        return None
    return Level(speed.profile.name, found.model, found.uses, measured=True)


def overheads(profile: TestbedProfile) -> Overheads:
    """Return the costs of starts and rescales where the speed model has none: the same whatever runs beside them."""
    return Overheads(
        start_s=typical(profile, "start"), restart_s=typical(profile, "restart"), rescale_s=typical(profile, "rescale")
    )

"""Device types that jobs demand: which types of a cluster a name means, and where a job may run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Ints

_WORD: Final = re.compile(r"[a-z0-9]+")


def same_type(name: str, device_type: str) -> bool:
    """Return whether two names may mean the same kind of GPU: one has all the words of the other.

    >>> same_type("NVIDIA-A100-SXM4-80GB", "a100"), same_type("tesla_v100", "a100")
    (True, False)
    """
    mine, theirs = set(_WORD.findall(name.casefold())), set(_WORD.findall(device_type.casefold()))
    return bool(mine and theirs) and (mine <= theirs or theirs <= mine)


def type_index(names: Iterable[str], device_types: tuple[str, ...]) -> Ints:
    """Return which device type each name means, (N,): the one of that name, else the first that fits; -1: none."""
    plain = [kind.casefold() for kind in device_types]
    found: dict[str, int] = {}
    for name in dict.fromkeys(names):
        exact = [t for t, kind in enumerate(plain) if kind == name.casefold()]
        found[name] = next(iter(exact or [t for t, kind in enumerate(plain) if same_type(name, kind)]), -1)
    return np.array([found[name] for name in names], np.int32)


def may_run_on(jobs: Jobs, cluster: Cluster) -> Bools:
    """Return on which device types jobs may run by what they demand, (N, T).

    A job that demands none of the cluster's types may run on any (`unmet_types` tells so).
    """
    allowed = np.ones((len(jobs), len(cluster.device_types)), np.bool_)
    for name in dict.fromkeys(jobs.device_type.tolist()):
        fits = [same_type(name, kind) for kind in cluster.device_types]
        if any(fits):
            allowed[jobs.device_type == name] = fits
    return allowed


def could_run_on(jobs: Jobs, cluster: Cluster) -> Bools:
    """Return on which device types of which the cluster has a group jobs may run by what they demand, (N, T)."""
    there = np.isin(np.arange(len(cluster.device_types)), cluster.group_type)
    return may_run_on(jobs, cluster) & there


def of_any_type(jobs: Jobs) -> tuple[Jobs, int]:
    """Return the same jobs without the device types that they demand, and how many demanded one.

    >>> jobs, n = of_any_type(Jobs.of(arrival_s=[0, 0], total_steps=60, device_type=["v100", ""]))
    >>> jobs.device_type.tolist(), n
    (['', ''], 1)
    """
    demanding = jobs.device_type != ""
    return jobs.with_columns(device_type=np.full(len(jobs), "", object)), int(demanding.sum())


def unmet_types(jobs: Jobs, cluster: Cluster) -> list[str]:
    """Return a sentence if jobs demand device types that a cluster lacks."""
    asked = Counter(jobs.device_type.tolist())
    lacking = {
        name: n for name, n in asked.items() if name and not any(same_type(name, kind) for kind in cluster.device_types)
    }
    if not lacking:
        return []
    shown = ", ".join(
        f"{name} ({n:,} of {len(jobs):,} jobs)" for name, n in sorted(lacking.items(), key=lambda item: -item[1])[:5]
    )
    return [
        f"device types that jobs demand and {cluster.name} lacks: {shown}; these jobs may run on any of its types "
        f"({', '.join(cluster.device_types)})."
    ]

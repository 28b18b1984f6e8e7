"""Hypothesis strategies for clusters, jobs and scenes; needs `pip install 'cluster-labkit[dev]'`.

Sizes are drawn (and shrunk) by Hypothesis, the rest follows from a drawn seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.core import Cluster, Jobs, Snapshot
from labkit.testing import scenes as made
from labkit.testing.scenes import DecisionScene


def rngs() -> st.SearchStrategy[np.random.Generator]:
    """Return a strategy for random generators."""
    return st.integers(0, 2**16).map(np.random.default_rng)


@st.composite
def clusters(draw: st.DrawFn, *, max_machines: int = 5, max_types: int = 3) -> Cluster:
    """Draw a cluster of up to so many machines of several kinds and device types."""
    n_machines, n_types = draw(st.integers(1, max_machines)), draw(st.integers(1, max_types))
    return made.random_cluster(draw(rngs()), n_machines=n_machines, n_types=n_types)


@st.composite
def jobs(draw: st.DrawFn, *, cluster: Cluster, max_jobs: int = 12, right: bool = False) -> Jobs:
    """Draw jobs that fit the cluster, each alone, on every device type; `right`: no declaration is wrong."""
    n = draw(st.integers(1, max_jobs))
    runs_on = np.ones((n, len(cluster.device_types)), np.bool_)
    return made.random_jobs(draw(rngs()), cluster=cluster, runs_on=runs_on, right=right)


@st.composite
def scenes(draw: st.DrawFn, *, max_jobs: int = 12, max_decisions: int = 8, pairs: bool = False) -> DecisionScene:
    """Draw a cluster, jobs, and what happened in some random decisions; with `pairs` some jobs share their GPUs."""
    sizes: dict[str, Any] = {
        "n_machines": draw(st.integers(1, 5)),
        "n_types": draw(st.integers(1, 3)),
        "n_jobs": draw(st.integers(1, max_jobs)),
        "n_decisions": draw(st.integers(0, max_decisions)),
    }
    return made.random_scene(draw(rngs()), **sizes, pairs=pairs)


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Return a strategy for snapshots of partly run jobs."""
    return scenes().map(lambda scene: scene.snapshot())

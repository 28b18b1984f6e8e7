"""What starts and rescales cost on a measured testbed, in the simulator's words."""

from __future__ import annotations

import numpy as np

from labkit.speed.profiled.nouns import Overhead, TestbedProfile


def typical(profile: TestbedProfile, kind: str) -> float:
    """Return the seconds that something takes, of all models that it was measured on: median of their medians."""
    found = [row.median_s for row in rows(profile, kind)]
    return float(np.median(found)) if found else 0.0


def rows(profile: TestbedProfile, kind: str) -> list[Overhead]:
    """Return the measurements of a kind; restarts that were not measured take as long as starts."""
    found = [row for row in profile.overheads if row.kind == kind]
    return found or ([row for row in profile.overheads if row.kind == "start"] if kind == "restart" else [])

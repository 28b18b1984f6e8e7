"""The profile of a testbed: what was measured on it, its file, and the speed model that a simulation takes from it.

`profile` says what a measurement is, reads and writes a profile as JSON; `contention` divides the cores of a machine;
`model` is the speed model and fills in gangs that were not measured, `overheads` says what starts and rescales cost.
`labkit profile` measures one.
"""

from labkit.speed.profiled.contention import max_min
from labkit.speed.profiled.model import ProfiledSpeed
from labkit.speed.profiled.profile import (
    ColocationSample,
    GangMeasurement,
    LinkMeasurement,
    Overhead,
    Pool,
    Provenance,
    TestbedProfile,
    YardstickSample,
    read,
    write,
)

__all__ = [
    "ColocationSample", "GangMeasurement", "LinkMeasurement", "Overhead", "Pool", "ProfiledSpeed", "Provenance",
    "TestbedProfile", "YardstickSample", "max_min", "read", "write",
]  # fmt: skip

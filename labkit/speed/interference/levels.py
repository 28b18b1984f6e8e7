"""How much co-located jobs slow each other in a run: levels by name, or fitted to a file of measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import unknown
from labkit.core.jobs import Jobs
from labkit.core.life import Contention
from labkit.speed.interference.measured import MeasuredInterference, read
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.use import Interference, ModelUse
from labkit.workloads import catalogue

MILD: Final = "mild"
CALIBRATED: Final = "calibrated"
NONE: Final = "none"
CALIBRATION: Final = 2.6
"""How many times the catalogue's use of cores and PCIe tasks have under "calibrated".

One number, fitted by us to one experiment: 8 jobs on 4 servers are slowed by 30% when packed [1]_; see
`labkit.experiment.motivation`. With the catalogue's own figures, of containers capped at two cores, no job slows
another.

.. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. III.
"""

FACTORS: Final = {MILD: 1.0, CALIBRATED: CALIBRATION}
"""Level -> how many times the catalogue's use its tasks have; the fitted model is the same."""

NAMES: Final = (NONE, *FACTORS)


@dataclass(frozen=True, eq=False, slots=True)
class Level:
    """What is known of co-located jobs: the fitted model, and what tasks use."""

    name: str
    """"mild", "calibrated", or the file that it was fitted to."""
    model: InterferenceModel
    """A fitted one."""
    uses: Mapping[str, ModelUse] | None = None
    """What the tasks of a model use, by its name; the others, or with None all, as `task_use` finds it."""
    measured: bool = False
    """It was fitted to a file: schedulers know from there what tasks use, and not from the catalogue alone."""

    @property
    def times(self) -> float:
        """How many times the use that schedulers are shown tasks have in truth."""
        return 1.0 if self.measured else FACTORS.get(self.name, 1.0)

    @property
    def declared(self) -> Mapping[str, ModelUse] | None:
        """What is known before a run of what tasks use, as `task_use` takes it: measurements, else the catalogue's.

        >>> level("calibrated").declared is None
        True
        """
        return self.uses if self.measured else None

    def slowdown(self, jobs: Jobs, cluster: Cluster) -> Interference:
        """Return the slowdown of running jobs on a cluster, as `StepTime` takes it."""
        return Interference(self.model, jobs, cluster, uses=self.uses)

    def __str__(self) -> str:
        return self.name


def digest_of(level: Contention | None) -> str:
    """Return the identity of a level: its name, or a digest of its measurements.

    >>> digest_of(None), digest_of(level("mild"))
    ('none', 'level mild')
    """
    if level is None:
        return NONE
    if level.declared is None:  # fits differ in their last digits from machine to machine, names do not
        return f"level {level.name}"
    parts = [level.model.kind, *(np.asarray(c).tolist() for c in (level.model.cpu_, level.model.pcie_))]
    uses = sorted((name, use.worker_cores, use.ps_cores, use.pcie_gbps) for name, use in (level.uses or {}).items())
    return hashlib.sha256(json.dumps([parts, uses]).encode()).hexdigest()[:16]


def level(what: str | Path | Level | None) -> Level | None:
    """Return a level of interference; None for "none".

    Parameters
    ----------
    what : str, path or Level
        "none"; "mild": the two-stage model of the synthetic server of `measured`, with the catalogue's use of cores and
        PCIe; "calibrated": the same with `CALIBRATION` times that use; or a file: a table with the columns of
        `Profile.of` (.csv), or the profile of a testbed that `labkit profile` wrote (.json).

    Raises
    ------
    InputError
        If there is no such level or file, with the nearest name.
    ProfileError
        If the file is no profile, or has too few measurements.

    Examples
    --------
    >>> round(level("calibrated").uses["vgg-16"].worker_cores, 3)
    1.872
    """
    if what is None or isinstance(what, Level):
        return what
    text = str(what)
    if text == NONE:
        return None
    if text in FACTORS:
        return _named(text)
    if not is_file(what):
        raise unknown("level of interference", text, [*NAMES, "FILE.csv", "FILE.json"])
    found: MeasuredInterference = read(text)
    return Level(Path(text).name, found.model, found.uses, measured=True)


def is_file(what: object) -> bool:
    """Return whether a level is a file, whatever its name: it has an ending, or lies there.

    >>> is_file("calibrated"), is_file("profiles/lab.json")
    (False, True)
    """
    if not isinstance(what, str | Path) or str(what) in NAMES:
        return False
    return Path(what).suffix.lower() in (".csv", ".json") or Path(what).is_file()


@cache
def mild_model() -> InterferenceModel:
    """Return the two-stage model fitted to the synthetic server with mild contention."""
    from labkit.speed.interference.measured import profile

    return InterferenceModel().fit(profile("mild", rng=np.random.default_rng(0)))


@cache
def _named(name: str) -> Level:
    times = FACTORS[name]
    uses = {
        each.name: ModelUse(times * each.worker_cores, times * each.ps_cores, times * each.pcie_gbps)
        for each in catalogue.models()
    }
    return Level(name, mild_model(), uses if times != 1 else None)

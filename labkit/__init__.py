"""labkit: a laboratory for deep-learning cluster scheduling.

>>> import labkit
>>> jobs = labkit.Jobs.of(arrival_s=[0, 10], total_steps=[60, 30], duration_s=[60, 30])
>>> run = labkit.simulate(jobs, cluster="no_network(1)", scheduler="fifo")
>>> run.summary["mean_jct_s"]
45.0

The names below are what a notebook or a script needs; docs/one-surface.md has each beside the command that says the
same. The packages (`labkit.plots`, `labkit.results`, `labkit.topology`, ...) are there too, without another import.
Everything is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.system import early

if TYPE_CHECKING:
    from labkit import core as core
    from labkit import elastic as elastic
    from labkit import experiment as experiment
    from labkit import learning as learning
    from labkit import notebook as notebook
    from labkit import placers as placers
    from labkit import plots as plots
    from labkit import results as results
    from labkit import schedulers as schedulers
    from labkit import simulator as simulator
    from labkit import solvers as solvers
    from labkit import speed as speed
    from labkit import testbed as testbed
    from labkit import testing as testing
    from labkit import topology as topology
    from labkit import workloads as workloads
    from labkit.core import Cluster, Gangs, Jobs, Placement, Snapshot
    from labkit.elastic import train
    from labkit.experiment import (
        Experiment,
        Grid,
        Scenario,
        Session,
        at_events,
        attach,
        compare,
        deploy,
        every_slot,
        fidelity,
        replay,
        simulate,
        sweep,
        tune,
    )
    from labkit.experiment.auto import auto
    from labkit.notebook import LabApp
    from labkit.results import load, run_table
    from labkit.schedulers import make
    from labkit.testbed.laptop import Bed
    from labkit.testbed.profiling.measure import profile
    from labkit.testbed.run.training import TrainingTable
    from labkit.testing import check_scheduler
    from labkit.topology import build
    from labkit.workloads import read

early.arm()

_HOMES = {
    "Bed": "testbed.laptop",
    "Cluster": "core",
    "Experiment": "experiment",
    "Gangs": "core",
    "Grid": "experiment",
    "Jobs": "core",
    "LabApp": "notebook",
    "Placement": "core",
    "Scenario": "experiment",
    "Session": "experiment",
    "Snapshot": "core",
    "TrainingTable": "testbed.run.training",
    "at_events": "experiment",
    "attach": "experiment",
    "auto": "experiment.auto",
    "build": "topology",
    "check_scheduler": "testing",
    "compare": "experiment",
    "deploy": "experiment",
    "every_slot": "experiment",
    "fidelity": "experiment",
    "load": "results",
    "make": "schedulers",
    "profile": "testbed.profiling.measure",
    "read": "workloads",
    "replay": "experiment",
    "run_table": "results",
    "simulate": "experiment",
    "sweep": "experiment",
    "train": "elastic",
    "tune": "experiment",
}
"""What `import labkit` offers, and the package or module of labkit that it is from."""

PACKAGES = (
    "core", "elastic", "experiment", "learning", "notebook", "placers", "plots", "results", "schedulers", "simulator",
    "solvers", "speed", "testbed", "testing", "topology", "workloads",
)  # fmt: skip
"""Packages that are loaded when they are first used, as `labkit.plots`."""

_FORMER = {"cluster": "build", "scheduler": "make"}
"""Former names, and what they are now."""

__all__ = [
    "Bed",
    "Cluster",
    "Experiment",
    "Gangs",
    "Grid",
    "Jobs",
    "LabApp",
    "Placement",
    "Scenario",
    "Session",
    "Snapshot",
    "TrainingTable",
    "at_events",
    "attach",
    "auto",
    "build",
    "check_scheduler",
    "compare",
    "deploy",
    "every_slot",
    "fidelity",
    "load",
    "make",
    "profile",
    "read",
    "replay",
    "run_table",
    "simulate",
    "sweep",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in PACKAGES:
        return import_module(f"labkit.{name}")
    if name in _HOMES:
        return getattr(import_module(f"labkit.{_HOMES[name]}"), name)
    now = f"; it is labkit.{_FORMER[name]} now" if name in _FORMER else ""
    raise AttributeError(f"module 'labkit' has no attribute '{name}'{now}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *PACKAGES})

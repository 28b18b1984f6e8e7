"""The main job: the shipped trace and the cluster that `labkit demo` compares schedulers on."""

from __future__ import annotations

from pathlib import Path

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.workloads import readers

CLUSTER = "demo"
TRACE = Path(__file__).parents[2] / "traces" / "demo.csv"


def trace() -> Jobs:
    """Return the jobs of the demo.

    Raises
    ------
    InputError
        If labkit was installed without its traces/ folder.
    """
    if not TRACE.is_file():
        raise InputError("the demo's trace is not there; run it in a checkout of labkit, with 'make demo'.")
    return readers.read(TRACE)

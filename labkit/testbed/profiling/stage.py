"""A testbed in use for measurements: connections, agents, and a run of its own on all hosts."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from labkit.core.jobs import Jobs
from labkit.speed.profiled import YardstickSample
from labkit.testbed.agent.shapes import YardstickReading
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.gangs import MeasuredKind
from labkit.testbed.profiling.usage import Look
from labkit.testbed.run.job_events import JobEvent
from labkit.testbed.run.remote_job import OnUpdate, RemoteJob
from labkit.testbed.run.session import TestbedSession
from labkit.testbed.run.training import TrainingTable

LEASE_S = 30.0
"""Lease of the run: seconds after the end of this process until its processes on hosts end."""

MANY = 10_000_000
"""Updates of a job that ends by a stop."""


class ProfilingSession:
    """A testbed while it is measured.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    kinds : sequence of MeasuredKind
        Kinds of jobs that will train.
    training : TrainingTable
        How they train.

    Attributes
    ----------
    jobs : Jobs
        A job for each kind, in order.
    machines : dict
        Machine -> hosts: hosts with the same kernel are one machine.
    readings : list of YardstickSample
        Of the yardsticks of all hosts so far.

    Raises
    ------
    InputError
        If a model is not known, or a host cannot be used; nothing runs then.
    """

    def __init__(self, inventory: Inventory, kinds: list[MeasuredKind], *, training: TrainingTable) -> None:
        self.inventory, self.cluster, self.kinds = inventory, inventory.cluster(), kinds
        self.jobs = Jobs.of(
            arrival_s=[0.0] * len(kinds), total_steps=MANY, model=[kind.model for kind in kinds],
            sync=[kind.sync for kind in kinds], n_ps=1, name="profile",
        )  # fmt: skip
        self.run = f"profile-{os.getpid()}-{secrets.token_hex(3)}"
        self.machines: dict[str, list[str]] = {}
        self.readings: list[YardstickSample] = []
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-profile-")))
            self._venue = TestbedSession(
                inventory, jobs=self.jobs, training=training, run=self.run, folder=folder, lease_s=LEASE_S,
                on_reading=self._take_reading,
            )  # fmt: skip
            stack.callback(self._venue.close)
            self.fleet, self.hosts = self._venue.fleet, self._venue.hosts
            for name in inventory.names:
                self.machines.setdefault(self.hosts.agent(name).hello.machine, []).append(name)
            self._stack = stack.pop_all()

    def deployment(self, number: int, *, on_update: OnUpdate, on_event: Callable[[JobEvent], None]) -> RemoteJob:
        """Return the job of a kind, not started yet."""
        return self._venue.deployment(number, on_update=on_update, on_event=on_event)

    def _take_reading(self, host: str, reading: YardstickReading) -> None:
        self.readings.append(YardstickSample(host=host, work_s=reading.work_s, busy_cores=reading.busy_cores))

    def look(self) -> Look:
        """Return the use of all hosts up to now."""
        return Look.at(self.hosts)

    def close(self) -> None:
        """End all processes of the session, and close its connections."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

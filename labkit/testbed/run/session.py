"""A testbed in use for running or measuring jobs: connections, agents, checkpoints and jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.inventory import Inventory
from labkit.testbed.run.agent_pool import AgentPool, Changed, OnReading, RunFence
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_events import JobEvent
from labkit.testbed.run.job_launcher import checked_gpus, parts_of_gpus
from labkit.testbed.run.job_messages import JobRequest
from labkit.testbed.run.own_scripts import STAGED, Staging
from labkit.testbed.run.remote_job import OnUpdate, RemoteJob
from labkit.testbed.run.this_machine import LocalFleet
from labkit.testbed.run.training import TrainingTable, gpus_of, sites_of
from labkit.testbed.ssh.fleet import Fleet

SETTLING_S: Final = 10.0
"""Seconds that the end of a run waits for a task that is being started."""


class TestbedSession:
    """All hosts of an inventory, ready for the jobs of a run.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    jobs : Jobs
        Jobs that may run there.
    training : TrainingTable
        How jobs train.
    run : str
        Name of the run on the hosts.
    folder : Path
        Folder of checkpoints here.
    lease_s : float
        Seconds a host keeps the run alive without a heartbeat from this process.
    changed : callable
        As `AgentPool` takes it.
    some : bool
        Start with the hosts that can be reached.
    fence : RunFence, optional
        The right to drive the run, where several processes could.
    on_reading : callable
        As `AgentPool` takes it.

    Attributes
    ----------
    notes : list of str
        Remarks on the hosts, in sentences.

    Raises
    ------
    InputError
        If a job cannot train, or a host cannot be used or has fewer GPUs than the inventory says; nothing runs, and
        nothing is connected then.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        jobs: Jobs,
        training: TrainingTable,
        run: str,
        folder: Path,
        lease_s: float,
        changed: Changed = lambda _host, _up, _why: None,
        some: bool = False,
        fence: RunFence | None = None,
        on_reading: OnReading = lambda _host, _reading: None,
    ) -> None:
        training.check(jobs)
        self.inventory, self.cluster, self.jobs, self.training = inventory, inventory.cluster(), jobs, training
        self.fleet = LocalFleet(inventory) if any(machine.local for machine in inventory) else Fleet(inventory)
        self.hosts = AgentPool(
            self.fleet, run=run, changed=changed, lease_s=lease_s, fence=fence, on_reading=on_reading
        )
        self.backups = CheckpointCache(self.fleet, folder, run=run)
        self._staging = Staging(self.fleet, folder.parent / STAGED)
        self._deployments: list[RemoteJob] = []
        try:
            self.hosts.get_ready(some=some)
            there = [machine for machine in inventory if machine.name not in self.hosts.absent]
            self.notes = checked_gpus(there, lambda host: self.hosts.agent(host).hello)
            self.notes += parts_of_gpus(jobs, inventory)
        except BaseException:
            self.close(end=False)
            raise
        self.hosts.watch()

    def deployment(
        self, number: int, *, on_update: OnUpdate, on_event: Callable[[JobEvent], None] = lambda _: None
    ) -> RemoteJob:
        """Return a job, not started yet; `on_update` and `on_event` are those of `RemoteJob`."""
        per_worker = float(self.jobs.worker_demand[number, GPUS])
        all_sites = sites_of(self.inventory, self.cluster, home="", on_gpus=per_worker > 0)

        def request(home: str, place: JobPlacement) -> JobRequest:
            sites = sites_of(self.inventory, self.cluster, home=home, on_gpus=per_worker > 0)
            return self.training.request(self.jobs, number, sites=sites, place=place)

        made = RemoteJob(
            number, hosts=self.hosts, backups=self.backups, bring=lambda home: self._bring(number, home),
            request=request, on_update=on_update, on_event=on_event,
            n_steps=self.training.n_steps(self.jobs, number), strategy=self.training.strategy,
            gpus=lambda host, place: gpus_of(all_sites, place, host=host, per_worker=per_worker),
        )  # fmt: skip
        self._deployments.append(made)
        return made

    def _bring(self, number: int, home: str) -> None:
        """Bring code and data of a job's own script to its home host, if it has one and they are not there."""
        for digest in self.training.contents(self.jobs, number):
            self._staging.bring(home, digest, below=self.hosts.agent(home).hello.folder)

    def close(self, *, end: bool = True) -> None:
        """Close all connections; with `end`, end all processes of this run on the hosts first."""
        for deployment in self._deployments:
            deployment.close()
        self.hosts.leave()
        if end:
            self._end()
        self.hosts.close()
        self.fleet.close()
        for deployment in self._deployments:
            deployment.join()

    def _end(self) -> None:
        """End the run on all hosts; twice if a task was being started: its host may not have known the run before."""
        busy = [deployment for deployment in self._deployments if deployment.busy]
        self.hosts.end(self.hosts.run)
        if busy:
            until_s = time.monotonic() + SETTLING_S
            for deployment in busy:
                deployment.join(max(until_s - time.monotonic(), 0.0))
            self.hosts.end(self.hosts.run)

"""The GPUs that a job holds on its hosts: requested before its workers start, released after they have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.agent.errors import AgentError, AgentRefused
from labkit.testbed.agent.shapes import GpuAsk, Hello
from labkit.testbed.doctor.findings import other_type
from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.training import ROUNDING

BUSY_S: Final = 75.0
"""Seconds to wait for GPUs that other tasks are leaving; a job that stops has 60 s to save its state."""
AGAIN_S: Final = 0.25

Asks = list[GpuAsk]
"""A number of GPUs of each device group, as the agent takes them."""
AsksOf = Callable[[str, JobPlacement], Asks]
"""From host and placement to the GPUs that a job needs there."""


class Claims:
    """The GPUs of one job, by host.

    Parameters
    ----------
    task : str
        The job, as agents know it.
    hosts : AgentPool
        Agents that assign GPUs.
    asks : callable
        GPUs that a placement needs on a host; none if workers compute on processors.
    wanted : callable
        Whether to go on waiting for GPUs that other tasks hold.

    Attributes
    ----------
    beside : str or None
        The job whose GPUs it shares.
    """

    def __init__(self, task: str, *, hosts: AgentPool, asks: AsksOf, wanted: Callable[[], bool] = lambda: True) -> None:
        self._task, self._hosts, self._asks, self._wanted = task, hosts, asks, wanted
        self.beside: str | None = None
        self._held: dict[str, Asks] = {}
        self._closed = threading.Event()

    def start(self, host: str, place: JobPlacement, do: Callable[[Asks], object]) -> None:
        """Start a task of the job with the GPUs that it needs; `do` gets them, and is repeated while they are busy."""
        asks = self._asks(host, place)
        self._patiently(lambda: do(asks))
        self._held[host] = asks

    def take(self, hosts: Iterable[str], places: Sequence[JobPlacement]) -> None:
        """Hold on some hosts the most that any of some placements needs.

        Raises
        ------
        AgentRefused
            If other tasks still hold them after `BUSY_S`.
        """
        for host in hosts:
            asks = _most([self._asks(host, place) for place in places])
            if asks != self._held.get(host, []):
                self._patiently(lambda host=host, asks=asks: self._claim(host, asks))  # type: ignore[misc]
                self._held[host] = asks

    def exceed(self, place: JobPlacement) -> bool:
        """Return whether the job holds other GPUs than a placement needs."""
        return any(held != self._asks(host, place) for host, held in self._held.items())

    def give_back(self, place: JobPlacement) -> None:
        """Hold what a placement needs, and no more; a host that cannot be reached keeps it until the job ends there."""
        for host, held in list(self._held.items()):
            asks = self._asks(host, place)
            self._held[host] = asks
            if asks != held:
                with suppress(AgentError, HostError):
                    self._claim(host, asks)

    def adopt(self, hosts: Iterable[str], place: JobPlacement) -> None:
        """Take over a job that runs: its agents know what it holds."""
        self._held = {host: self._asks(host, place) for host in hosts}

    def forget(self, host: str | None = None) -> None:
        """Forget what is held on a host, or on all: the job has ended there."""
        if host is None:
            self._held.clear()
        else:
            self._held.pop(host, None)

    def close(self) -> None:
        """Stop waiting for GPUs."""
        self._closed.set()

    def _claim(self, host: str, asks: Asks) -> None:
        self._hosts.agent(host).claim(self._hosts.run, task=self._task, gpus=asks, beside=self.beside)

    def _patiently(self, do: Callable[[], object]) -> None:
        """Call a function again until the GPUs that it needs are not busy any more."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                do()
            except AgentRefused as error:
                late = time.monotonic() > until or not self._wanted()
                if error.kind != "busy" or late or self._closed.wait(AGAIN_S):
                    raise
            else:
                return


def parts_of_gpus(jobs: Jobs, inventory: Inventory) -> list[str]:
    """Return notes on jobs that ask for parts of real GPUs, which are assigned whole."""
    wanted = jobs.worker_demand[:, GPUS]
    odd = np.flatnonzero(wanted % 1 > ROUNDING)
    if not len(odd) or not any(machine.host.real_gpus for machine in inventory):
        return []
    share = f"{wanted[odd[0]]:g} GPUs per worker"
    return [f"{len(odd)} jobs, the first is {jobs.id[odd[0]]}, ask for {share}: each gets whole GPUs of its own"]


def _most(asks: Sequence[Asks]) -> Asks:
    """Return what covers each of several needs.

    >>> _most([[{"n": 1, "of": [0, 1]}], [{"n": 2, "of": [0, 1]}, {"n": 1, "of": [2]}]])
    [{'n': 2, 'of': [0, 1]}, {'n': 1, 'of': [2]}]
    """
    found: dict[tuple[int, ...], int] = {}
    for ask in (ask for those in asks for ask in those):
        of = tuple(ask["of"])
        found[of] = max(found.get(of, 0), ask["n"])
    return [{"n": n, "of": list(of)} for of, n in sorted(found.items())]


def checked_gpus(machines: Iterable[Machine], hello: Callable[[str], Hello]) -> list[str]:
    """Compare the inventory with the GPUs that drivers report; return notes.

    Parameters
    ----------
    machines : iterable of Machine
        The hosts that answer.
    hello : callable
        From a host to the Hello of its agent.

    Raises
    ------
    InputError
        If hosts have fewer GPUs than the inventory says: each host, and its number of GPUs.
    """
    faults, notes = [], []
    for machine in machines:
        n_wanted = machine.host.real_gpus
        if not n_wanted:
            continue
        answer = hello(machine.name)
        found = sorted(answer.gpus, key=lambda gpu: gpu.index)
        if len(found) < n_wanted:
            why = f" ({answer.gpus_absent})" if answer.gpus_absent else ""
            faults.append(f"host {machine.name}: the inventory says gpus = {n_wanted}, its driver {len(found)}{why}")
        for name in dict.fromkeys(str(gpu.name) for gpu in found[:n_wanted]):
            if difference := other_type(machine.host.device_type, name):
                notes.append(f"host {machine.name}: {difference}")
        cut = [str(gpu.index) for gpu in found[:n_wanted] if gpu.mig]
        if cut:
            notes.append(f"host {machine.name}: GPU {', '.join(cut)} is cut by MIG, so it is not handed out")
    if faults:
        hint = 'correct the inventory; device_type = "cpu" lets workers compute on processor cores'
        raise InputError(f"{'; '.join(faults)} ({hint}).")
    return notes

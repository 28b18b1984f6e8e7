"""Where measurements take place: connections, agents, and a run of its own on all hosts, which ends with them."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from labkit.core.jobs import Jobs
from labkit.testbed.backups import Backups
from labkit.testbed.deployment import Deployment
from labkit.testbed.fleet import Fleet
from labkit.testbed.hosts import Hosts
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.gangs import Kind
from labkit.testbed.profiling.usage import Look
from labkit.testbed.progress import Told
from labkit.testbed.training import Place, Training, sites_of

LEASE_S = 30.0
"""All that was started ends so long after whoever measures is gone."""

MANY = 10_000_000
"""Steps of a job that is to be stopped."""


class Stage:
    """A testbed while it is measured.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    kinds : sequence of Kind
        What will train.
    training : Training
        How.

    Attributes
    ----------
    jobs : Jobs
        A job for each kind, in order.
    machines : dict
        Hosts by machine: those with the same boot id are one.

    Raises
    ------
    InputError
        If a model is not known, or a host cannot be used; nothing runs then.
    """

    def __init__(self, inventory: Inventory, kinds: list[Kind], *, training: Training) -> None:
        self.inventory, self.cluster, self.kinds, self.training = inventory, inventory.cluster(), kinds, training
        self.jobs = Jobs.of(
            arrival_s=[0.0] * len(kinds), total_steps=MANY, model=[kind.model for kind in kinds],
            sync=[kind.sync for kind in kinds], n_ps=1, name="profile",
        )  # fmt: skip
        training.check(self.jobs)
        self.run = f"profile-{os.getpid()}-{secrets.token_hex(3)}"
        self.fleet = Fleet(inventory)
        self.hosts = Hosts(self.fleet, run=self.run, lease_s=LEASE_S)
        self._folder = tempfile.TemporaryDirectory(prefix="labkit-profile-")
        self._backups = Backups(self.fleet, Path(self._folder.name) / "checkpoints", run=self.run)
        self._deployments: list[Deployment] = []
        try:
            self._get_ready()
        except BaseException:
            self.close()
            raise

    def _get_ready(self) -> None:
        self.hosts.get_ready()
        self.hosts.watch()
        self.machines: dict[str, list[str]] = {}
        for name in self.inventory.names:
            self.machines.setdefault(str(self.hosts.agent(name).hello["boot"]), []).append(name)

    def deployment(
        self, number: int, *, tell: Callable[[int, Told], None], hear: Callable[[dict[str, Any]], None]
    ) -> Deployment:
        """Return the job of a kind, not started yet."""

        def wanted(home: str, place: Place) -> dict[str, Any]:
            sites = sites_of(self.inventory, self.cluster, home=home)
            return self.training.wanted(self.jobs, number, sites=sites, place=place)

        made = Deployment(
            number, hosts=self.hosts, backups=self._backups, wanted=wanted, n_steps=MANY, tell=tell,
            strategy=self.training.strategy, hear=hear,
        )  # fmt: skip
        self._deployments.append(made)
        return made

    def look(self) -> Look:
        """Return what all hosts use by now."""
        return Look.at(self.hosts)

    def close(self) -> None:
        """End all that was started, and let go of the hosts."""
        for deployment in self._deployments:
            deployment.close()
        self.hosts.close(end_run=True)
        self.fleet.close()
        for deployment in self._deployments:
            deployment.join()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""What the jobs of a trace train on a testbed, and where they may sit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.controller.placement import JobPlacement
from labkit.testbed.inventory import Inventory

ROUNDING: Final = 1e-9
"""Of shares of GPUs: three times a third is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTable:
    """How jobs train: a trace says which model and how many steps, this the rest.

    Attributes
    ----------
    width : float
        Scale of the models' layers; 1 is the published size.
    widths : mapping
        Another width for some models.
    samples : int
        Of each model's generated dataset.
    seed : int
        Of the first job's model and samples; the next one has the next number.
    lr : float, optional
        Learning rate; None: one that suits the model.
    batch, shards, optimizer, standby, lease_s, network
        As `labkit.elastic.start` takes them.
    save_every : int
        Steps between two checkpoints; what is lost with a host is redone from the last one.
    strategy : str
        How running jobs are rescaled: handover, suspend or checkpoint.
    measure_every_s : float, optional
        Seconds between two measurements of all tasks (MEASURED events); None: there are none.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    width: float = 0.1
    widths: Mapping[str, float] = field(default_factory=dict)
    samples: int = 1024
    seed: int = 0
    lr: float | None = None
    batch: int = 32
    shards: int = 8
    optimizer: str = "adam"
    save_every: int = 100
    standby: bool = False
    lease_s: float = 3.0
    network: str = "tls"
    strategy: str = "handover"
    measure_every_s: float | None = None

    def check(self, jobs: Jobs) -> None:
        """Refuse jobs that cannot train.

        Raises
        ------
        InputError
            With the first model that is not known, and which are.
        """
        from labkit.elastic import models
        from labkit.elastic.controller.scaling_requests import check_strategy

        check_strategy(self.strategy)
        for name in jobs.models:
            models.size_of(name, width=self.widths.get(name, self.width))
        steps = jobs.true_steps
        if (steps < 1).any():
            raise InputError(
                f"job {jobs.id[np.argmin(steps)]} has {steps.min():g} steps; on a testbed a step is an update of the "
                "parameters, expected at least one."
            )

    def n_steps(self, jobs: Jobs, number: int) -> int:
        """Return the updates that a job makes."""
        return round(float(jobs.true_steps[number]))

    def wanted(
        self, jobs: Jobs, number: int, *, sites: Sequence[Mapping[str, Any]], place: JobPlacement
    ) -> dict[str, Any]:
        """Return a job.json, as `labkit.testbed.run.job_process` reads it."""
        name = jobs.models[jobs.model[number]]
        return {
            "name": name, "width": self.widths.get(name, self.width), "seed": self.seed + number,
            "data": {"size": self.samples, "seed": self.seed + number}, "lr": self.lr,
            "steps": self.n_steps(jobs, number), "batch": self.batch, "shards": self.shards,
            "optimizer": self.optimizer, "sync": bool(jobs.sync[number]), "save_every": self.save_every,
            "standby": self.standby, "lease_s": self.lease_s, "network": self.network,
            "sites": [dict(site) for site in sites], "place": {site: list(counts) for site, counts in place.items()},
            "loads_every_s": self.measure_every_s or 0.0,
        }  # fmt: skip

    def changed(self, **options: Any) -> TrainingTable:
        """Return it with some options changed."""
        return replace(self, **options)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "widths": dict(self.widths)}


def site_names(cluster: Cluster) -> list[str]:
    """Return the name of the site of each device group, (G,): "machine/0", "machine/1".

    >>> from labkit.topology import no_network
    >>> site_names(no_network(2))[:2]
    ['m0/0', 'm0/1']
    """
    counts = np.zeros(cluster.n_machines, int)
    names = []
    for machine in cluster.group_machine:
        names.append(f"{cluster.machines[machine]}/{counts[machine]}")
        counts[machine] += 1
    return names


def sites_of(inventory: Inventory, cluster: Cluster, *, home: str, on_gpus: bool = True) -> list[dict[str, Any]]:
    """Return the sites of a job, all device groups of the testbed, those of its home first.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    cluster : Cluster
        Of the inventory.
    home : str
        Where the job's controller runs.
    on_gpus : bool
        Whether its workers ask for GPUs; others compute on processors everywhere.
    """
    first_gpu = dict.fromkeys(cluster.machines, 0)
    sites = []
    for name, machine, capacity in zip(site_names(cluster), cluster.group_machine, cluster.capacity, strict=True):
        host = inventory[cluster.machines[machine]]
        n_gpus = int(capacity[GPUS])
        gpus = range(first_gpu[host.name], first_gpu[host.name] + n_gpus)
        first_gpu[host.name] += n_gpus
        devices = [f"gpu:{gpu}" for gpu in gpus] if on_gpus and host.host.real_gpus and n_gpus else ["cpu"]
        sites.append({"name": name, "host": host.name, "address": host.address, "devices": devices})
    return sorted(sites, key=lambda site: site["host"] != home)


def gpus_of(
    sites: Iterable[Mapping[str, Any]], place: JobPlacement, *, host: str, per_worker: float
) -> list[dict[str, Any]]:
    """Return what a job asks the agent of a host for, to sit in a place: so many of the GPUs of each device group.

    >>> sites = [{"name": "a/0", "host": "a", "devices": ["gpu:0", "gpu:1"]}, {"name": "b/0", "host": "b",
    ...          "devices": ["cpu"]}]
    >>> gpus_of(sites, {"a/0": (2, 1), "b/0": (1, 0)}, host="a", per_worker=0.5)
    [{'n': 1, 'of': [0, 1]}]
    """
    asks = []
    for site in sites:
        numbers = [int(device.removeprefix("gpu:")) for device in site["devices"] if device.startswith("gpu:")]
        n = math.ceil(place.get(site["name"], (0, 0))[0] * per_worker - ROUNDING)
        if site["host"] == host and numbers and n > 0:
            asks.append({"n": n, "of": numbers})
    return asks


def place_of(cluster: Cluster, *, role: np.ndarray, group: np.ndarray, count: np.ndarray) -> JobPlacement:
    """Return where the tasks of a job sit, by site.

    A job that trains without parameter servers (all-reduce) gets one beside its first worker: on the testbed all
    training goes through parameter servers.
    """
    names = site_names(cluster)
    place: dict[str, list[int]] = {}
    for r, g, n in zip(role.tolist(), group.tolist(), count.tolist(), strict=True):
        place.setdefault(names[g], [0, 0])[r] += n
    if place and not any(servers for _, servers in place.values()):
        next(counts for counts in place.values() if counts[0])[1] = 1
    return {site: (workers, servers) for site, (workers, servers) in place.items()}

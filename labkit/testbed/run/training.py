"""What the jobs of a trace train on a testbed, and where their tasks can be placed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.consent import use
from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.protocol.sites import JobPlacement, Site
from labkit.testbed.agent.messages import GpuAsk
from labkit.testbed.inventory import Inventory
from labkit.testbed.run.job_messages import BATCH, DatasetSpec, JobRequest
from labkit.testbed.run.own_scripts import STAGED, OwnScript

if TYPE_CHECKING:
    from pydantic import ConfigDict

ROUNDING: Final = 1e-9
"""Tolerance for sums of shares of GPUs: three times a third is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTable:
    """How jobs train, beside the model and the number of steps, which the trace gives.

    Attributes
    ----------
    width : float
        Scale of the models' layers; 1 is the published size.
    widths : mapping
        Width by model, for models with another width.
    scripts : mapping
        Training script of one's own by model, for models that are none of labkit's: `OwnScript.of("train.py")`.
    samples : int
        Size of each model's generated dataset.
    seed : int
        Seed of the first job's model and samples; each further job has the next number.
    lr : float, optional
        Learning rate; None: the default of the model.
    batch : int, optional
        Samples of an update; None: as a script of one's own says, else 32.
    shards, optimizer, standby, lease_s, network
        As `labkit.elastic.start` takes them.
    save_every : int
        Steps between two checkpoints; after the loss of a host a job continues from the last one.
    strategy : str
        How running jobs are rescaled: handover, suspend or checkpoint.
    measure_every_s : float, optional
        Seconds between two measurements of all tasks (MEASURED events); None: there are none.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    width: float = 0.1
    widths: Mapping[str, float] = field(default_factory=dict)
    scripts: Mapping[str, OwnScript] = field(default_factory=dict)
    samples: int = 1024
    seed: int = 0
    lr: float | None = None
    batch: int | None = None
    shards: int = 8
    optimizer: str = "adam"
    save_every: int = 100
    standby: bool = False
    lease_s: float = 3.0
    network: str = "tls"
    strategy: str = "handover"
    measure_every_s: float | None = None

    def __post_init__(self) -> None:
        scripts: Mapping[str, Any] = self.scripts  # of to_json, they are objects of JSON
        made = {name: OwnScript(**each) if isinstance(each, dict) else each for name, each in scripts.items()}
        object.__setattr__(self, "scripts", made)

    @property
    def samples_per_step(self) -> int:
        """Samples of an update, where no script says it."""
        return self.batch or BATCH

    @classmethod
    def stored(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """Return the table of a record, whose scripts need consent; their archives are those in the record's folder.

        Raise InputError if it is none, or a script has no consent or no archive.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            made = TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise InputError(f"{folder}: training.{where} is damaged: {fault['msg']}.") from None
        return replace(
            made, scripts={name: each.within(folder / STAGED) for name, each in made.scripts.items()}
        ).agreed(folder)

    def agreed(self, folder: Path) -> Self:
        """Note that its scripts, packed into the folder of a record, are about to run on hosts; return it.

        Raise InputError as `labkit.core.consent.use`; or if an archive is not there.
        """
        for each in self.scripts.values():
            try:
                use(each.outside(folder / STAGED))
            except OSError as error:
                raise InputError(f"{error.filename} is missing; script {each.script} cannot run without it.") from None
        return self

    def check(self, jobs: Jobs) -> None:
        """Refuse jobs that cannot train.

        Raises
        ------
        InputError
            With the first unknown model, and the known ones.
        """
        from labkit.elastic import models
        from labkit.elastic.controller.controller_state import checked_strategy

        checked_strategy(self.strategy)
        if odd := next((name for name in self.scripts if name not in jobs.models), None):
            raise unknown("model of the trace, for a script", odd, jobs.models)
        for name in jobs.models:
            if name not in self.scripts:
                models.size_of(name, width=self.widths.get(name, self.width))
        steps = jobs.true_steps
        if (steps < 1).any():
            raise InputError(
                f"job {jobs.id[np.argmin(steps)]} has {steps.min():g} steps; on a testbed a step is an update of the "
                "parameters, expected at least one."
            )

    def n_steps(self, jobs: Jobs, number: int) -> int:
        """Return the number of updates of a job."""
        return round(float(jobs.true_steps[number]))

    def request(self, jobs: Jobs, number: int, *, sites: Sequence[Site], place: JobPlacement) -> JobRequest:
        """Return the request of a job's start: its model and steps, its sites, and its first placement."""
        name = jobs.models[jobs.model[number]]
        own = self.scripts.get(name)
        script, code, samples = ("", "", "") if own is None else (own.script, own.code_hash, own.data_hash)
        return JobRequest(
            name="" if own else name, script=script, code=code, samples=samples, args=own.args if own else (),
            width=self.widths.get(name, self.width), seed=self.seed + number,
            data=DatasetSpec(self.samples, self.seed + number), lr=self.lr, steps=self.n_steps(jobs, number),
            batch=self.samples_per_step, shards=self.shards, optimizer=self.optimizer, sync=bool(jobs.sync[number]),
            save_every=self.save_every, standby=self.standby, lease_s=self.lease_s, network=self.network,
            sites=tuple(sites), place=dict(place), loads_every_s=self.measure_every_s or 0.0,
        )  # fmt: skip

    def changed(self, **options: Any) -> TrainingTable:
        """Return it with some options changed."""
        return replace(self, **options)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        own = {name: asdict(each) for name, each in self.scripts.items()}
        return {**asdict(replace(self, scripts={})), "widths": dict(self.widths), "scripts": own}

    def packed(self, folder: Path) -> TrainingTable:
        """Return it with the scripts' code and data packed into a record's folder, whatever becomes of them later."""
        made = {name: each.packed(folder / STAGED) for name, each in self.scripts.items()}
        return replace(self, scripts=made).agreed(folder)

    def contents(self, jobs: Jobs, number: int) -> tuple[str, ...]:
        """Return the SHA-256 of what a job needs on its home host beside labkit."""
        own = self.scripts.get(jobs.models[jobs.model[number]])
        return () if own is None else own.hashes


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


def sites_of(inventory: Inventory, cluster: Cluster, *, home: str, on_gpus: bool = True) -> list[Site]:
    """Return the sites of a job: all device groups of the testbed, first those of its home.

    Parameters
    ----------
    inventory : Inventory
        The hosts.
    cluster : Cluster
        Of the inventory.
    home : str
        Host of the job's controller.
    on_gpus : bool
        Whether its workers need GPUs; other workers compute on processors everywhere.
    """
    first_gpu = dict.fromkeys(cluster.machines, 0)
    sites = []
    for name, machine, capacity in zip(site_names(cluster), cluster.group_machine, cluster.capacity, strict=True):
        host = inventory[cluster.machines[machine]]
        n_gpus = int(capacity[GPUS])
        gpus = range(first_gpu[host.name], first_gpu[host.name] + n_gpus)
        first_gpu[host.name] += n_gpus
        devices = [f"gpu:{gpu}" for gpu in gpus] if on_gpus and host.host.real_gpus and n_gpus else ["cpu"]
        sites.append(Site(name, host.name, host.address, devices=devices))
    return sorted(sites, key=lambda site: site.host != home)


def gpus_of(sites: Iterable[Site], place: JobPlacement, *, host: str, per_worker: float) -> list[GpuAsk]:
    """Return the GPUs that a placement of a job needs on a host: a number of those of each device group.

    >>> sites = [Site("a/0", "a", devices=("gpu:0", "gpu:1")), Site("b/0", "b")]
    >>> gpus_of(sites, {"a/0": (2, 1), "b/0": (1, 0)}, host="a", per_worker=0.5)
    [{'n': 1, 'of': [0, 1]}]
    """
    asks: list[GpuAsk] = []
    for site in sites:
        numbers = [int(device.removeprefix("gpu:")) for device in site.devices if device.startswith("gpu:")]
        n = math.ceil(place.get(site.name, (0, 0))[0] * per_worker - ROUNDING)
        if site.host == host and numbers and n > 0:
            asks.append({"n": n, "of": numbers})
    return asks


def place_of(cluster: Cluster, *, role: np.ndarray, group: np.ndarray, count: np.ndarray) -> JobPlacement:
    """Return the placement of a job, by site.

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

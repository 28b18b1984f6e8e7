"""What every process of a job knows: its model, data, training, network and sites, in the file `job.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.elastic.checkpoint.manifest import CHECKPOINTS
from labkit.elastic.controller.losses import STOP
from labkit.elastic.protocol.blocks import BLOCKS, Layout, Param
from labkit.elastic.protocol.network import NetworkConfig
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.program import FLOAT32
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints

SPEC = "job.json"
UPDATE = "update.pickle"
"""Schedule, limit of gradients and update of one's own, for servers."""
CONTROLLER_SOCKET = "controller.sock"


@dataclass(frozen=True, slots=True)
class Spec:
    """What every process of a job knows.

    Attributes
    ----------
    params : list
        Name, first number in the flat vector, and shape of each parameter.
    extents : list
        First parameter and number of parameters of each block.
    optimizer : str
        Name of the optimizer; `options` are its options.
    batch, n_shards, n_steps : int
        Samples of a global batch, logical shards V of a batch, and steps of the training.
    seed : int
        Seed of the order of samples, and of what the model draws.
    sync : bool
        True: all workers make an update together. False: each worker makes its own updates.
    n_samples : int
        Samples of the dataset.
    lease_s : float
        Lease in seconds; all other timeouts derive from it.
    start_s, patience_s : float
        Seconds that a process may take to join, and a worker for the gradient of one logical shard or minibatch.
    scheme : str
        Transport between processes: shm, unix, tls, tcp.
    devices : tuple of str
        Devices of the workers: worker i has device i modulo their number.
    reach : dict
        Addresses and ports of the processes: the fields of `NetworkConfig`.
    sites : list of dict
        Device groups that may hold members: the fields of `Site`; empty for a job on one machine.
    on_nan : str
        "stop" or "continue": what a loss that is not finite does to the job.
    paths : list of str
        Module search path of the process that started the job.
    loads_every_s : float
        Seconds between two events with the gradient bytes that a server received; 0: no such events.
    measure_every_s : float
        Seconds between two events with the cores and memory of each process; 0: no such events.
    partition : str
        "blocks" or "tensor": see `labkit.elastic.protocol.blocks`.
    has_rule : bool
        Whether updates have a schedule, a limit of gradients, or are a function of one's own: the file `UPDATE`.
    precision : str
        "float32", or "bf16": the forward pass under `torch.autocast`.
    """

    params: list[tuple[str, int, list[int]]]
    extents: list[tuple[int, int]]
    optimizer: str
    options: dict[str, Any]
    batch: int
    n_shards: int
    n_steps: int
    seed: int = 0
    sync: bool = True
    n_samples: int = 0
    lease_s: float = 3.0
    start_s: float = 300.0
    patience_s: float = 300.0
    scheme: str = "shm"
    devices: tuple[str, ...] = ()
    reach: dict[str, Any] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)
    on_nan: str = STOP
    paths: list[str] = field(default_factory=list)
    loads_every_s: float = 0.0
    measure_every_s: float = 0.0
    partition: str = BLOCKS
    has_rule: bool = False
    precision: str = FLOAT32

    @property
    def places(self) -> dict[str, Site]:
        """Sites that may hold members, by name; the site `here` for a job without sites."""
        sites = [Site.read(fields) for fields in self.sites] or [NOWHERE_ELSE]
        return {site.name: site for site in sites}

    def reach_at(self, site: str) -> NetworkConfig:
        """Return the network addresses of a member on a site; "": those of any member of a job without sites."""
        reach = NetworkConfig(**self.reach)
        return replace(reach, hosts=(self.places[site].address,)) if site else reach

    @property
    def layout(self) -> Layout:
        """Positions of parameters and blocks in the flat vector."""
        params = tuple(Param(name, first, tuple(shape)) for name, first, shape in self.params)
        return Layout(params, tuple((first, n) for first, n in self.extents))

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Return the checkpoints of the job in this folder."""
        from labkit.elastic.checkpoint.store import Checkpoints
        from labkit.elastic.server.optimizers import optimizer

        return Checkpoints(
            folder / CHECKPOINTS, layout=self.layout, optimizer=optimizer(self.optimizer, **self.options),
            training=self.training,
        )  # fmt: skip

    @property
    def training(self) -> dict[str, int]:
        """Numbers that decide which samples a step takes, and the order in which their gradients are summed."""
        return {"seed": self.seed, "batch": self.batch, "n_shards": self.n_shards, "n_samples": self.n_samples}

    def files_of(self, role: str) -> tuple[str, ...]:
        """Return the names of the files that a member needs."""
        if role == "worker":
            return SPEC, PROGRAM
        return (SPEC, UPDATE) if self.has_rule else (SPEC,)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that members need, of either role."""
        return tuple(dict.fromkeys((*self.files_of("worker"), *self.files_of("server"))))

    def save(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        (folder / SPEC).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Spec:
        """Read it from the folder of the job."""
        return cls(**json.loads((folder / SPEC).read_text()))

"""What every process of a job knows: its model, data, training, network and sites, in the file `job.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.elastic.checkpoint.manifest import CHECKPOINTS
from labkit.elastic.controller.losses import STOP
from labkit.elastic.protocol.blocks import BLOCKS, Layout, Param
from labkit.elastic.protocol.json_file import load_struct, save_struct
from labkit.elastic.protocol.messages.struct import Count, Number, Struct, Text
from labkit.elastic.protocol.network import NetworkConfig
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.program import FLOAT32
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site
from labkit.elastic.transport import Scheme

if TYPE_CHECKING:
    from labkit.elastic.checkpoint.store import Checkpoints

SPEC = "job.json"
UPDATE = "update.pickle"
"""Schedule, limit of gradients and update of one's own, for servers."""
CONTROLLER_SOCKET = "controller.sock"

OptionValue = bool | Number | tuple[Number, ...] | tuple[Text, ...]
"""Value of an option of an optimizer: a switch, a number, numbers such as Adam's betas, or names of state vectors."""


def option_values(options: Mapping[str, Any]) -> dict[str, OptionValue]:
    """Return options of an optimizer as a `Spec` has them: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


@dataclass(frozen=True, slots=True)
class Spec(Struct):
    """What every process of a job knows.

    Attributes
    ----------
    params : tuple
        Name, first number in the flat vector, and shape of each parameter.
    extents : tuple
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
    scheme : Scheme
        Transport between processes.
    devices : tuple of str
        Devices of the workers: worker i has device i modulo their number.
    reach : NetworkConfig
        Addresses and ports of the processes.
    sites : tuple of Site
        Device groups that may hold members; empty for a job on one machine.
    on_nan : str
        "stop" or "continue": what a loss that is not finite does to the job.
    paths : tuple of str
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
    variables : tuple
        Name and value of the environment variables that decide about numerics, for members on all hosts.
    """

    params: tuple[tuple[Text, Count, tuple[Count, ...]], ...]
    extents: tuple[tuple[Count, Count], ...]
    optimizer: Text
    options: dict[Text, OptionValue]
    batch: Count
    n_shards: Count
    n_steps: Count
    seed: int = 0
    sync: bool = True
    n_samples: Count = 0
    lease_s: Number = 3.0
    start_s: Number = 300.0
    patience_s: Number = 300.0
    scheme: Scheme = Scheme.SHM
    devices: tuple[Text, ...] = ()
    reach: NetworkConfig = field(default_factory=NetworkConfig)
    sites: tuple[Site, ...] = ()
    on_nan: Text = STOP
    paths: tuple[Text, ...] = ()
    loads_every_s: Number = 0.0
    measure_every_s: Number = 0.0
    partition: Text = BLOCKS
    has_rule: bool = False
    precision: Text = FLOAT32
    variables: tuple[tuple[Text, Text], ...] = ()

    @property
    def places(self) -> dict[str, Site]:
        """Sites that may hold members, by name; the site `here` for a job without sites."""
        return {site.name: site for site in self.sites or (NOWHERE_ELSE,)}

    def reach_at(self, site: str) -> NetworkConfig:
        """Return the network addresses of a member on a site; "": those of any member of a job without sites."""
        return replace(self.reach, hosts=(self.places[site].address,)) if site else self.reach

    @property
    def layout(self) -> Layout:
        """Positions of parameters and blocks in the flat vector."""
        return Layout(tuple(Param(*param) for param in self.params), self.extents)

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
        save_struct(folder / SPEC, self)

    @classmethod
    def load(cls, folder: Path) -> Spec:
        """Read it from the folder of the job; JobFileError if the file is damaged or of another version."""
        return load_struct(folder / SPEC, cls)

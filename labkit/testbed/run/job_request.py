"""The start request of a job: the content of request.json on its home host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from labkit.core.errors import InputError
from labkit.elastic.protocol.sites import Site
from labkit.testbed.run.own_scripts import HASH, SCRIPT

if TYPE_CHECKING:
    from pydantic import ConfigDict

REQUEST: Final = "request.json"
"""Name of the file, in the folder of the task; the elastic job that it starts has a `job.json` of its own below."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The generated dataset of a model: number of samples, and seed."""

    size: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What to train, and where.

    Attributes
    ----------
    name : str
        Model, one of `labkit.elastic.models.available()`; empty with `program`.
    program : bool
        Whether the task's folder holds a saved program (`labkit.elastic.protocol.program.Program.save`) to train
        instead of a model by name.
    script, code, samples : str
        A script of one's own instead of both: "train.py:program", and the SHA-256 of its code and its data, which were
        brought below labkit's folder here (`labkit.testbed.run.own_scripts`).
    width, seed, data
        Scale of the model's layers, seed of its parameters, and its samples.
    lr : float, optional
        Learning rate; None: the default of the model.
    options : dict
        Further arguments of the optimizer.
    sites : sequence of Site
        Where members can be placed; the first site is on the home host.
    place : dict, optional
        Site -> (workers, servers) at the beginning.
    steps, batch, shards, optimizer, sync, save_every, standby, lease_s, network, ports, loads_every_s
        As `labkit.elastic.start` takes them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    name: str = ""
    program: bool = False
    script: str = ""
    code: str = ""
    samples: str = ""
    width: float = 1.0
    seed: int = 0
    data: DatasetSpec = field(default_factory=DatasetSpec)
    steps: int
    batch: int = 32
    shards: int = 8
    optimizer: str = "adam"
    lr: float | None = None
    options: dict[str, float] = field(default_factory=dict)
    sync: bool = True
    save_every: int = 0
    standby: bool = False
    lease_s: float = 3.0
    network: str = "tls"
    ports: tuple[int, int] | None = None
    sites: Sequence[Site] = ()
    place: dict[str, tuple[int, int]] | None = None
    loads_every_s: float = 0.0

    def to_json(self) -> bytes:
        """Return the content of request.json."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, path: Path) -> JobRequest:
        """Read a request.json.

        Raises
        ------
        InputError
            With every fault of the file.
        """
        from pydantic import TypeAdapter, ValidationError

        from labkit.core.faults import told

        try:
            request = TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; expected a job's description there.") from None
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()]
            raise InputError(told(str(path), faults)) from None
        if bool(request.name) + request.program + bool(request.script) != 1:
            raise InputError(f'{path}: expected one of the name of a model, "program": true, and a script.')
        if request.script and not (SCRIPT.fullmatch(request.script) and HASH.fullmatch(request.code)):
            raise InputError(
                f"{path}: script is {request.script!r}, of code {request.code!r}; expected FILE.py and SHA-256."
            )
        if request.samples and not HASH.fullmatch(request.samples):
            raise InputError(f"{path}: samples is {request.samples!r}; expected a SHA-256.")
        return request

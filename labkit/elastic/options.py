"""Arguments of `labkit.elastic.start` by name, for functions that pass them on: a type checker knows each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from labkit.elastic.protocol.sites import Site
    from labkit.elastic.schedules import Schedule
    from labkit.elastic.validation import Validation


class OptimizerOptions(TypedDict, total=False):
    """Options of an optimizer that is named, and `lr` of an `OwnUpdate`; see `labkit.elastic.server.optimizers`."""

    lr: float
    weight_decay: float
    momentum: float
    nesterov: bool
    betas: Sequence[float]
    eps: float
    decoupled_weight_decay: bool


class LoopOptions(OptimizerOptions, total=False):
    """Arguments of `start` that a script with a loop of its own takes, too; `start` describes them."""

    batch: int | None
    shuffle: bool
    loaders: int
    workers: int
    servers: int
    most_servers: int
    shards: int
    schedule: Schedule | None
    scheduler_every: int
    clip_value: float | None
    clip_norm: float | None
    precision: str
    state: Mapping[str, Any] | None
    per_shard: Sequence[str]
    sync: bool
    seed: int
    save_every: int
    validate: Validation | None
    standby: bool
    lease_s: float
    start_s: float
    patience_s: float
    restarts: int
    restarts_within_s: float
    devices: Sequence[str]
    folder: Path | str | None
    detached: bool
    resume: str
    on_nan: str
    network: str
    addresses: Sequence[str]
    ports: Sequence[int] | None
    sites: Sequence[Site]
    place: Mapping[str, Sequence[int]] | None
    loads_every_s: float
    measure_every_s: float
    partition: str
    proof: str


class JobOptions(LoopOptions, total=False):
    """All arguments of `start` beside model, data and loss."""

    steps: int
    optimizer: Any
    scheduler: Any


class ScriptOptions(LoopOptions, total=False):
    """Arguments of `labkit.elastic(model, optimizer, loader)`; one of `steps` and `epochs` is given."""

    steps: int | None
    epochs: int | None
    scheduler: Any

"""Weights of the placement policy in files: safetensors, with where they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.resources import CPUS, GPUS
from labkit.core.weights import Tensors, WeightsFiles, fault_of, other_names
from labkit.schedulers.marl.network import FEATURES, WAITING, Net
from labkit.speed.interference.levels import Level, digest_of
from labkit.speed.what_if import N_SLOWDOWN_FEATURES

FILES: Final = WeightsFiles(
    policy="marl",
    version="2",
    remedy="Train it again: labkit train-policy marl.",
    folder=Path(__file__).with_name("weights"),
    optional={"servers": ""},
    former={
        "1": "It does not tell the interference of its training, without which its inputs mean nothing. Train it again."
    },
)


@dataclass(frozen=True)
class TrainedFor:
    """The interference that weights were trained with, which gives their inputs a meaning."""

    name: str
    digest: str
    """`name` and `digest`: what it was called, and `labkit.speed.interference.levels.digest_of` it."""
    times: float
    """How many times the use that was shown tasks had in truth."""
    servers: str = ""
    """The kinds of sockets of the training's clusters (`servers_of`); empty: not known."""

    @classmethod
    def of(cls, level: Level | None, clusters: Iterable[Cluster] = ()) -> Self:
        """Return the record that weights keep of an interference and of clusters."""
        name, times = ("none", 1.0) if level is None else (level.name, level.times)
        return cls(name, digest_of(level), times, "; ".join(sorted({servers_of(cluster) for cluster in clusters})))


def servers_of(cluster: Cluster) -> str:
    """Return the kinds of sockets of a cluster, which a policy's features are made for.

    >>> from labkit.topology import build
    >>> servers_of(build("marl-4x20"))
    '2 GPUs + 8 cores'
    """
    kinds = np.unique(cluster.capacity[:, [GPUS, CPUS]], axis=0)
    return ", ".join(f"{gpus:g} GPUs + {cores:g} cores" for gpus, cores in kinds.tolist())


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained policy: its network, how it was made (the command), and with which interference."""

    net: Net
    source: str
    trained: TrainedFor

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        trained = {"interference": self.trained.name, "truth": self.trained.digest, "use": repr(self.trained.times)}
        trained |= {"servers": self.trained.servers} if self.trained.servers else {}
        FILES.write(path, self.net._asdict(), source=self.source, **trained)


shipped = FILES.shipped


def load(name: str | Path) -> Weights:
    """Return weights by name, or from a file.

    Raises
    ------
    InputError
        If there are none of that name, or the file holds something else.
    """
    tensors, (source, *trained) = FILES.load(
        name, _fault, source=str, interference=str, truth=str, use=times_of, servers=str
    )
    net = Net(**{name: tensor.astype(np.float64) for name, tensor in tensors.items()})
    return Weights(net, source, TrainedFor(*trained))


def times_of(text: str) -> float:
    """Return a factor > 0; raise ValueError if it is none."""
    found = float(text)
    if not 0 < found < inf:
        raise ValueError(text)
    return found


def _fault(tensors: Tensors) -> str:
    if fault := other_names(tensors, Net._fields):
        return fault
    n_agents, hidden, units = tensors["sharp"].size, tensors["out"].size, tensors["last"].shape[-1]
    if not n_agents:
        return "it is for no scheduler"
    expected = {
        "seen": (N_SLOWDOWN_FEATURES, hidden), "out": (hidden,), "first": (n_agents, len(FEATURES), units),
        "bias": (n_agents, units), "last": (n_agents, units), "wait": (n_agents, len(WAITING)), "sharp": (n_agents,),
    }  # fmt: skip
    return fault_of(tensors, expected)
